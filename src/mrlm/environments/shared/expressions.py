"""Checks that text to be evaluated by a library is a literal or plain mathematics of bounded cost.
Nothing is evaluated here."""

from __future__ import annotations

import ast
import re

LONGEST = 2_000
"""Maximum number of characters of a value; a tenth of that for an expression."""
MOST_POWER = 1_000
FUNCTIONS = {
    *("sin", "cos", "tan", "exp", "log", "ln", "sqrt", "asin", "acos", "atan", "sinh", "cosh"),
    *("tanh", "sec", "csc", "cot", "pi", "Abs", "Rational"),
}
_TOKEN = re.compile(r"\s+|\d{1,12}(?:\.\d{1,12})?|[A-Za-z]+|\*\*|[-+*/^(),]")


def is_literal(text: str) -> bool:
    """Whether it is a Python literal, not valid Python (which evaluation rejects), or a word in
    capital letters, which is bound to nothing."""
    if len(text) > LONGEST:
        return False
    if text.isalpha() and text.isupper():
        return True
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (RecursionError, MemoryError):
        return False
    try:
        ast.literal_eval(text.strip())
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def is_mathematics(text: str) -> bool:
    """Whether it consists of numbers, variables of one letter, known functions and the four
    operations, with powers that stay small."""
    if len(text) > LONGEST // 10 or "\n" in text:
        return False
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None or (
            token[0].isalpha() and len(token[0]) > 1 and token[0] not in FUNCTIONS
        ):
            return False
        place = token.end()
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval")
        return power(tree.body) <= MOST_POWER
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def power(node: ast.AST) -> float:
    """The largest product of nested exponents; infinite if one is not a small number."""
    inside = max((power(child) for child in ast.iter_child_nodes(node)), default=1.0)
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
        return float("inf")
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Pow):
        return inside
    exponent = plain(node.right)
    return float("inf") if exponent is None else inside * max(1.0, abs(exponent))


def plain(node: ast.AST) -> float | None:
    """A number up to 100, or a fraction of such, with or without a sign; a variable counts as 1."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value) if node.value <= 100 else None
    if isinstance(node, ast.Name):
        return 1.0
    if isinstance(node, ast.UnaryOp):
        return plain(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        above, below = plain(node.left), plain(node.right)
        return above if above is not None and below else None
    return None
