"""Unlimited generated problems for two writers: `aux` handles one item, and the entry point applies
it to all items."""

import random
from collections.abc import Callable
from typing import Any

from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.environments.programs.code.problems import CodeProblem
from mrlm.environments.programs.code.templates import compiled
from mrlm.environments.shared.rows import is_held_out

WORDS = ("level", "stone", "radar", "audio", "sky", "noon", "queue", "tree", "civic", "rhythm")


SAMPLERS: dict[str, Callable[[random.Random], Any]] = {
    "numbers": lambda rng: [rng.randint(0, 99) for _ in range(rng.randint(3, 8))],
    "words": lambda rng: rng.choices(WORDS, k=rng.randint(3, 8)),
    "limit": lambda rng: rng.randint(10, 60),
}
PLANS = content(__file__, "plans.yaml")


def problem(
    seed: str, split: Split, num_visible: int, num_hidden: int
) -> tuple[CodeProblem, list[str]]:
    """A problem, and the reference codes of two writers. Held-out problems never occur in training,
    for any seed."""
    rng = random.Random(f"code_collaboration/{split}/{seed}")
    while True:
        plan = rng.choice(PLANS)
        k = rng.choice(plan.get("k", range(2, 13)))
        if is_held_out(f"{plan['asked']} {k}") == (split == "eval"):
            break
    entry = rng.choice(plan["entries"])
    codes = [part.format(f=entry, k=k) for part in (plan["aux_code"], plan["main_code"])]
    solve = compiled("\n\n".join(codes), entry)
    tests: list[Any] = []
    while len({repr(result) for _, result in tests}) < 2:
        drawn = (SAMPLERS[plan["args"]](rng) for _ in range(num_visible + num_hidden))
        tests = [[[args], solve(args)] for args in drawn]
    text = (
        f"Write a Python function `{entry}({plan['parameter']})`. {plan['asked'].format(k=k)} "
        f"A function `aux` may give {plan['aux'].format(k=k)}."
    )
    whole = "\n\n".join(codes)
    return CodeProblem(text, "calls", tests, entry, num_visible, solution=whole), codes
