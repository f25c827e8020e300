"""The package has no function and no class that only tests call."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator

from places import ROOT

PACKAGE = ROOT / "src" / "mrlm"
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "configs/*.yaml", "examples/**/*.py")
"""What is shown to users counts as used."""


def names(source: str) -> Iterator[str]:
    """All names of a source, also those in strings (annotations, plug-ins, doors of servers)."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.type == tokenize.STRING:
            yield from re.findall(r"\w+", token.string)


def defined(source: str) -> Iterator[str]:
    """Functions, classes and methods that somebody has to call. A decorator calls what it is given
    to, and a base class of another library its hooks."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.bases:
            hooks = {id(each) for each in node.body}
        elif isinstance(node, ast.Module | ast.ClassDef):
            hooks = set[int]()
        else:
            continue
        for each in node.body:
            if (
                isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and not (each.decorator_list or each.name.startswith("__"))
                and id(each) not in hooks
            ):
                yield each.name


def unused(sources: Iterable[str], shown: str) -> set[str]:
    """Names that are defined once and written nowhere else."""
    sources = list(sources)
    times = Counter(name for source in sources for name in names(source))
    named = set(re.findall(r"\w+", shown))
    found = {name for source in sources for name in defined(source)}
    return {name for name in found if times[name] == 1 and name not in named}


def test_everything_is_used() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "_pb2" not in path.name]
    shown = "\n".join(
        path.read_text(encoding="utf-8") for pattern in PAGES for path in ROOT.glob(pattern)
    )
    assert unused((path.read_text(encoding="utf-8") for path in files), shown) == set()


def test_what_nobody_calls_is_seen() -> None:
    one = "def called(): ...\ndef alone(): ...\nclass Shown:\n    def quiet(self): ...\n"
    other = "called()\nclass Own(Base):\n    def hook(self): ...\n@register\ndef given(): ...\nOwn"
    assert unused([one, other], "Shown") == {"alone", "quiet"}
