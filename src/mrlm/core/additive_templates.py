"""Chat templates that render every message by itself, as their syntax shows: later prompts of a
conversation are then rendered from its new messages only."""

import re
from collections.abc import Iterator
from functools import lru_cache

from jinja2 import Environment, TemplateSyntaxError, nodes

MARKS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
ROLES = {"user", "assistant", "system"}
"""Roles of messages that are rendered one by one; branches for other roles are not read."""
PURE = (
    nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem,
    nodes.If, nodes.Assign, nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand,
    nodes.Concat, nodes.CondExpr, nodes.Test,
)  # fmt: skip
"""Syntax whose text depends on the values of its names alone."""
FILTERS = {"trim", "length", "lower", "upper", "capitalize", "tojson", "string", "default"}


@lru_cache(maxsize=64)
def is_additive(template: str) -> bool:
    """Whether the text of a conversation without tools is an opening that depends on the first
    message, then the text of every message by itself (the first one's may differ, and decide about
    others), then an end that depends on none. Decided from the syntax: `False` for anything that is
    not known to be so."""
    try:
        body = Environment().parse(MARKS.sub("", template)).body
    except TemplateSyntaxError:
        return False
    loops = [at for at, node in enumerate(body) if isinstance(node, nodes.For)]
    if len(loops) != 1:
        return False
    loop = body[loops[0]]
    assert isinstance(loop, nodes.For)
    plain = not loop.else_ and loop.test is None and not loop.recursive
    names = isinstance(loop.iter, nodes.Name) and isinstance(loop.target, nodes.Name)
    if not plain or not names or loop.iter.name != "messages":  # pyright: ignore
        return False
    message: str = loop.target.name  # pyright: ignore
    if message in ("messages", "loop"):
        return False
    before, after = body[: loops[0]], body[loops[0] + 1 :]
    return (
        all(_reads(node, message, {"first message"}) for node in before)
        and all(_reads(node, message, {"loop"}) for node in loop.body)
        and all(_reads(node, message, set()) for node in after)
    )


def _reads(node: nodes.Node, message: str, allowed: set[str]) -> bool:
    """Whether a node is pure, and reads no more of the conversation than is `allowed`: its first
    message, and whether a message is that one (`loop`)."""
    if _is_first(node):
        return "loop" in allowed
    if isinstance(node, nodes.Getitem) and _named(node.node, "messages"):
        first = isinstance(node.arg, nodes.Const) and node.arg.value == 0
        return first and bool(allowed)  # later messages are rendered after the first one
    if isinstance(node, nodes.Name):
        hidden = {"messages", "loop"} | ({"add_generation_prompt"} if allowed else set())
        return node.name not in hidden and (node.ctx != "store" or node.name != message)
    if isinstance(node, nodes.For):  # over the tool calls of a message without any
        return _attribute(node.iter, message) == "tool_calls" and not node.else_
    if isinstance(node, nodes.If):
        return all(_reads(child, message, allowed) for child in _reachable(node, message))
    if isinstance(node, nodes.Filter):
        if node.name not in FILTERS or node.dyn_args or node.dyn_kwargs:
            return False
    elif not isinstance(node, PURE):
        return False
    return all(_reads(child, message, allowed) for child in node.iter_child_nodes())


def _is_first(node: nodes.Node) -> bool:
    """Whether it is `loop.first` or `loop.index0 == 0`."""
    if isinstance(node, nodes.Compare) and len(node.ops) == 1 and node.ops[0].op == "eq":
        zero = node.ops[0].expr
        index = isinstance(node.expr, nodes.Getattr) and node.expr.attr == "index0"
        return (
            index
            and _named(node.expr.node, "loop")  # pyright: ignore[reportAttributeAccessIssue]
            and isinstance(zero, nodes.Const)
            and zero.value == 0
        )
    return isinstance(node, nodes.Getattr) and node.attr == "first" and _named(node.node, "loop")


def _reachable(node: nodes.If, message: str) -> Iterator[nodes.Node]:
    """The tests and branches of a condition that a conversation without tools can reach."""
    for branch in (node, *node.elif_):
        if not _for_tools(branch.test, message):
            yield branch.test
            yield from branch.body
    yield from node.else_


def _for_tools(test: nodes.Node, message: str) -> bool:
    """Whether a test is false for every conversation without tools: of `tools`, or of a role that
    messages without tools do not have."""
    if _named(test, "tools"):
        return True
    if not isinstance(test, nodes.Compare) or len(test.ops) != 1 or test.ops[0].op != "eq":
        return False
    value = test.ops[0].expr
    other = isinstance(value, nodes.Const) and value.value not in ROLES
    return other and _attribute(test.expr, message) == "role"


def _attribute(node: nodes.Node, message: str) -> object:
    """The attribute of the loop's message that a node reads, or `None`."""
    if isinstance(node, nodes.Getattr) and _named(node.node, message):
        return node.attr
    if isinstance(node, nodes.Getitem) and _named(node.node, message):
        return node.arg.value if isinstance(node.arg, nodes.Const) else None
    return None


def _named(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
