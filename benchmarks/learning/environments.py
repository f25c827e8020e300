"""The environments of the learning curves, all with answers of one character."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.teams.settings import (
    ALL,
    CLIMBING,
    CONTEXTS,
    DEBATE,
    DIGITS,
    PAIR,
    SIGNAL_LETTERS,
    SIGNALLERS,
    SIGNALS,
    Arm,
    Words,
)

VALUE = "reward"
WORST = "worst case"
"""Reward against the best possible opponent: the exploitability with a minus sign."""


@dataclass(frozen=True, slots=True)
class Ground:
    """An environment that algorithms are trained in.

    Args:
        about: what it is.
        arm: its arguments, agents, and legal answers.
        tokens: that a run samples.
        batch: episodes of an iteration.
        measure: what the curves show, `VALUE` or `WORST`.
        share: of the base's rows with a habit: right answers if the arm `knows` them, else an
            answer drawn for each prompt.
    """

    about: str
    arm: Arm
    tokens: int
    batch: int = 64
    measure: str = VALUE
    share: float = 0.0


def joint(payoffs: Any, agents: tuple[str, ...]) -> Words:
    """A matrix game of one step."""
    return {
        "env_type": "matrix",
        "game": "custom",
        "payoffs": payoffs,
        "agents": list(agents),
        "illegal": 0.0,
    }


def nested(values: Any, count: int) -> Any:
    """A table that repeats `values` for every action of `count` further agents with 2 actions."""
    return values if count == 0 else [nested(values, count - 1)] * 2


def both(levels: int, right: bool = True) -> Any:
    """A table with the reward 1 where all of `levels` agents take the second action."""
    return float(right) if levels == 0 else [both(levels - 1, False), both(levels - 1, right)]


PARTNERS = ("key", "idle1", "idle2", "idle3")
FOUR = ("a", "b", "c", "d")
TURNS: Words = {**CONTEXTS, "contexts": 2, "rounds": 2, "reward": "own"}
DECIDES: Words = joint([nested(level, 3) for level in (0.0, 0.5, 1.0)], PARTNERS)

AND = Arm("and", joint(both(4), FOUR), FOUR, 4, {"": "AB"}, 1.0)
TABLES = Arm("contexts", CONTEXTS, PAIR, 2, ALL, 0.625)

GROUNDS: Mapping[str, Ground] = {
    "climbing": Ground(
        "two agents, one state, one step, one reward; the best joint action (1.00) has the worst "
        "ones beside it, and the safe equilibrium is worth .902",
        Arm("climbing", CLIMBING, PAIR, 2, ALL, 1.0),
        8192,
    ),
    "contexts": Ground(
        "`contextual_matrix`: the table of rewards is one of four, with stakes from .25 to 1, "
        "which both agents see; at best .625 over all contexts",
        TABLES,
        4096,
    ),
    "turns": Ground(
        "two rounds of `contextual_matrix` with two contexts; every turn is rewarded, and each "
        "agent has a table of its own",
        Arm("turns", TURNS, PAIR, 4, ALL, 0.0),
        6144,
    ),
    "signals": Ground(
        "`signalling`: a sender sees one of three states, a receiver only its signal; 1/3 "
        "without a code, at best 1",
        Arm("signals", SIGNALS, SIGNALLERS, 2, SIGNAL_LETTERS, 1.0),
        4096,
        share=0.6,
    ),
    "idle": Ground(
        "one agent's action decides (0, .5 or 1), those of three others never matter",
        Arm("idle", DECIDES, PARTNERS, 4, {"key": "ABC", "": "AB"}, 1.0),
        8192,
    ),
    "and": Ground(
        "four agents, rewarded if all choose `B`: a joint value that is monotone in every part, "
        "and of whose variance a sum explains a quarter; at best 1",
        AND,
        8192,
    ),
    "held": Ground(
        "`and` with policies that are held still (learning rate 1e-9), so that the critic alone "
        "learns",
        replace(AND, game="held"),
        65536,
        batch=512,
    ),
    "optimum": Ground(
        "`contexts` with the best joint action of every context as rows",
        replace(TABLES, game="optimum"),
        12288,
    ),
    "debate": Ground(
        "`noisy_debate`: two agents answer twice and read each other in between; a verifier, wrong "
        "in a fifth of its verdicts, rewards every answer; at best 1",
        Arm("debate", {**DEBATE, "share": "team"}, ("first", "second"), 4, DIGITS, 1.0),
        6144,
    ),
    "poker": Ground(
        "`kuhn_poker` in self-play, one policy in both roles; the curve is the reward against the "
        "best possible opponent, in chips a hand: 0 at an equilibrium, -.46 of a uniform player",
        Arm(
            "poker",
            {"env_type": "kuhn_poker", "style": "short"},
            ("first", "second"),
            3,
            {"": "pb"},
            0.0,
            policies="shared",
        ),
        16384,
        batch=128,
        measure=WORST,
    ),
}
"""Name -> environment."""
