"""GRPO: reward against the mean of the siblings, no critic; also Dr. GRPO, DAPO, GSPO, CISPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from mrlm.config.words import FlatWords
from mrlm.core.errors import ConfigError
from mrlm.core.types import Episode, Group, Rollout
from mrlm.learn import ops
from mrlm.learn.algorithm import STRICT, Need
from mrlm.learn.credit import (
    EPSILON,
    Key,
    all_members,
    assign,
    centred,
    clear,
    members,
    overlong_penalty,
    several,
    sides,
    standardised,
    trained_turns,
)
from mrlm.learn.policy_gradient import PolicyGradient
from mrlm.trainer import Trainer


def _scale(value: object) -> object:
    return {True: "group", False: "none"}[value] if isinstance(value, bool) else value


@dataclass(kw_only=True, config=STRICT)
class GRPO(PolicyGradient):
    """`A = (R - mean) / (std + 1e-6)` over the agent's own rollouts of one task (arXiv 2402.03300,
    section 4.1), the same for every token the agent wrote; then a clipped surrogate.

    With several agents each is compared with itself only, which keeps agents of different reward
    scales apart (Dr. MAS, arXiv 2602.08847). Groups whose rewards are all equal, or that have one
    member left, get exactly 0.

    `scale_rewards="group"` is what the name stands for; `"none"` with `loss_type="dr_grpo"` is Dr.
    GRPO (arXiv 2503.20783), which does not inflate groups that are nearly decided; `"batch"`
    divides by the deviation over all tasks. No reference is kept unless `kl_coef` is set, and then
    its divergence is part of the loss.

    Args:
        scale_rewards: what differences are divided by; `True` and `False` are `group` and `none`.
        key: who is compared with whom: every `agent` with itself; all agents of a `task` with one
            another (known as MAS-GRPO); or a mapping agent -> role, those of one role.
        rewards: what agents are compared by: their `own` rewards, or the `team`'s.
        mask_truncated: leave turns that ran into the token limit out of the loss (they still count
            in the baseline).
        overlong_max_length: completion length at which the soft penalty reaches -1 (DAPO); `None`
            is off.
        overlong_cache: tokens before that at which it begins.
        dynamic_sampling: leave out groups whose advantages are all 0, and play further tasks in
            their place until the batch is full (DAPO, arXiv 2503.14476, eq. 11). What was left out
            counts in the reward metrics. Tasks are used up faster then.
        max_refills: how often an iteration may take further tasks; after that the batch is smaller.
    """

    scale_rewards: Annotated[Literal["group", "batch", "none"] | bool, AfterValidator(_scale)] = (
        "group"
    )
    key: Key = "agent"
    rewards: Literal["own", "team"] = "own"
    mask_truncated: bool = False
    overlong_max_length: int | None = Field(default=None, ge=1)
    overlong_cache: int = Field(default=0, ge=0)
    dynamic_sampling: bool = False
    max_refills: int = Field(default=10, ge=1)
    group_size: int = Field(default=8, ge=2)

    requires: ClassVar[frozenset[Need]] = frozenset({"siblings"})
    scales: ClassVar[tuple[str, ...]] = ("group", "batch", "none")
    """The values of `scale_rewards` that fit who is compared here."""
    decides: ClassVar[tuple[str, ...]] = ()
    """Settings that an algorithm which refines this one does not leave open."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_rewards not in self.scales:
            raise ConfigError(
                f"scale_rewards={self.scale_rewards!r} does not fit what {type(self).__name__} "
                f"compares; set it to {' or '.join(self.scales)}"
            )
        for name in self.decides:
            if getattr(self, name) != (usual := type(self).__dataclass_fields__[name].default):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: {type(self).__name__} itself decides who is "
                    f"compared by what; leave it at {usual!r}, or use grpo, dr_mas or marshal"
                )
        if self.overlong_max_length is not None and self.overlong_cache > self.overlong_max_length:
            raise ConfigError(
                f"overlong_cache ({self.overlong_cache}) is larger than overlong_max_length "
                f"({self.overlong_max_length}); make it smaller"
            )

    @property
    def refills(self) -> int:
        return self.max_refills if self.dynamic_sampling else 0

    def keeps(self, group: Group) -> bool:
        clear([group])
        with self.reshaped([group]):
            self.credit_group(group)
        teaches = any(turn.advantages for episode in group for turn in episode.turns)
        clear([group])
        return teaches

    def score(self, episode: Episode, rollout: Rollout) -> float:
        """What a rollout is compared by: what was earned, and the penalty for length."""
        paid = episode.reward if self.rewards == "team" else rollout.reward
        return paid + self.too_long(sum(len(turn) for turn in rollout.turns))

    def too_long(self, length: int) -> float:
        """The penalty for so many tokens, from 0 down to -1."""
        if self.overlong_max_length is None:
            return 0.0
        return overlong_penalty(length, self.overlong_max_length, self.overlong_cache)

    def compared(self, scores: Sequence[float] | np.ndarray) -> np.ndarray:
        """Advantages (n,) of scores (n,) that are compared with one another."""
        row = np.asarray(scores)
        return standardised(row) if self.scale_rewards == "group" else centred(row)

    def credit_group(self, group: Group) -> None:
        for found in sides(members(group), self.key).values():
            advantages = np.zeros(len(found))
            if several(found):
                advantages = self.compared([self.score(*member) for member in found])
            for (_, rollout), advantage in zip(found, advantages, strict=True):
                assign(rollout, advantage)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        everyone = sides(all_members(groups), self.key)
        if self.scale_rewards == "batch":
            table = {
                side: np.array([self.score(*member) for member in found])
                for side, found in everyone.items()
            }
            moments = ops.global_moments(table)
            for side, found in everyone.items():
                for _, rollout in found:
                    for turn in trained_turns(rollout):
                        if turn.advantages is not None:
                            scale = moments[side].std + EPSILON
                            turn.advantages = float(turn.advantages) / scale  # type: ignore[arg-type]
        if self.mask_truncated:
            for found in everyone.values():
                for _, rollout in found:
                    for turn in trained_turns(rollout):
                        if turn.finish_reason == "length":
                            turn.advantages = None


@dataclass(kw_only=True, config=STRICT)
class GRPOConfig(FlatWords, GRPO):  # pyright: ignore[reportIncompatibleVariableOverride]
    """GRPO with the flat words of its trainer."""


class GRPOTrainer(Trainer):
    """Train with `GRPO` in one call."""

    algorithm = "grpo"


PLUGIN = GRPO
