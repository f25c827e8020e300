"""The settings of every algorithm for small games and small models. One without an entry here has
those that follow from its spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mrlm.core import registry

Words = Mapping[str, Any]
GAMES: dict[str, dict[str, Any]] = {
    "climbing": {"game": "climbing"},
    "penalty": {"game": "penalty", "k": -10},
    "xor": {"game": "xor"},
    "bandit": {"game": "bandit"},
}
"""Name -> arguments of the world `matrix`, whose rewards are normalised."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How one algorithm is tried.

    Args:
        settings: its own section.
        config: more keys of the experiment on the matrix games, laid over those that all share.
        learns_from: what it is given: `play` in the world, `rows` or `pairs` of the world's best
            joint action.
        world: more arguments of the world.
        games: matrix games in which the doctor examines it.
        relay: for those that are tried on `relay` too: keys that are laid over there, instead of
            `config`.
        relay_steps: iterations there; fewer where an iteration makes many updates.
    """

    settings: Words = field(default_factory=dict)
    config: Words = field(default_factory=dict)
    learns_from: Literal["play", "rows", "pairs"] = "play"
    world: Words = field(default_factory=dict)
    games: tuple[str, ...] = ("climbing", "penalty", "xor")
    relay: Words | None = None
    relay_steps: int = 300


GROUP: Words = {"group_size": 8}
CRITIC: Words = {"training.batch_size": 64, "training.critic_learning_rate": 1e-2}
"""Without siblings, as many episodes come from more tasks; and the critic is as small."""

MANY: Words = {"training.batch_size": 128}
"""The same where agents add numbers, as many episodes as 16 groups of 8."""

WIDE: Words = {"training.batch_size": 64}
"""With groups of 4: at a low temperature, more tasks teach more than more siblings."""

RATE: Words = {"training.learning_rate": 1e-3}

TABLE: dict[str, Entry] = {
    # from data
    "sft": Entry(
        {"teacher": "expert"},
        {"training.batch_size": 16},
        relay={"training.batch_size": 32, "training.learning_rate": 5e-4},
        relay_steps=100,
    ),
    "dpo": Entry({"rpo_alpha": 1.0}, RATE, learns_from="pairs"),
    "online_dpo": Entry({**GROUP, "beta": 0.5}),
    "madpo": Entry({**GROUP, "beta": 0.5}),
    "spin": Entry({"passes_per_round": 4, "rpo_alpha": 1.0}, learns_from="rows"),
    "malt": Entry(GROUP),
    "reward_model": Entry(config=RATE, learns_from="pairs"),
    # one agent, or each for itself
    "distill": Entry({**GROUP, "reward_weight": 1.0}),
    "reinforce": Entry(  # nothing clips its steps: at twice the rate one of five seeds was lost
        {"baseline": "mean"},
        {"training.batch_size": 64, **RATE},
        relay={**MANY, "training.learning_rate": 2e-4},
    ),
    "remax": Entry(GROUP),
    "rloo": Entry(GROUP, relay={**WIDE, "rloo.group_size": 4}),
    "grpo": Entry(GROUP, relay={**WIDE, "grpo.group_size": 4}),
    "reinforce_pp": Entry(config={"training.batch_size": 64}),
    "at_grpo": Entry(
        GROUP, {"workflow.name": "tree", "workflow.select": "best", "workflow.branches": 8}
    ),
    "ppo": Entry(config=CRITIC, relay=MANY, relay_steps=100),
    "sac": Entry({"target_entropy_ratio": 0.1}, CRITIC),
    # teams without a critic
    "magrpo": Entry(GROUP, relay={**WIDE, "magrpo.group_size": 4}),
    "mareinforce": Entry(GROUP),
    "marloo": Entry(GROUP),
    "maremax": Entry(GROUP),
    "c3": Entry({"group_size": 2, "alternatives": 1}, {"training.batch_size": 16}),
    "ccpo": Entry(GROUP),
    "sharp": Entry(GROUP),
    "m_grpo": Entry(GROUP),
    # teams with critics
    "ippo": Entry(config=CRITIC, relay=MANY, relay_steps=100),
    "mappo": Entry(config=CRITIC, relay=MANY, relay_steps=80),
    "happo": Entry({"update_epochs": 4}, CRITIC, relay=MANY, relay_steps=80),
    "marft": Entry(
        config={**CRITIC, **RATE},
        relay={**MANY, "training.learning_rate": 2e-4},
        relay_steps=80,
    ),
    "cory": Entry({"kl_coef": 0.01, "kl_target": None}, CRITIC),
    "vdn": Entry(config={**CRITIC, **RATE}),
    "qmix": Entry(config={"training.batch_size": 64, **RATE}),
    "dr_mas": Entry(GROUP),
    "spiral": Entry(config={"training.batch_size": 64}),
    "marshal": Entry(GROUP),
    "matpo": Entry(GROUP),
    "rema": Entry(GROUP),
    "a2c": Entry(config=CRITIC),
    "maporl": Entry({"num_minibatches": 1}, CRITIC),
    "router_r1": Entry({"num_minibatches": 1, "update_epochs": 4}, CRITIC),
}


def derived(name: str) -> Entry:
    """The entry of an algorithm that has none of its own."""
    algorithm = registry.load("algorithms", name)
    plan = algorithm().spec.sampling
    learns_from = "pairs" if plan.pairs else "rows" if plan.rows else "play"
    settings = GROUP if plan.siblings and "group_size" in algorithm.__dataclass_fields__ else {}
    return Entry(settings, {} if plan.siblings else CRITIC, learns_from)


TABLE |= {name: derived(name) for name in registry.names("algorithms") if name not in TABLE}
