"""Assignment of the methods of a class to writers, and merging of their code into one class. Syntax
trees are edited, code is never run."""

import ast
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mrlm.core.errors import ConfigError
from mrlm.environments.programs.class_completion.problems import (
    ClassProblem,
    FunctionNode,
    Method,
    class_in,
    functions,
    is_empty,
    num_params,
)
from mrlm.environments.programs.code.answers import refusal
from mrlm.environments.programs.code_collaboration.structure import parsed

Division = Literal["parameters", "dependency"]


def divided(
    problem: ClassProblem, num_writers: int, by: Division | Sequence[Sequence[str]]
) -> list[list[str]]:
    """Names of the methods of each writer: every method once, in numbers as equal as possible.

    Args:
        problem: the class; its own division takes precedence over `by`.
        by: `parameters`: the first writer gets the methods with the fewest parameters;
            `dependency`: those that depend on no others; or lists of names, one per writer.

    Raises:
        ConfigError: the names do not match the methods of the class.
    """
    choice = problem.division if problem.division is not None else by
    if not isinstance(choice, str):
        return _listed(problem, num_writers, choice)
    ranks = _depths(problem.methods)
    if choice == "parameters":
        ranks = {method.name: method.params % 1_000 for method in problem.methods}
    ordered = sorted(problem.methods, key=lambda method: ranks[method.name])
    names, parts = [method.name for method in ordered], []
    least, more = divmod(len(names), num_writers)
    for writer in range(num_writers):
        size = least + (writer < more)
        parts.append(names[:size])
        names = names[size:]
    return parts


def _listed(
    problem: ClassProblem, num_writers: int, division: Sequence[Sequence[str]]
) -> list[list[str]]:
    parts = [[part] if isinstance(part, str) else list(part) for part in division]
    flat = sorted(name for part in parts for name in part)
    names = sorted(method.name for method in problem.methods)
    if len(parts) != num_writers or flat != names or not all(parts):
        raise ConfigError(
            f"class {problem.name}: the division {parts} must give each of {num_writers} writers "
            f"some of the methods {', '.join(names)}, and each method to one writer"
        )
    return parts


def _depths(methods: Sequence[Method]) -> dict[str, int]:
    """Depth of each method's dependencies: 0 for a method without any. In a cycle no method counts
    twice."""
    needs: Mapping[str, Sequence[str]] = {method.name: method.needs for method in methods}

    def depth(name: str, above: frozenset[str]) -> int:
        below = [need for need in needs.get(name, ()) if need in needs and need not in above]
        return max((1 + depth(need, above | {need}) for need in below), default=0)

    return {name: depth(name, frozenset({name})) for name in needs}


@dataclass(slots=True)
class SubmittedCode:
    """The code that one writer submitted.

    Args:
        methods: name -> its definition.
        attributes: assignments in the body of the class.
        before: imports, functions, classes and assignments before the class.
    """

    methods: dict[str, FunctionNode] = field(default_factory=dict)
    attributes: list[ast.stmt] = field(default_factory=list)
    before: list[ast.stmt] = field(default_factory=list)


def read(code: str, problem: ClassProblem) -> SubmittedCode | None:
    """Parse a writer's code: a class of this name, or methods alone, indented or not; an empty part
    for empty code, `None` if it is not valid Python."""
    if not code.strip():
        return SubmittedCode()
    if refusal(code):
        return None
    tree = parsed(code) or parsed(textwrap.dedent(code))
    if tree is None:  # methods indented as in a class, the first one with or without its indent
        tree = parsed(f"class {problem.name}:\n    {code.lstrip()}")
    if tree is None:
        return None
    part, names = SubmittedCode(), {method.name for method in problem.methods}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == problem.name:
            part.methods |= functions(node)
            part.attributes += [n for n in node.body if isinstance(n, ast.Assign | ast.AnnAssign)]
        elif isinstance(node, FunctionNode) and (node.name in names or _is_method(node)):
            part.methods[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, FunctionNode, ast.Assign)):
            part.before.append(node)
    return part


def is_valid(method: Method, node: FunctionNode | None) -> bool:
    """Whether a method is defined, has the required parameters, and is not empty."""
    if node is None or (is_empty(node) and not method.empty):
        return False
    return num_params(node) in (method.params, -1) or method.params == -1


def overlaps(parts: Sequence[SubmittedCode], division: Sequence[Sequence[str]]) -> list[set[str]]:
    """For each writer, the methods it wrote that are assigned to another."""
    every = {name for names in division for name in names}
    return [
        every & set(part.methods) - set(names) for part, names in zip(parts, division, strict=True)
    ]


def merged(
    problem: ClassProblem, parts: Sequence[SubmittedCode], division: Sequence[Sequence[str]]
) -> str | None:
    """The whole class: the given constructor, every method from the writer it is assigned to, and
    the writers' own helpers, the first where two have the same name. A writer's version of another
    writer's method, of the constructor or of special class attributes is dropped.

    Returns:
        The source of the module, or `None` if it cannot be generated.
    """
    head = parsed("\n".join([*problem.imports, problem.constructor]))
    whole = class_in(head, problem.name)
    if head is None or whole is None:
        return None
    taken = {name for names in division for name in names}
    body = [n for n in whole.body if not (isinstance(n, FunctionNode) and n.name in taken)]
    before = [n for n in head.body if n is not whole]
    for part, names in zip(parts, division, strict=True):
        before += part.before
        body += part.attributes
        body += [part.methods[name] for name in names if name in part.methods]
    for part in parts:
        for name, node in part.methods.items():
            if name not in taken and not name.startswith("__"):
                taken.add(name)
                body.append(node)
    whole.body = body or [ast.Pass()]
    try:
        return ast.unparse(ast.fix_missing_locations(ast.Module([*before, whole], [])))
    except (RecursionError, ValueError):
        return None


def honest(problem: ClassProblem, division: Sequence[Sequence[str]]) -> list[str] | None:
    """Reference submissions: each writer's methods of the solution, the first writer's with
    everything else in it."""
    tree = parsed(problem.solution) if problem.solution else None
    whole = class_in(tree, problem.name)
    if tree is None or whole is None:
        return None
    all_names = {name for names in division for name in names}
    written = functions(whole)
    codes = []
    for index, names in enumerate(division):
        body: list[ast.stmt] = [written[name] for name in names if name in written]
        before: list[ast.stmt] = []
        if index == 0:
            extra = [n for name, n in written.items() if name not in all_names | {"__init__"}]
            body = [*(n for n in whole.body if isinstance(n, ast.Assign)), *extra, *body]
            before = [n for n in tree.body if n is not whole]
        part = ast.ClassDef(problem.name, [], [], body or [ast.Pass()], [])
        part.type_params = []  # type: ignore[attr-defined]
        module = ast.Module([*before, part], [])
        codes.append(ast.unparse(ast.fix_missing_locations(module)))
    return codes


def _is_method(node: FunctionNode) -> bool:
    return bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
