"""What every algorithm is tried on and with which settings. An algorithm of the library that has no
entry here makes a test fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
        config: more keys of the experiment, laid over those that all share.
        learns_from: what it is given: `play` in the world, `rows` or `pairs` of the world's best
            joint action.
        world: more arguments of the world.
        games: on what it is tried.
        cannot: game -> why no improvement is expected there.
        relay: for those that are tried on `relay` too: keys that are laid over the rest there.
    """

    settings: Words = field(default_factory=dict)
    config: Words = field(default_factory=dict)
    learns_from: Literal["play", "rows", "pairs"] = "play"
    world: Words = field(default_factory=dict)
    games: tuple[str, ...] = ("climbing", "penalty", "xor")
    cannot: Mapping[str, str] = field(default_factory=dict)
    relay: Words | None = None


GROUP: Words = {"group_size": 8}
CRITIC: Words = {"training.batch_size": 64, "training.critic_learning_rate": 1e-2}
"""Without siblings, as many episodes come from more tasks; and the critic is as small."""

MANY: Words = {"training.batch_size": 128}
"""The same where agents add numbers, as many episodes as 16 groups of 8."""

TABLE: dict[str, Entry] = {
    "sft": Entry(
        {"teacher": "expert"},
        {"training.batch_size": 16},
        relay={"training.batch_size": 32, "training.learning_rate": 5e-4},
    ),
    "dpo": Entry(config={"training.learning_rate": 1e-3}, learns_from="pairs"),
    "reinforce": Entry(
        {"baseline": "mean"},
        {"training.batch_size": 64},
        relay={**MANY, "training.learning_rate": 2e-4},
    ),
    "rloo": Entry(GROUP, relay={"rloo.update_epochs": 4}),
    "grpo": Entry(GROUP, relay={"grpo.update_epochs": 4}),
    "ppo": Entry(config=CRITIC, relay=MANY),
    "ippo": Entry(config=CRITIC, relay=MANY),
    "mappo": Entry(config=CRITIC, relay={"mappo.update_epochs": 2}),
    "happo": Entry(config=CRITIC),
    "marft": Entry({"normalization": "token"}, {**CRITIC, "training.learning_rate": 2e-3}),
    "cory": Entry({"kl_coef": 0.05}, CRITIC),
    "magrpo": Entry(GROUP, relay={"training.learning_rate": 2e-4}),
    "mareinforce": Entry({"group_size": 8}),
    "marloo": Entry(GROUP),
    "maremax": Entry(GROUP),
    "reinforce_pp": Entry(config={"training.batch_size": 64}),
}
