"""Definitions and calls in a program by several writers, from its syntax tree. Runs no code, and
treats all text as untrusted."""

import ast
import warnings
from collections.abc import Sequence

MAX_PARSED = 20_000
"""Maximum number of characters of one writer's code; longer code is not parsed."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (*_FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_PASSING = (
    ast.arguments, ast.arg, ast.expr_context, ast.Name, ast.Constant, ast.Call, ast.keyword,
    ast.Return, ast.Assign, ast.AnnAssign, ast.Expr, ast.Starred, ast.Tuple, ast.Pass,
)  # fmt: skip
"""Node types of a function that only forwards its arguments."""


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of a text; `None` if it is not valid Python."""
    if len(code) > MAX_PARSED:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def function(tree: ast.Module | None, name: str) -> ast.FunctionDef | None:
    """The function finally bound to a name, if it can return a value."""
    if tree is None:
        return None
    definitions = [node for node in tree.body if isinstance(node, _FUNCTIONS) and node.name == name]
    last = definitions[-1] if definitions else None
    if not isinstance(last, ast.FunctionDef):
        return None
    values = [node.value for node in _own(last) if isinstance(node, ast.Return)]
    returns = [v for v in values if v and not (isinstance(v, ast.Constant) and v.value is None)]
    return last if returns else None


def binds(tree: ast.Module | None, name: str) -> bool:
    """Whether a text binds a name anywhere."""
    return any(_bound(node) == name for node in ast.walk(tree)) if tree is not None else False


def _bound(node: ast.AST) -> str | None:
    """The name that a node binds, if any."""
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.alias):
        return (node.asname or node.name).split(".")[0]
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, _NAMED) else None


def reached(trees: Sequence[ast.Module], entry: str) -> set[str]:
    """Names of the functions reachable from `entry` by calls."""
    defined: dict[str, ast.AST] = {}
    for tree in trees:
        defined |= {node.name: node for node in tree.body if isinstance(node, _FUNCTIONS)}
    waiting, names = [entry], set()
    while waiting:
        node = defined.get(waiting.pop())
        for called in _calls(node) - names if node is not None else ():
            names.add(called)
            waiting.append(called)
    return names


def is_thin(entry: ast.FunctionDef, others: Sequence[str]) -> bool:
    """Whether a function only forwards its arguments to one of the others."""
    body = list(entry.body)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    nodes = [node for statement in body for node in ast.walk(statement)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    only = all(isinstance(c.func, ast.Name) and c.func.id in others for c in calls)
    return len(calls) == 1 and only and all(isinstance(node, _PASSING) for node in nodes)


def _calls(node: ast.AST) -> set[str]:
    calls = (child for child in ast.walk(node) if isinstance(child, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def _own(node: ast.AST) -> list[ast.AST]:
    """The nodes of a function without those of nested functions and classes."""
    nodes, waiting = [], list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            nodes.append(child)
            waiting += ast.iter_child_nodes(child)
    return nodes
