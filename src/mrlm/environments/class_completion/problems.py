"""A class to be completed: its skeleton, its methods with their writers, and its unittest cases.
Rows are in the form of ClassEval. This module runs no program."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mrlm.core.errors import ConfigError, DataError
from mrlm.data.tasks import Row
from mrlm.environments.code_collaboration.structure import parsed

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
        name: its name.
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
        name: name of the class.
        skeleton: source that all writers see.
        constructor: the given beginning of the class.
        imports: given import statements.
        methods: methods to be written.
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
    def of(cls, record: Any, where: str) -> ClassProblem:
        """The problem of a record. Raises `ConfigError`: the record is not a valid problem."""
        try:
            methods = [Method(**each) for each in record["methods"]]
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
        shown = [f"This must hold:\n{sample}" for sample in self.samples]
        return "\n".join([f"Complete the class `{self.name}`.\n\n{self.skeleton.strip()}", *shown])


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
    given = row.get(DIVISION)
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
        division=None if given is None else _items(given, f"{where}, column {DIVISION!r}"),
    )
    return row | {"prompt": problem.question, PROBLEM: problem.record()}


def class_in(tree: ast.Module | None, name: str) -> ast.ClassDef | None:
    """The class of a name in a module."""
    classes = (n for n in (tree.body if tree else ()) if isinstance(n, ast.ClassDef))
    return next((node for node in classes if node.name == name), None)


def functions(node: ast.ClassDef) -> dict[str, FunctionNode]:
    """The methods of a class by name."""
    return {each.name: each for each in node.body if isinstance(each, FunctionNode)}


def num_params(node: FunctionNode) -> int:
    """Number of parameters of a function; -1 if variable."""
    spec = node.args
    several = spec.vararg is not None or spec.kwarg is not None
    return -1 if several else len(spec.posonlyargs) + len(spec.args) + len(spec.kwonlyargs)


def is_empty(node: FunctionNode) -> bool:
    """Whether a function body is empty: only a docstring, `pass`, `return None`, or a
    `NotImplementedError`."""
    for each in node.body:
        constant = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        none = isinstance(each, ast.Return) and (
            each.value is None or ast.unparse(each.value) == "None"
        )
        later = isinstance(each, ast.Raise) and "NotImplemented" in ast.unparse(each)
        if not (constant or none or later or isinstance(each, ast.Pass)):
            return False
    return True


# -- columns ---------------------------------------------------------------------------------------


def _class(text: str, name: str, where: str) -> ast.ClassDef:
    tree = parsed(text)
    if found := class_in(tree, name):
        return found
    what = "not valid Python" if tree is None else f"class {name!r} is not defined"
    raise DataError(f"{where}: {what}")


def _methods(
    row: Row, skeleton: ast.ClassDef, honest: ast.ClassDef | None, where: str
) -> list[Method]:
    infos = _items(row["methods_info"], f"{where}, column 'methods_info'")
    asked, written = functions(skeleton), functions(honest) if honest else {}
    found: dict[str, Method] = {}
    for info in infos:
        name = info.get("method_name") if isinstance(info, dict) else None
        if name not in asked:
            raise DataError(f"{where}, column 'methods_info': the skeleton has no method {name!r}")
        needs = (info.get("dependencies") or {}).get("method_dependencies") or []
        empty = name in written and is_empty(written[name])
        found[name] = Method(name, num_params(asked[name]), [str(each) for each in needs], empty)
    return list(found.values())


def _cases(row: Row, where: str, max_tests: int) -> tuple[list[list[str]], list[FunctionNode]]:
    """At most `max_tests` cases of a row, spread evenly, and the trees of all but the last."""
    tree = parsed(str(row["test"]))
    if tree is None:
        raise DataError(f"{where}, column 'test': not valid Python")
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    wanted = _items(row.get("test_classes") or [], f"{where}, column 'test_classes'")
    found = [
        (group.name, name, node)
        for group in classes
        if group.name in wanted or not wanted
        for name, node in functions(group).items()
        if name.startswith("test")
    ]
    if len(found) < 2:
        raise DataError(
            f"{where}, column 'test': {len(found)} tests found; at least two are needed"
        )
    count = min(len(found), max_tests)
    used = [found[place * len(found) // count] for place in range(count)]
    return [[group, name] for group, name, _ in used], [node for _, _, node in used[:-1]]


def _constructor(row: Row, skeleton: ast.ClassDef, name: str) -> str:
    """The beginning of the class: from the column, or from the skeleton."""
    given = str(row.get("class_constructor") or "")
    for text in (given, f"{given.rstrip()}\n    pass"):
        if class_in(parsed(text), name):
            return text
    kept = [n for n in skeleton.body if not isinstance(n, FunctionNode) or n.name == "__init__"]
    body: list[ast.stmt] = kept or [ast.Pass()]
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
