"""GRPO: reward relative to the group mean, no critic; also Dr. GRPO, DAPO, GSPO, CISPO.

- **Kind** one agent, or independent agents
- **Paper** arXiv 2402.03300; Dr. GRPO 2503.20783, DAPO 2503.14476, GSPO 2507.18071, CISPO
  2506.13585.
- **Formula** `A = (R - mean) / (std + 1e-6)` over an agent's answers to one task; `clip(A)`, k3 in
  the loss where `kl_coef` is set.
- **Knobs** plan: `chain(G)`; group: task and agent; baseline: mean / deviation (`scale_rewards`:
  group, batch, none); loss: token ratio, or `loss_type: dapo | dr_grpo | gspo | cispo | ...`;
  bounds for negative advantages (`dual_clip`, `delta`); `recompute_old`, `importance` and
  `kl_bias_correction` for off-policy samples.
- **Differs** from the papers: tokens are averaged over the batch (`loss_type: ppo`, of which `dapo`
  and `bnpo` are other names) and not over sequences first; no divergence; groups of 8. The others
  are presets of this one: `dr_grpo`, `dapo`, `gspo`, `cispo`, `deepseek_r1`, and `grpo` for its own
  paper. With several agents each has its own groups.
- **Use it** first: no critic, few settings. `scale_rewards: none` does not inflate groups that are
  nearly decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import SEVERAL_AGENTS, Matters
from mrlm.core.types import Rollout
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.bases.steps import GroupFilter
from mrlm.learn.credit.explain import against, because
from mrlm.learn.credit.groups import (
    EPSILON,
    Key,
    Member,
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


def _scale(value: object) -> object:
    return {True: "group", False: "none"}[value] if isinstance(value, bool) else value


@settings
class GroupRelative(Algorithm, GroupFilter):
    """Base of algorithms that compare the rollouts of one task with one another, and leave the loss
    to a second base. A refinement gives other scores (`score`) or comparison (`credit_group`).

    Args:
        scale_rewards: standard deviation to divide by; `True` and `False` are `group` and `none`.
        key: who is compared with whom: every `agent` with itself; all agents of a `task` with one
            another (known as MAS-GRPO); or a mapping agent -> role, those of one role.
        rewards: rewards that are compared: the agent's `own`, or the `team`'s.
        mask_truncated: leave turns that hit the token limit out of the loss (not of the baseline).
        overlong_max_length: completion length at which the soft penalty reaches -1 (DAPO); `None`
            is off.
        overlong_cache: tokens before that at which it begins.
        dynamic_sampling: leave out groups whose advantages are all 0, and sample further tasks
            until the batch is full (DAPO, arXiv 2503.14476, eq. 11). Groups left out count in the
            reward metrics. Tasks are consumed faster.
        max_refills: how often an iteration may sample further tasks; then the batch is smaller.
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

    scales: ClassVar[tuple[str, ...]] = ("group", "batch", "none")
    """The values of `scale_rewards` that this algorithm supports."""
    decides: ClassVar[tuple[str, ...]] = ()
    """Settings that a subclass fixes at their defaults."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "key": SEVERAL_AGENTS,
        "rewards": SEVERAL_AGENTS,
        "overlong_cache": Matters(
            lambda s, run: s.overlong_max_length is not None,
            "overlong_max_length is not set; set it, or remove this",
        ),
        "max_refills": Matters(
            lambda s, run: s.dynamic_sampling, "dynamic_sampling is off; set it, or remove this"
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_rewards not in self.scales:
            raise ConfigError(
                f"scale_rewards={self.scale_rewards!r} is not supported by {type(self).__name__}; "
                f"set it to {' or '.join(self.scales)}"
            )
        for name in self.decides:
            if getattr(self, name) != (usual := type(self).__dataclass_fields__[name].default):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: {type(self).__name__} has fixed comparison "
                    f"groups and scores; leave it at {usual!r}, or use grpo, dr_mas or marshal"
                )
        if self.overlong_max_length is not None and self.overlong_cache > self.overlong_max_length:
            raise ConfigError(
                f"overlong_cache ({self.overlong_cache}) is larger than overlong_max_length "
                f"({self.overlong_max_length}); make it smaller"
            )

    @property
    def spec(self) -> Spec:
        refills = self.max_refills if self.dynamic_sampling else 0
        sampling = SamplingPlan(siblings=True, refills=refills)
        masked = "cut" if self.mask_truncated else None
        return replace(super().spec, sampling=sampling, leaves_out=masked)

    def keeps(self, group: Group) -> bool:
        assert isinstance(self, PolicyGradient)
        clear([group])
        with self.reshaped([group]):
            self.credit_group(group)
        teaches = any(turn.advantages for episode in group for turn in episode.turns)
        clear([group])
        return teaches

    def score(self, episode: Episode, rollout: Rollout) -> float:
        """Score of a rollout: its return plus the length penalty."""
        total = episode.reward if self.rewards == "team" else rollout.reward
        return total + self.too_long(sum(len(turn) for turn in rollout.turns))

    def too_long(self, length: int) -> float:
        """Length penalty of a completion of `length` tokens, from 0 down to -1."""
        if self.overlong_max_length is None:
            return 0.0
        return overlong_penalty(length, self.overlong_max_length, self.overlong_cache)

    def compared(self, scores: Sequence[float] | np.ndarray) -> np.ndarray:
        """Advantages (n,) of a group's scores (n,)."""
        row = np.asarray(scores)
        return standardised(row) if self.scale_rewards == "group" else centred(row)

    def credit_group(self, group: Group) -> None:
        for side_members in sides(members(group), self.key).values():
            self.credit_side(side_members)

    def credit_side(self, side: Sequence[Member]) -> None:
        """Credit of rollouts that are compared with one another."""
        scores = [self.score(*member) for member in side]
        advantages = self.compared(scores) if several(side) else np.zeros(len(side))
        for (_, rollout), score, advantage in zip(side, scores, advantages, strict=True):
            assign(rollout, advantage)
            against(trained_turns(rollout), score, scores, advantage)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        everyone = sides(all_members(groups), self.key)
        moments: dict[str, ops.Moments] = {}
        if self.scale_rewards == "batch":
            scores = {k: np.array([self.score(*x) for x in row]) for k, row in everyone.items()}
            moments = ops.global_moments(scores)
        for side, side_members in everyone.items():
            for turn in (turn for _, rollout in side_members for turn in trained_turns(rollout)):
                if side in moments and turn.advantages is not None:
                    scale = moments[side].std + EPSILON
                    turn.advantages = float(turn.advantages) / scale  # type: ignore[arg-type]
                    because(turn, "/ batch deviation {} = {:+}", scale, turn.advantages)
                if self.mask_truncated and turn.finish_reason == "length":
                    turn.advantages = None


@settings
class GRPO(GroupRelative, PolicyGradient):
    """`A = (R - mean) / (std + 1e-6)` over the agent's own rollouts of one task (arXiv 2402.03300,
    section 4.1), the same for every token; then a clipped surrogate. Groups whose rewards are all
    equal, or that have one member left, get exactly 0.

    `scale_rewards="none"` with `loss_type="dr_grpo"` is Dr. GRPO (arXiv 2503.20783), which does not
    amplify groups with nearly equal rewards; `"batch"` divides by the standard deviation over all
    tasks. No reference is kept unless `kl_coef` is set; its KL is then part of the loss.
    """


PLUGIN = GRPO
