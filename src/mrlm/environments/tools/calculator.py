"""A calculator that is safe for model-written text: it evaluates the expression's syntax tree and
bounds every number before computing it."""

import ast
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

from mrlm.environments.tools.tool import ToolError

MAX_LENGTH = 500
"""Characters of an expression."""
MAX_BITS = 1024
"""Maximum size of a whole number in bits: about 308 digits."""
MAX_DEPTH = 40
MAX_NODES = 300
MAX_FACTORIAL = 100

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def _factorial(n: Number) -> int:
    if not isinstance(n, int) or not 0 <= n <= MAX_FACTORIAL:
        raise ToolError(f"factorial takes a whole number from 0 to {MAX_FACTORIAL}")
    return math.factorial(n)


def _round(x: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 30:
        raise ToolError("round takes a whole number of digits, at most 30")
    return round(x, digits) if digits else round(x)


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int):
        if abs(base) > 1 and abs(exponent) * base.bit_length() > 2 * MAX_BITS:
            raise ToolError("the result is too large")
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
    value = base**exponent
    if isinstance(value, complex):
        raise ToolError("the result is no real number")
    return value


_NAMES = ["ceil", "cos", "exp", "floor", "gcd", "log", "log10", "log2", "sin", "sqrt", "tan"]
_OWN = {"abs": abs, "factorial": _factorial, "max": max, "min": min, "pow": _power, "round": _round}
FUNCTIONS: dict[str, Callable[..., Any]] = dict(
    sorted([*_OWN.items(), *((name, getattr(math, name)) for name in _NAMES)])
)


def calculate(expression: str) -> str:
    """Compute an arithmetic expression, such as (3 + 4) * 2 or sqrt(16).

    Args:
        expression: numbers, + - * / // % **, brackets, pi, e, and functions such as sqrt or round

    Raises:
        ToolError: the expression is invalid, or its value is too large or not a number.
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"an expression is at most {MAX_LENGTH} characters long")
    _flat(expression)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("this is no arithmetic expression") from error
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ToolError(f"an expression has at most {MAX_NODES} parts")
    try:
        return repr(_value(tree.body, 0))
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except OverflowError as error:
        raise ToolError("the result is too large") from error
    except (ValueError, TypeError) as error:
        raise ToolError(f"this cannot be computed ({str(error)[:60]})") from error


def _flat(expression: str) -> None:
    """Reject deeply nested brackets and control characters before parsing."""
    depth = 0
    for character in expression:
        depth += (character == "(") - (character == ")")
        if depth > MAX_DEPTH:
            raise ToolError(f"brackets are nested at most {MAX_DEPTH} levels deep")
        if not character.isprintable() and character not in " \t\n":
            raise ToolError("an expression holds printable characters only")


def _value(node: ast.expr, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ToolError(f"an expression is nested at most {MAX_DEPTH} levels deep")
    if isinstance(node, ast.Constant):
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        if node.id not in CONSTANTS:
            names = ", ".join(CONSTANTS)
            raise ToolError(f"there is no {node.id[:20]!r} here (there are: {names})")
        return CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _bounded(_UNARY[type(node.op)](_value(node.operand, depth + 1)))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        if isinstance(node.op, ast.Pow):
            return _bounded(_power(left, right))
        if isinstance(node.op, ast.BitXor):
            raise ToolError("powers are written with **, not ^")
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = FUNCTIONS.get(node.func.id)
        if function is None:
            names = ", ".join(FUNCTIONS)
            raise ToolError(f"there is no function {node.func.id[:20]!r} (there are: {names})")
        return _bounded(function(*(_value(one, depth + 1) for one in node.args)))
    raise ToolError("only numbers, + - * / // % **, brackets and functions are understood")


def _bounded(value: Any) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolError("only numbers are understood")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolError("the result is too large")
    if not math.isfinite(value):
        raise ToolError("the result is too large or no number")
    return value
