"""Mutants of a source file: one small change each, of a kind that a developer makes by mistake."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "mean": "sum", "sum": "mean"}
"""Calls that are easily mistaken for one another; `sum` becomes `mean` as a method only."""

ELSEWHERE = ("encoding", "strict")
"""Arguments that are not left out: a test looks at every encoding, and `strict` is an assertion."""
MAKERS = ("pack", "plant")
"""Functions of the package that make tensors on the device they are given."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Args:
        file: path below the source folder.
        line: where it is.
        place: number of the node in the order of `ast.walk`, and which of its changes.
        text: what is changed into what, numbered where a line has the same several times.
        source: the line as it is.
    """

    file: str
    line: int
    place: tuple[int, int]
    text: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.text}"

    @property
    def key(self) -> str:
        """What it is called in lists, wherever its line stands."""
        return " ".join(f"{self.file} | {self.source} | {self.text}".split())


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    tree, written = ast.parse(source), ["", *source.splitlines()]
    skipped, seen = _skipped(tree), Counter[tuple[int, str]]()
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for number, (what, _) in enumerate(_changes(node)):
            line = getattr(node, "lineno", 0)
            seen[line, what] += 1
            again = seen[line, what]
            text = what if again == 1 else f"{what} ({again})"
            yield Mutant(file, line, (index, number), text, written[line].strip())


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the change in it."""
    tree = ast.parse(source)
    index, number = mutant.place
    node = next(node for i, node in enumerate(ast.walk(tree)) if i == index)
    _, change = _changes(node)[number]
    change()
    return ast.unparse(tree)


def _skipped(tree: ast.AST) -> set[int]:
    """Nodes whose change is no mistake of logic: texts, types, errors, logs."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            parts.append(node)
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            parts.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts += node.decorator_list
            parts += [node.returns] if getattr(node, "returns", None) else []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            parts.append(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log.", "warnings.")):
            parts.append(node)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node)  # an assertion, too
        if isinstance(node, ast.Expr) and (
            isinstance(node.value, ast.Constant)
            or ast.unparse(node.value).startswith(("log.", "warnings.", "super().__"))
        ):
            parts.append(node)
        for part in parts:
            found |= {id(inner) for inner in ast.walk(part)}
    return found


def _changes(node: ast.AST) -> list[tuple[str, Callable[[], None]]]:
    """(what, how) of the changes that a node offers."""
    found: list[tuple[str, Callable[[], None]]] = []

    def add(what: str, change: Callable[[], None]) -> None:
        found.append((f"{ast.unparse(node)[:70]!s}  ->  {what}", change))

    def put(name: str, value: object) -> Callable[[], None]:
        return lambda: setattr(node, name, value)

    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
        other = COMPARE[type(node.ops[0])]
        add(other.__name__, put("ops", [other()]))
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _textual(node):
        other = ARITHMETIC[type(node.op)]
        add(other.__name__, put("op", other()))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        add(other.__name__, put("op", other()))
    elif isinstance(node, ast.If | ast.IfExp):
        add("not", put("test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        add(str(not node.value), put("value", not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = {0: 1, 1: 0}.get(node.value, node.value + 1)
        add(str(value), put("value", value))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        add("+", put("op", ast.UAdd()))
    elif isinstance(node, ast.Call):
        _of_call(node, add)
    elif isinstance(node, ast.AugAssign):
        add("=", lambda: node.__dict__.update(op=ast.Mult(), value=ast.Constant(1)))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        add("nothing", put("value", ast.Constant(None)))
    return found


def _of_call(node: ast.Call, add: Callable[[str, Callable[[], None]], None]) -> None:
    function = node.func
    if isinstance(function, ast.Name) and function.id in NAMES and function.id != "sum":
        other = NAMES[function.id]
        add(other, lambda: setattr(function, "id", other))
    if isinstance(function, ast.Attribute) and function.attr in NAMES:
        name = NAMES[function.attr]
        add(name, lambda: setattr(function, "attr", name))
    for keyword in node.keywords:
        if keyword.arg not in (None, *ELSEWHERE) and not _of_place(function, keyword.arg):
            add(f"without {keyword.arg}", lambda keyword=keyword: node.keywords.remove(keyword))


def _of_place(function: ast.expr, argument: str) -> bool:
    """Whether an argument only says where a tensor is made: without an accelerator there is one
    place."""
    made = ast.unparse(function).startswith("torch.") or ast.unparse(function) in MAKERS
    return argument == "device" and made


def _textual(node: ast.BinOp) -> bool:
    """Whether it adds texts."""
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )
