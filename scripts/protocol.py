"""The page of the gRPC protocol, from the comments of `mrlm.proto`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

PROTO = Path(__file__).parents[1] / "src" / "mrlm" / "serving" / "mrlm.proto"
INTRODUCTION = """# gRPC protocol

The package `{package}`, for clients in other languages: `protoc` makes one from
`src/mrlm/serving/mrlm.proto`, from which this page is written. [Serving](serving.md) has the
commands, limits and security of the servers.

{about}"""
BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")
RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
FIELD = re.compile(r"(?:(optional|repeated) )?(map<\w+, \w+>|\w+) (\w+) = (\d+);")
VALUE = re.compile(r"(\w+) = (\d+);")


@dataclass
class Block:
    """A service, message or enumeration: its comment, and its rows as cells.

    Args:
        kind: `service`, `message` or `enum`.
        name: its name, after that of the message it is in.
        about: its comment.
        rows: cells of its table.
    """

    kind: str
    name: str
    about: str
    rows: list[tuple[str, ...]] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """The services, messages and enumerations of a file, in its order.

    Raises:
        ValueError: a line is not understood; names it.
    """
    found: list[Block] = []
    within: list[Block | str] = []
    comment: list[str] = []
    for line in text.splitlines():
        code, _, remark = (part.strip() for part in line.partition("//"))
        if not code:
            comment = [*comment, remark] if remark and not remark.startswith("--") else []
            continue
        about = remark or " ".join(comment)
        names = [each for each in within if isinstance(each, Block)]
        if code == "}":
            within.pop()
        elif begun := BLOCK.fullmatch(code):
            kind, name, ended = begun.groups()
            if kind == "oneof":
                within.append(name)
            else:
                block = Block(kind, ".".join([*(each.name for each in names), name]), about)
                found.append(block)
                within += [] if ended else [block]
        elif within:
            choice = within[-1] if isinstance(within[-1], str) else ""
            names[-1].rows.append(_row(code, choice, about))
        elif not re.match(r"(syntax|package) ", code):
            raise ValueError(f"{PROTO.name}: line not understood: {line}")
        comment = []
    return found


def _row(code: str, choice: str, about: str) -> tuple[str, ...]:
    """The cells of a call, a field or a value."""
    if rpc := RPC.fullmatch(code):
        name, many, request, stream, reply = rpc.groups()
        return f"`{name}`", _type(request, many), _type(reply, stream), about
    if given := FIELD.fullmatch(code):
        label, kind, name, number = given.groups()
        label = f"one of `{choice}`" if choice else label
        return f"`{name}`", _type(kind, label), number, about
    if value := VALUE.fullmatch(code):
        return f"`{value[1]}`", value[2], about
    raise ValueError(f"{PROTO.name}: line not understood: {code}")


def _type(name: str, label: str | None) -> str:
    if pair := re.fullmatch(r"map<(\w+), (\w+)>", name):
        return f"map from {_type(pair[1], None)} to {_type(pair[2], None)}"
    linked = f"[{name}](#{name.lower()})" if name[0].isupper() else f"`{name}`"
    return f"{label.strip()} {linked}" if label else linked


HEADS = {
    "service": ("call", "request", "reply", "meaning"),
    "message": ("field", "type", "number", "meaning"),
    "enum": ("value", "number", "meaning"),
}


def page() -> str:
    """The text of the page."""
    text = PROTO.read_text(encoding="utf-8")
    opening = re.match(r"(?://.*\n)+", text)
    about = re.sub(r"^// ?", "", opening[0] if opening else "", flags=re.MULTILINE)
    (package,) = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)
    parts = [INTRODUCTION.format(package=package, about=about)]
    listed = sorted(blocks(text), key=lambda block: block.kind != "service")
    services = sum(block.kind == "service" for block in listed)
    parts += [_section(block) for block in listed[:services]]
    parts += ["## Messages\n", *(_section(block) for block in listed[services:])]
    made = "\n".join(parts)
    for block in listed:
        _, dot, inner = block.name.rpartition(".")
        if dot:
            anchor = block.name.replace(".", "").lower()
            made = made.replace(f"[{inner}](#{inner.lower()})", f"[{block.name}](#{anchor})")
    return made


def _section(block: Block) -> str:
    head = HEADS[block.kind]
    lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *block.rows)]
    table = "\n".join(lines) if block.rows else "It has no fields."
    title = f"{'##' if block.kind == 'service' else '###'} {block.name}"
    return "\n\n".join(filter(None, [title, block.about, table])) + "\n"
