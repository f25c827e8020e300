"""Ways to write an answer, and values that are not it."""

from __future__ import annotations

from fractions import Fraction

WAYS: tuple[str, ...] = (
    "**{}**",
    "***{}***",
    "- **{}**",
    "1. **{}**",
    "[{}]",
    "| result |\n|---|\n| **{}** |",
    "\\boxed{{{}}}",
    "\\[ \\boxed{{{}}} \\]",
    "\\boxed {}",
    "\\boxed{{{}}}\n\\boxed{{}}",
    "#### {}",
    "The answer is {}.",
    "The answer is **{}**!",
    "**Answer:** ${}$",
    "Answer:\n\\[ {} \\]",
    "\\text{{ANSWER: }} \\${}",
    "### Final answer\n{}",
    "Therefore, the result is {}.",
    "So it is {}!",
    "`{}`",
    "$$\n{}\n$$",
    "x = {}",
)
"""The text after a solution, with the answer's place."""


def neighbours(answer: str) -> list[str]:
    """Twenty numbers that are not the one that `answer` writes."""
    value = Fraction(answer)
    others = [value + step for step in (1, -1, 2, -2, 10, -10, 100, -100, 1000)]
    others += [value * factor for factor in (-1, 10, 100, 1000, 2, 3, -10)]
    others += [value + Fraction(1, 10), value - Fraction(1, 2), 2 * value + 1]
    others += [7 * value - 3, value * value + 7, 5 * value + 11, value - 37, 11 * value + 5]
    distinct = [each for each in dict.fromkeys(others) if each != value][:20]
    return [str(each) if each.denominator == 1 else f"{float(each):.12g}" for each in distinct]
