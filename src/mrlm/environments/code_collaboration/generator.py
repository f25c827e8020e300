"""Unlimited generated problems for two writers: `aux` handles one item, and the entry point applies
it to all items."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.environment import Split
from mrlm.environments.code.problems import CodeProblem
from mrlm.environments.code.templates import compiled
from mrlm.environments.shared.rows import is_held_out

WORDS = ("level", "stone", "radar", "audio", "sky", "noon", "queue", "tree", "civic", "rhythm")


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A kind of problem, where `{k}` is a number that varies.

    Args:
        asked: description of the entry point.
        aux: description of `aux`.
        entries: names and parameters of the entry point.
        aux_code, main_code: the reference solution by two writers; `{f}` is the entry point.
        args: samples the arguments of one call.
        k: possible values of the number.
    """

    asked: str
    aux: str
    entries: tuple[str, ...]
    parameter: str
    aux_code: str
    main_code: str
    args: Callable[[random.Random], Any]
    k: Sequence[int] = range(2, 13)


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(0, 99) for _ in range(rng.randint(3, 8))]


def _words(rng: random.Random) -> list[str]:
    return rng.choices(WORDS, k=rng.randint(3, 8))


def _limit(rng: random.Random) -> int:
    return rng.randint(10, 60)


PLANS = (
    ProgramPlan(
        "Return the numbers of the list nums whose digits add up to more than {k}, in their order.",
        "the sum of the digits of a number",
        ("heavy", "large_sums", "weighty"),
        "nums",
        "def aux(n):\n    return sum(int(d) for d in str(n))",
        "def {f}(nums):\n    return [n for n in nums if aux(n) > {k}]",
        _numbers,
    ),
    ProgramPlan(
        "Return {k} times the number of vowels (a, e, i, o, u) in all words of the list words.",
        "the number of vowels in a word",
        ("vowel_score", "loudness", "sound"),
        "words",
        "def aux(word):\n    return sum(c in 'aeiou' for c in word)",
        "def {f}(words):\n    return {k} * sum(aux(word) for word in words)",
        _words,
    ),
    ProgramPlan(
        "Return {k} more than the number of words of the list words that read the same backwards.",
        "whether a word reads the same backwards",
        ("mirrors", "both_ways", "same_back"),
        "words",
        "def aux(word):\n    return word == word[::-1]",
        "def {f}(words):\n    return {k} + sum(1 for word in words if aux(word))",
        _words,
    ),
    ProgramPlan(
        "Return the list of numbers from 1 to limit that have exactly {k} divisors.",
        "the number of divisors of a number",
        ("with_divisors", "busy", "divided"),
        "limit",
        "def aux(n):\n    return sum(n % d == 0 for d in range(1, n + 1))",
        "def {f}(limit):\n    return [n for n in range(1, limit + 1) if aux(n) == {k}]",
        _limit,
        k=(2, 3, 4, 5, 6, 8),
    ),
    ProgramPlan(
        "Return the sum of n * n + {k} over the even numbers n of the list nums.",
        "n * n + {k} for a number n",
        ("even_total", "sum_even", "add_even"),
        "nums",
        "def aux(n):\n    return n * n + {k}",
        "def {f}(nums):\n    return sum(aux(n) for n in nums if n % 2 == 0)",
        _numbers,
    ),
    ProgramPlan(
        "Return how many neighbours in the list nums are at least {k} apart.",
        "the distance of two numbers",
        ("far_apart", "jumps", "leaps"),
        "nums",
        "def aux(a, b):\n    return abs(a - b)",
        "def {f}(nums):\n    return sum(aux(a, b) >= {k} for a, b in zip(nums, nums[1:]))",
        _numbers,
    ),
)


def problem(
    seed: str, split: Split, num_visible: int, num_hidden: int
) -> tuple[CodeProblem, list[str]]:
    """A problem, and the reference codes of two writers. Held-out problems never occur in training,
    for any seed."""
    rng = random.Random(f"code_collaboration/{split}/{seed}")
    while True:
        plan = rng.choice(PLANS)
        k = rng.choice(plan.k)
        if is_held_out(f"{plan.asked} {k}") == (split == "eval"):
            break
    entry = rng.choice(plan.entries)
    codes = [part.format(f=entry, k=k) for part in (plan.aux_code, plan.main_code)]
    solve = compiled("\n\n".join(codes), entry)
    tests: list[Any] = []
    while len({repr(result) for _, result in tests}) < 2:
        drawn = (plan.args(rng) for _ in range(num_visible + num_hidden))
        tests = [[[args], solve(args)] for args in drawn]
    text = (
        f"Write a Python function `{entry}({plan.parameter})`. {plan.asked.format(k=k)} A function "
        f"`aux` may give {plan.aux.format(k=k)}."
    )
    whole = "\n\n".join(codes)
    return CodeProblem(text, "calls", tests, entry, num_visible, solution=whole), codes
