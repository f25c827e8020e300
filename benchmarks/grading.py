"""The cost of grading: answers in mathematics, short answers and programs. It uses names only that
earlier revisions have too, so that `--against` can measure those."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rows import Bench, Result
from mrlm.core.registry import load
from mrlm.core.stepping import is_pending
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role

WORK = "She sells 48 clips in April and half as many in May: 48 / 2 = 24.\nTogether 48 + 24 = 72.\n"
WAYS = (
    "{work}#### {a}", "{work}The answer is {a}.", "{work}So she sold \\boxed{{{a}}} clips.",
    "{work}**{a}**", "{work}Answer: ${a}", "{work}", "{a}", "I do not know.",
)  # fmt: skip
EQUAL = (
    ("\\frac{{{a}\\sqrt{{2}}}}{{7}}", "\\frac{{\\sqrt{{2}} \\cdot {a}}}{{7}}"),
    ("{a}\\sqrt{{3}}", "\\sqrt{{3}} \\cdot {a}"),
    ("x^2 + {a}", "{a} + x^2"),
    ("x^2 + {a}", "{a} - x^2"),
)
"""Right answers, and answers that need computer algebra."""
SIBLINGS = 4
"""Answers to a question."""
SOLUTION = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x * {factor}\n"
TESTS = [f"assert total([{n}, {n + 1}]) == {2 * n + 1}" for n in range(4)]


def stages(root: Path, quick: bool = False, models: Path | None = None) -> dict[str, float]:
    """Kind of answers -> seconds of an answer: of processor time, and by the clock where other
    processes grade.

    Args:
        root, models: unused; the library of the process is measured.
        quick: a few answers only.
    """
    count = 4 if quick else 64
    return {
        "math": _seconds("math", _math, count, time.process_time, instruction=""),
        "math, algebra": _seconds("math", _algebra, count // 4, time.perf_counter),
        "qa": _seconds("qa", _names, count, time.process_time),
        "code": _seconds("code", _code, count // 4, time.perf_counter),
    }


def _math(n: int) -> tuple[dict[str, Any], str]:
    question = n // SIBLINGS
    row = {"prompt": f"How many, {question}?", "answer": f"#### {question}"}
    return row, WAYS[n % len(WAYS)].format(work=WORK, a=question)


def _algebra(n: int) -> tuple[dict[str, Any], str]:
    gold, text = (each.format(a=n + 2) for each in EQUAL[n % len(EQUAL)])
    return {"prompt": f"What, {n}?", "answer": gold}, f"\\boxed{{{text}}}"


def _names(n: int) -> tuple[dict[str, Any], str]:
    row = {"question": f"Who, {n}?", "answer": f"Ann {n}"}
    return row, f"It was <answer>the Ann {n}</answer>"


def _code(n: int) -> tuple[dict[str, Any], str]:
    row = {"prompt": f"Sum, {n}.", "code": "", "test_list": TESTS}
    return row, f"```python\n{SOLUTION.format(factor=1 + n % 2)}    return result\n```"


def _seconds(
    name: str,
    make: Callable[[int], tuple[dict[str, Any], str]],
    count: int,
    clock: Any,
    **more: Any,
) -> float:
    """Seconds of an answer: the least of five rounds after one that is not counted. Each round has
    other rows, so that no verdict is remembered."""

    async def played(number: int) -> float:
        rows, texts = zip(*(make(number * count + n) for n in range(count)), strict=True)
        env = load("environments", name)(dataset=[*rows], eval_dataset=[*rows], **more)
        total = 0.0
        for place, text in enumerate(texts):
            twin = env.spawn()
            began = twin.reset(env.task(place), 0)
            _ = await began if is_pending(began) else began
            message = Message(text, Role.ASSISTANT)
            start = clock()
            result = twin.step({twin.agents[0]: message})
            _ = await result if is_pending(result) else result
            total += clock() - start
        return total / count

    _, *rounds = [run_async(played(number)) for number in range(6)]
    return min(rounds)


def row(bench: Bench) -> Result:
    """Milliseconds of an answer of each kind, added."""
    clock = bench.clock()
    with clock.applied():
        parts = stages(Path.cwd(), bench.quick)
    result = Result(threads=clock.threads, clock="processor, wall", rounds=5)
    result.value = 1000 * sum(parts.values())
    result.note = ", ".join(f"{name} {1000 * each:.2f} ms" for name, each in parts.items())
    return result
