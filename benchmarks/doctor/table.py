"""The planted diseases and the healthy runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Keys = Mapping[str, Any]
Base = Literal["team", "shared", "critic", "circle"]

STEPS = 32
"""Iterations of a run with a disease; of healthy runs on `relay`, too."""
ONSET = 11
"""First step of a disease that is planted while a run goes well."""
WITHIN = 20
"""Steps after its first in which a disease has to be found."""
HERE = "benchmarks.doctor"


@dataclass(frozen=True, slots=True)
class Disease:
    """A run with one defect.

    Args:
        about: what is wrong.
        rules: rules whose alarm is right.
        changes: keys of the experiment, laid over those of its base.
        base: the healthy run that it is otherwise.
        onset: its first step.
    """

    about: str
    rules: tuple[str, ...]
    changes: Keys = field(default_factory=dict)
    base: Base = "team"
    onset: int = ONSET


def _environment(name: str) -> Keys:
    return {"environments": [{"env_type": f"{HERE}.environments:{name}", "max_number": 5}]}


def _engine(name: str) -> Keys:
    return {"engine": {"name": f"{HERE}.engines:{name}"}}


def _algorithm(name: str) -> Keys:
    return {"training.algorithm": f"{HERE}.algorithms:{name}"}


DISEASES: dict[str, Disease] = {
    "constant reward": Disease(
        "every answer gets the reward 0.5", ("nothing_learned",), _environment("Constant")
    ),
    "plateau": Disease(
        "a quarter of the tasks gets 1 and the others 0.2, whatever the answers are",
        ("nothing_learned",),
        _environment("Tied"),
    ),
    "deaf listener": Disease(
        "`second` answers the same in all episodes of a task, whatever it reads",
        ("lazy_agent", "nothing_learned"),
        _engine("Deaf"),
    ),
    "tiny learning rate": Disease(
        "a learning rate of 1e-9", ("nothing_learned",), {"training.learning_rate": 1e-9}, onset=1
    ),
    "swapped sign": Disease("all advantages are negated", ("cliff",), _algorithm("Swapped")),
    "masked stop token": Disease(
        "the token that ends a completion is left out of the loss",
        ("template",),
        _algorithm("NoStop"),
    ),
    "mute agent": Disease("completions of `first` are empty", ("lazy_agent",), _engine("Mute")),
    "saboteur": Disease("`first` passes on random numbers", ("cliff",), _engine("Saboteur")),
    "stale sampler": Disease(
        "the engine keeps old weights and reports new ones", ("sampler",), _engine("Stale")
    ),
    "100x learning rate": Disease(
        "a learning rate of 1e-2 for 1e-4",
        ("cliff", "entropy", "nothing_learned"),
        {"training.learning_rate": 1e-2},
        onset=1,
    ),
    "hackable component": Disease(
        "answers that begin with 1 get a reward of 3, right answers 1",
        ("reward_hacking",),
        _environment("Styled") | {"training.learning_rate": 3e-4},
    ),
    "capture": Disease(
        "the advantages of `second` are 50 times as large, in one policy of both agents",
        ("capture",),
        _algorithm("Loud"),
        base="shared",
    ),
    "wrong template": Disease(
        "the chat template opens no turn of the assistant",
        ("template",),
        {"template": "closed"},
        onset=1,
    ),
    "truncated answers": Disease(
        "completions end after one token", ("length_bias",), _engine("Short")
    ),
    "idle critic": Disease(
        "a critic with a learning rate of 1e-9",
        ("critic",),
        {"training.critic_learning_rate": 1e-9},
        base="critic",
        onset=1,
    ),
    "one task": Disease(
        "every training task is the same", ("stale_data",), _environment("OneTask")
    ),
    "entropy collapse": Disease(
        "an entropy coefficient of -10 at a learning rate of 5e-4",
        ("entropy",),
        {"grpo.entropy_coef": -10.0, "training.learning_rate": 5e-4},
        onset=1,
    ),
    "entropy explosion": Disease(
        "an entropy coefficient of 2 at a learning rate of 5e-4",
        ("entropy",),
        {"grpo.entropy_coef": 2.0, "training.learning_rate": 5e-4},
        onset=1,
    ),
    "circle": Disease(
        "self-play of rock, paper, scissors in which every snapshot beats the one before",
        ("circles",),
        _engine("Circling"),
        base="circle",
        onset=1,
    ),
}

REAL: dict[str, tuple[str, ...]] = {
    "relay/one": ("nothing_learned",),
    "chain/team": ("lazy_agent", "nothing_learned"),
    "guess/team": ("lazy_agent", "nothing_learned"),
    "guess, entropy bonus/team": ("entropy", "lazy_agent", "nothing_learned", "reward_hacking"),
    "guess, baseline by role/team": ("lazy_agent", "nothing_learned"),
    "guess, IPPO/team": ("lazy_agent", "nothing_learned"),
    "plan path/team": ("nothing_learned",),
    "solver and checker/team": ("nothing_learned",),
}
"""Arm of `benchmarks.real` that goes wrong -> rules whose alarm is right; all others are well."""

CONTROLS: tuple[Base, ...] = ("team", "shared", "critic")
"""The bases of the diseases themselves; that of `circle` is its own disease."""

GAMES = {"climbing": 2, "xor": 1, "penalty": 1}
"""Matrix games of the learning benchmark -> seeds of each algorithm."""
EPISODES = 64
"""Of an evaluation."""

NOTES: dict[str, str] = {
    f"{rule}: vdn-climbing": "The alarm is right: in one step the reward falls from 0.82 to 0.02, "
    "and for the rest of the run both agents write nothing."
    for rule in ("cliff", "entropy", "lazy_agent")
}
"""`missed: DISEASE`, or a rule and a run -> why; found by looking at the runs."""
