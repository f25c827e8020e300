"""A class to be completed: its skeleton, its methods with their writers, and its unittest cases.
Rows are in the form of ClassEval. This module runs no program."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mrlm.core.errors import ConfigError, DataError
from mrlm.data.tasks import Row
from mrlm.environments.programs.code_collaboration.structure import parsed

PROBLEM = "class_problem"
"""Column with the problem of a row."""
DIVISION = "division"
"""Column with the names of the methods of each writer."""
NEEDED = ("skeleton", "test", "class_name", "methods_info")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Method:
    """A method to be written.

    Args:
        params: number of parameters, including `self`; -1 if variable.
        needs: other methods that the reference implementation calls.
        empty: whether the reference implementation has an empty body.
    """

    name: str
    params: int
    needs: Sequence[str] = ()
    empty: bool = False


@dataclass(frozen=True, slots=True)
class ClassProblem:
    """A class with its tests.

    Args:
        skeleton: source that all writers see.
        constructor: the given beginning of the class.
        tests: source of the test classes.
        cases: test class and method of each case.
        samples: sources of the first cases, which are shown.
        solution: the reference class, if there is one.
        sure: whether the solution is known to pass the cases in the sandbox.
    """

    name: str
    skeleton: str
    constructor: str
    imports: Sequence[str]
    methods: Sequence[Method]
    tests: str
    cases: Sequence[Sequence[str]]
    samples: Sequence[str] = ()
    solution: str | None = None
    sure: bool = False
    division: Sequence[Sequence[str]] | None = None
    column: ClassVar[str] = PROBLEM

    def record(self) -> dict[str, Any]:
        """The problem as plain JSON values, for `Task.info`."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any, where: str) -> "ClassProblem":
        """The problem of a record. Raises `ConfigError`: the record is not a valid problem."""
        try:
            methods = [Method(**method) for method in record["methods"]]
            return cls(**{**record, "methods": methods})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"{where} is not a class problem: {error!r}") from error

    @property
    def source(self) -> str:
        """The source of the test module, with the imports of the solution's module."""
        return "\n".join([*self.imports, "import unittest", self.tests])

    @property
    def question(self) -> str:
        """The prompt for all writers: the skeleton and the visible cases."""
        examples = [f"This must hold:\n{sample}" for sample in self.samples]
        return "\n".join(
            [f"Complete the class `{self.name}`.\n\n{self.skeleton.strip()}", *examples]
        )


def converted(row: Row, where: str, num_writers: int, num_visible: int, max_tests: int) -> Row:
    """A row with its problem in the column `class_problem` and its question in `prompt`. Raises
    `DataError`: the row is not in the form of ClassEval, or has fewer methods than writers."""
    missing = [name for name in NEEDED if row.get(name) is None]
    if missing:
        raise DataError(
            f"{where}: column {missing[0]!r} is missing; a row in the form of ClassEval has "
            f"task_id, skeleton, test, solution_code, import_statement, methods_info, class_name, "
            f"test_classes, class_constructor; this one has {', '.join(row)} (rename with columns)"
        )
    name = str(row["class_name"])
    skeleton = _class(str(row["skeleton"]), name, f"{where}, column 'skeleton'")
    solution = row.get("solution_code")
    honest = _class(solution, name, f"{where}, column 'solution_code'") if solution else None
    methods = _methods(row, skeleton, honest, where)
    if len(methods) < num_writers:
        raise DataError(
            f"{where}: the {len(methods)} methods of {name} cannot be divided among {num_writers} "
            "writers; use fewer agents, or set on_bad_row: skip"
        )
    imports = _items(row.get("import_statement") or [], f"{where}, column 'import_statement'")
    cases, sources = _cases(row, where, max_tests)
    raw_division = row.get(DIVISION)
    problem = ClassProblem(
        name=name,
        skeleton=str(row["skeleton"]),
        constructor=_constructor(row, skeleton, name),
        imports=[str(line) for line in imports],
        methods=methods,
        tests=str(row["test"]),
        cases=cases,
        samples=["\n".join(map(ast.unparse, node.body)) for node in sources[:num_visible]],
        solution=solution,
        sure=bool(row.get("sure")),
        division=None
        if raw_division is None
        else _items(raw_division, f"{where}, column {DIVISION!r}"),
    )
    return row | {"prompt": problem.question, PROBLEM: problem.record()}


def class_in(tree: ast.Module | None, name: str) -> ast.ClassDef | None:
    """The class of a name in a module."""
    classes = (n for n in (tree.body if tree else ()) if isinstance(n, ast.ClassDef))
    return next((node for node in classes if node.name == name), None)


def functions(node: ast.ClassDef) -> dict[str, FunctionNode]:
    """The methods of a class by name."""
    return {
        statement.name: statement for statement in node.body if isinstance(statement, FunctionNode)
    }


def num_params(node: FunctionNode) -> int:
    """Number of parameters of a function; -1 if variable."""
    spec = node.args
    several = spec.vararg is not None or spec.kwarg is not None
    return -1 if several else len(spec.posonlyargs) + len(spec.args) + len(spec.kwonlyargs)


def is_empty(node: FunctionNode) -> bool:
    """Whether a function body is empty: only a docstring, `pass`, `return None`, or a
    `NotImplementedError`."""
    for statement in node.body:
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        none = isinstance(statement, ast.Return) and (
            statement.value is None or ast.unparse(statement.value) == "None"
        )
        later = isinstance(statement, ast.Raise) and "NotImplemented" in ast.unparse(statement)
        if not (constant or none or later or isinstance(statement, ast.Pass)):
            return False
    return True


# -- columns ---------------------------------------------------------------------------------------


def _class(text: str, name: str, where: str) -> ast.ClassDef:
    tree = parsed(text)
    if definition := class_in(tree, name):
        return definition
    what = "not valid Python" if tree is None else f"class {name!r} is not defined"
    raise DataError(f"{where}: {what}")


def _methods(
    row: Row, skeleton: ast.ClassDef, honest: ast.ClassDef | None, where: str
) -> list[Method]:
    infos = _items(row["methods_info"], f"{where}, column 'methods_info'")
    stubs, written = functions(skeleton), functions(honest) if honest else {}
    methods: dict[str, Method] = {}
    for info in infos:
        name = info.get("method_name") if isinstance(info, dict) else None
        if name not in stubs:
            raise DataError(f"{where}, column 'methods_info': the skeleton has no method {name!r}")
        needs = (info.get("dependencies") or {}).get("method_dependencies") or []
        empty = name in written and is_empty(written[name])
        methods[name] = Method(name, num_params(stubs[name]), [str(need) for need in needs], empty)
    return list(methods.values())


def _cases(row: Row, where: str, max_tests: int) -> tuple[list[list[str]], list[FunctionNode]]:
    """At most `max_tests` cases of a row, spread evenly, and the trees of all but the last."""
    tree = parsed(str(row["test"]))
    if tree is None:
        raise DataError(f"{where}, column 'test': not valid Python")
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names = _items(row.get("test_classes") or [], f"{where}, column 'test_classes'")
    cases = [
        (group.name, name, node)
        for group in classes
        if group.name in names or not names
        for name, node in functions(group).items()
        if name.startswith("test")
    ]
    if len(cases) < 2:
        raise DataError(
            f"{where}, column 'test': {len(cases)} tests found; at least two are needed"
        )
    count = min(len(cases), max_tests)
    used = [cases[index * len(cases) // count] for index in range(count)]
    return [[group, name] for group, name, _ in used], [node for _, _, node in used[:-1]]


def _constructor(row: Row, skeleton: ast.ClassDef, name: str) -> str:
    """The beginning of the class: from the column, or from the skeleton."""
    column = str(row.get("class_constructor") or "")
    for text in (column, f"{column.rstrip()}\n    pass"):
        if class_in(parsed(text), name):
            return text
    statements = [
        n for n in skeleton.body if not isinstance(n, FunctionNode) or n.name == "__init__"
    ]
    body: list[ast.stmt] = statements or [ast.Pass()]
    bare = ast.ClassDef(name, skeleton.bases, skeleton.keywords, body, skeleton.decorator_list)
    bare.type_params = []  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(bare))


def _items(value: Any, where: str) -> list[Any]:
    """A list, which some files store as JSON or as a Python literal."""
    if isinstance(value, str) and re.match(r"\s*\[", value):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
                raise DataError(f"{where}: cannot be parsed as a list ({error})") from error
    if isinstance(value, str):
        return value.splitlines()
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: expected a list, not {type(value).__name__}")
    return list(value)
