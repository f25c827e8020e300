"""Unlimited seeded problems with known answers: arithmetic, algebra, word problems and chains of
steps. Held-out problems differ from all training problems, for any seed."""

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mrlm.core.environment import Split
from mrlm.environments.shared.generators import chosen, difficulties, unordered
from mrlm.environments.shared.rows import is_held_out

LEVELS = (1, 5)
SIZES = {1: 12, 2: 50, 3: 200, 4: 1000, 5: 10_000}
"""Largest number in a problem, by difficulty."""
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo")
THINGS = ("apples", "books", "coins", "cards", "pens", "shells", "stamps", "beads")
STEPS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "+": ("Add", operator.add), "-": ("Subtract", operator.sub), "*": ("Multiply by", operator.mul),
    "/": ("Divide by", operator.floordiv),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A question with its answer.

    Args:
        difficulty: 1 (easy) to 5.
        solution: the steps that lead to the answer.
    """

    question: str
    answer: str
    difficulty: int
    family: str
    solution: str


Drawn = tuple[str, str, str]
"""Question, answer, solution."""


class MathProblemGenerator:
    """A generator of unlimited problems.

    Args:
        difficulty_range: lowest and highest difficulty, between 1 and 5.
        seed: generators with different seeds give different problems for the same problem seed.
        families: any of `arithmetic`, `algebra`, `word_problems`, `multi_step`; all of them when
            `None`.

    Raises:
        ConfigError: an impossible range or an unknown family.
    """

    def __init__(
        self,
        difficulty_range: Sequence[int] = (1, 3),
        seed: int = 0,
        families: Sequence[str] | None = None,
    ) -> None:
        self.difficulty_range: tuple[int, int] = difficulties(difficulty_range, *LEVELS)
        self.families: tuple[str, ...] = chosen(families, FAMILIES, "families")
        self.seed = seed

    def problem(self, seed: int, split: Split = "train") -> MathProblem:
        """The problem of a seed. A problem of `eval` never occurs in `train`, for any seeds."""
        rng = random.Random(f"math/{self.seed}/{split}/{seed}")
        while True:
            family = rng.choice(self.families)
            level = rng.randint(*self.difficulty_range)
            question, answer, solution = FAMILIES[family](rng, level)
            if is_held_out(unordered(question)) == (split == "eval"):
                return MathProblem(question, answer, level, family, solution)


# -- families --------------------------------------------------------------------------------------


def _arithmetic(rng: random.Random, level: int) -> Drawn:
    size = SIZES[level]
    kind = rng.choice("+-" if level == 1 else "+-*/" if level < 4 else "+-*/f")
    a, b = rng.randint(1, size), rng.randint(1, size)
    if kind == "f":
        return _fractions(rng, size // 100)
    if kind == "-":
        a, b = (max(a, b), min(a, b)) if level < 3 else (a, b)
        expression, value = f"{a} - {b}", a - b
    elif kind == "*":
        b = rng.randint(2, 12 * (level - 1))
        expression, value = f"{a} * {b}", a * b
    elif kind == "/":
        b = rng.randint(2, 12 * (level - 1))
        expression, value = f"{a * b} / {b}", a
    elif level >= 3 and rng.random() < 0.5:
        c = rng.randint(2, 9)
        expression, value = f"({a} + {b}) * {c}", (a + b) * c
        steps = f"{a} + {b} = {a + b}\n{a + b} * {c} = {value}"
        return f"What is {expression}?", str(value), steps
    else:
        expression, value = f"{a} + {b}", a + b
    return f"What is {expression}?", str(value), f"{expression} = {value}"


def _fractions(rng: random.Random, size: int) -> Drawn:
    first, second = (Fraction(rng.randint(1, size), rng.randint(2, size)) for _ in range(2))
    value = first + second
    expression = f"{first} + {second}"
    return f"What is {expression}, in lowest terms?", str(value), f"{expression} = {value}"


def _algebra(rng: random.Random, level: int) -> Drawn:
    return _inequality(rng, level) if rng.random() < 0.4 else _equation(rng, level)


def _equation(rng: random.Random, level: int) -> Drawn:
    x = rng.randint(1, 12) if level < 3 else rng.choice([-1, 1]) * rng.randint(1, 20)
    a, b = rng.randint(2, 3 + 2 * level), rng.randint(1, SIZES[level])
    if level == 1:
        return f"Solve for x: x + {b} = {x + b}", str(x), f"x = {x + b} - {b} = {x}"
    if level == 2:
        right = a * x + b
        steps = f"{a}x = {right} - {b} = {right - b}\nx = {x}"
        return f"Solve for x: {a}x + {b} = {right}", str(x), steps
    if level == 3 or rng.random() < 0.5:
        c = rng.randint(1, a - 1)
        right = (a - c) * x + b
        steps = f"{a - c}x = {right} - {b} = {right - b}\nx = {x}"
        return f"Solve for x: {a}x + {b} = {'' if c == 1 else c}x{_signed(right)}", str(x), steps
    other = x + rng.randint(1, 15)
    square = f"x^2{_signed(-x - other, 'x')}{_signed(x * other)}"
    steps = f"{square} = (x{_signed(-x)})(x{_signed(-other)})"
    return f"Find all x with {square} = 0.", f"{x}, {other}", steps


def _inequality(rng: random.Random, level: int) -> Drawn:
    x, b = rng.randint(1, 12 * level), rng.randint(1, SIZES[level])
    sign = rng.choice("<>")
    if level == 1:
        steps = f"x {sign} {x + b} - {b} = {x}"
        return f"Solve for x: x + {b} {sign} {x + b}", f"x {sign} {x}", steps
    a = rng.randint(2, 3 + 2 * level)
    if level == 2:
        right = a * x + b
        steps = f"{a}x {sign} {right} - {b} = {right - b}"
        return f"Solve for x: {a}x + {b} {sign} {right}", f"x {sign} {x}", steps
    turned = {"<": ">", ">": "<"}[sign]  # dividing by a negative number
    right = b - a * x
    steps = f"-{a}x {sign} {right} - {b} = {right - b}"
    return f"Solve for x: {b} - {a}x {sign} {right}", f"x {turned} {x}", steps


def _word_problem(rng: random.Random, level: int) -> Drawn:
    size = SIZES[level]
    one, two = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    a, b = rng.randint(2, size), rng.randint(2, size)
    if level == 1 and rng.random() < 0.5:
        a, b = max(a, b) + 1, min(a, b)
        question = (
            f"{one} has {a} {things} and gives {b} to {two}. "
            f"How many {things} does {one} have left?"
        )
        return question, str(a - b), f"{a} - {b} = {a - b}"
    if level == 1:
        question = (
            f"{one} has {a} {things} and {two} has {b}. How many {things} do they have together?"
        )
        return question, str(a + b), f"{a} + {b} = {a + b}"
    c = rng.randint(2, 4 + 2 * level)
    if level == 2 or rng.random() < 0.5:
        question = (
            f"{one} buys {c} boxes with {a} {things} each and gets {b} more from {two}. "
            f"How many {things} is that?"
        )
        return question, str(c * a + b), f"{c} * {a} = {c * a}\n{c * a} + {b} = {c * a + b}"
    d = rng.randint(1, c - 1)
    total = a * c
    question = (
        f"{c} boxes hold {total} {things}, the same number in each. "
        f"{one} takes {d} of the boxes and adds {b} {things}. "
        f"How many {things} does {one} have?"
    )
    steps = f"{total} / {c} = {a}\n{d} * {a} = {d * a}\n{d * a} + {b} = {d * a + b}"
    return question, str(d * a + b), steps


def _multi_step(rng: random.Random, level: int) -> Drawn:
    value = rng.randint(1, SIZES[level])
    parts, steps = [f"Start with {value}."], []
    for _ in range(level + 1):
        amount = rng.randint(2, SIZES[min(level, 2)])
        divisors = [n for n in range(2, 10) if value % n == 0 and value > n]
        kind = rng.choice("+-*" + "/" * bool(divisors))
        if kind == "-" and amount > value:
            kind = "+"
        if kind in "*/":
            amount = rng.randint(2, 9) if kind == "*" else rng.choice(divisors)
        words, compute = STEPS[kind]
        result = compute(value, amount)
        parts.append(f"{words} {amount}.")
        steps.append(f"{value} {kind} {amount} = {result}")
        value = result
    return " ".join([*parts, "What is the result?"]), str(value), "\n".join(steps)


def _signed(value: int, unit: str = "") -> str:
    if value == 0:
        return ""
    size = "" if unit and abs(value) == 1 else str(abs(value))
    return f" {'-' if value < 0 else '+'} {size}{unit}"


FAMILIES: dict[str, Callable[[random.Random, int], Drawn]] = {
    "arithmetic": _arithmetic, "algebra": _algebra, "word_problems": _word_problem,
    "multi_step": _multi_step,
}  # fmt: skip
