"""The words of docstrings, comments, messages and pages: the field's, in plain sentences."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]  # this file is a script, too
PACKAGE = ROOT / "src" / "mrlm"

CLEAN = (
    "__init__.py",
    "__main__.py",
    "algorithms",
    "build",
    "cli",
    "config",
    "core",
    "data",
    "distributed",
    "doctor",
    "engines",
    "environments",
    "experiment.py",
    "generate.py",
    "learn",
    "planning",
    "play",
    "record",
    "replays",
    "rules",
    "runs.py",
    "sandbox",
    "selfplay",
    "serving",
    "teams",
    "trackers",
    "tracking",
    "train.py",
    "trainer.py",
    "training",
    "viewer",
    "workflows",
)
"""Rooms and files that keep to it."""

PAGES = [
    ROOT / "README.md",
    *(ROOT / f"{name}.md" for name in ("AGENTS", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")),
    ROOT / "skills" / "mrlm" / "SKILL.md",
    ROOT / "examples" / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md"))),
]

INSTEAD = {
    r"\bsaid\b": "completion, message, text; reported, stated",
    r"\b(paid|pays)\b": "rewarded, reward, return",
    r"\bearn(s|ed)?\b": "receives, gets; reward, return",
    r"\b(told|asked for|asks for)\b": "called with, requested, requires, receives",
    r"\banew\b": "again",
    r"\bgo(es)? on\b": "continue",
    r"\bnobody\b": "no one, none, never",
    r"\bwho(so)?ever\b": "any agent that, a user, the caller",
    r"\bteach(es)?\b(?! must)": "train",
    r"\blearn(s|ed)? from\b": "trained on",
    r"\b(stand|stands|stood)\b": "is, are, lie",
    r"\b(there|it) is no such\b": "does not exist",
    r"^There is no\b": "X does not exist",
    r"\bseats?\b(?!=)": "role, agent, slot",
    r"\b(the|a|who is|of a|of the) cast\b|\bcasting\b": "policy assignment, assign",
    r"\bhero(es)?\b": "rated policy",
    r"\bledger\b": "answer log",
    r"\bdeck\b": "task sampler",
    r"\b(trunk|strip)\b": "shared prefix, block",
    r"\bcut over\b": "sharded",
    r"\bsurplus\b": "oversampling",
    r"\bfines?\b(?!-tun)": "penalty (or drop the word)",
    r"\bsitting\b": "playing",
    r"\bat hand\b": "available",
    r"\bas it were\b": "(drop)",
    r"\bin truth\b": "(drop)",
    r"\bworth nothing\b": "worthless; has value 0",
    r"\bby heart\b": "memorised",
}
"""What is not written, and what is instead."""
OPENINGS = r"(What|Who|Whose|Where|Whatever|Whoever|How(?! many| much| often| long))\b"
"""A docstring opens with a noun phrase or a verb."""
ON_PAGES = {**INSTEAD, r"\bworlds?\b(?![ -](size|model))": "environment"}
NOT_PROSE = re.compile(
    r"^```.*?^```"
    r"|<!-- \w+: written by .*?<!-- end.*?-->"
    r"|(`+)(?!`).+?(?<!`)\1(?!`)|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
"""Code, targets of links, and the parts that `benchmarks` writes or that state results."""

ARGUMENT = re.compile(r"^\s+[\w*]+(, [\w*]+)*: ", re.MULTILINE)
"""The name in a line about an argument: code."""


CODE = re.compile(r"`[^`]*`")
"""A span in backticks: names that users type."""
READ_BY_MODELS = {"ToolError", "_Refused"}
"""Errors whose messages are part of observations: changing them would change training data."""


def raised(node: ast.Raise) -> str:
    """The name of the class of an error that is raised."""
    return ast.unparse(node.exc.func) if isinstance(node.exc, ast.Call) else ""


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree without its expressions, which are most of it."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        below = getattr(tree, name, None)
        for each in below if isinstance(below, list) else []:
            yield each
            yield from statements(each)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for each in statements(tree):
        if isinstance(each, ast.Expr) and isinstance(value := each.value, ast.Constant):
            yield each.lineno, str(value.value)


def texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    yield from ((line, ARGUMENT.sub("", text)) for line, text in docstrings(tree))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in statements(tree):
        if isinstance(node, ast.Raise) and node.exc and raised(node) not in READ_BY_MODELS:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The paragraphs of a page on one line each, with the number of the first line."""
    page = NOT_PROSE.sub(lambda match: "`" + "\n" * match[0].count("\n"), page)
    line = 1
    for text in re.split(r"(\n\s*\n)", page):
        if text.strip():
            yield line, text.lstrip("# ")
        line += text.count("\n")


def found_on_page(path: Path) -> list[str]:
    lines = []
    for line, text in prose(path.read_text(encoding="utf-8")):
        for pattern, instead in ON_PAGES.items():
            for match in re.finditer(pattern, text.replace("\n", " "), re.IGNORECASE):
                at = line + text[: match.start()].count("\n")
                lines.append(f"{path.relative_to(ROOT)}:{at}: {match[0]!r}: write {instead}")
    return lines


def found(path: Path) -> list[str]:
    if path.suffix == ".md":
        return found_on_page(path)
    source = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(source), []
    for line, text in texts(tree, source):
        text = CODE.sub("`", text)
        for pattern, instead in INSTEAD.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                lines.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {instead}")
    for line, text in docstrings(tree):
        if re.match(OPENINGS, text):
            lines.append(f"{path.relative_to(ROOT)}:{line}: opens with {text.split()[0]!r}")
    return lines


@pytest.mark.parametrize("room", CLEAN)
def test_the_words_are_those_of_the_field(room: str) -> None:
    place = PACKAGE / room
    files = [place] if place.suffix else sorted(place.rglob("*.py"))
    lines = [line for file in files for line in found(file)]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_words_of_a_page_are_those_of_the_field(page: Path) -> None:
    lines = found(page)
    assert not lines, "\n".join(lines)


if __name__ == "__main__":  # python tests/contracts/test_words.py src/mrlm/play
    import sys

    for argument in sys.argv[1:]:
        place = Path(argument).resolve()
        for file in [place] if place.suffix else sorted(place.rglob("*.py")):
            print("\n".join(found(file)), end="\n" if found(file) else "")
