"""Base of algorithms with learned values: critic, value loss, normalisation, warm-up."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.owners import owners_of
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.spec import CriticPlan, Spec, Topology
from mrlm.learn.credit.explain import explain_estimate
from mrlm.learn.credit.groups import state_value
from mrlm.learn.credit.joint_steps import JointStep, joint_steps
from mrlm.learn.credit.running_stats import RunningStats
from mrlm.learn.critics.critic import TEAM
from mrlm.learn.data.batch import Batch

Level = Literal["token", "turn"]


@settings
class ActorCritic(Algorithm):
    """Base of algorithms whose advantages are generalised advantage estimates (arXiv 1506.02438).
    A subclass gives `credit_batch`; a second base, such as `PolicyGradient`, gives the loss.

    Args:
        level: `turn`: one value per turn, read before its first token, and one advantage for all
            its tokens: a message is one action. `token`: a value and an advantage per token. A
            critic of the whole team supports turns only.
        gamma: discount from one turn (or joint step) to the next.
        gae_lambda: lambda of generalised advantage estimation.
        whiten_advantages: normalise advantages to mean 0, deviation 1.
        critic: estimator of values: `shared`, a head on the policy; `separate`, a network per
            policy, initialised as a copy of it (a second adapter for an adapter); `central`, one
            network that reads the conversations of the whole team; `mixed`, one that values every
            agent separately and mixes the values by QMIX.
        critic_warmup: maximum number of first iterations in which only a critic with its own
            network is trained; they end once it explains any variance of the returns.
        critic_epochs: epochs of a critic with its own network; `None`: those of the policy. With a
            single epoch a critic learns next to nothing in a short run.
        value_clip_range: largest change of a value from the old one before its gradient is clipped,
            in units of reward (of their deviation, if values are normalised); `None` is off.
        value_normalization: the critic predicts returns minus their running mean, divided by their
            running deviation (arXiv 2103.01955, section 5.1; PopArt, arXiv 1602.07714, without
            rescaling the last layer), so that its learning rate does not depend on the scale of
            rewards. Statistics cover each critic's returns since the first iteration and are saved
            in checkpoints. `None`: on for mappo, happo and ippo, off for others and for a mixed
            critic, which has its own units.
        bootstrap_on_truncation: bootstrap truncated episodes from the last known value instead of
            0. Off: truncation counts as failure.
    """

    level: Level = "turn"
    gamma: float = Field(default=1.0, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    whiten_advantages: bool = True
    critic: Topology = "shared"
    critic_warmup: int = Field(default=0, ge=0)
    critic_epochs: int | None = Field(default=None, ge=1)
    value_clip_range: float | None = Field(default=0.2, gt=0)
    value_normalization: bool | None = None
    bootstrap_on_truncation: bool = False
    update_epochs: int = Field(default=4, ge=1)

    topologies: ClassVar[tuple[Topology, ...]] = ("shared", "separate")
    """The supported critics."""
    levels: ClassVar[tuple[Level, ...]] = ("turn", "token")
    """The supported levels of credit."""
    normalizes: ClassVar[bool] = False
    """Whether values are normalised if `value_normalization` is not set."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "gae_lambda": Matters(
            lambda s, run: s.gamma or s.level == "token",
            "gamma is 0, so there are no longer estimates to weigh; remove it",
        ),
        "value_normalization": Matters(
            lambda s, run: s.critic != "mixed", "a mixed critic has its own units; remove it"
        ),
        "value_clip_range": Matters(
            lambda s, run: s.critic != "mixed",
            "the mixed critic of a team clips no values; remove it",
        ),
        "bootstrap_on_truncation": Matters(
            lambda s, run: s.gamma, "gamma is 0, so nothing that follows counts; remove it"
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic not in self.topologies:
            raise ConfigError(
                f"critic={self.critic!r} is not supported by this algorithm; give one of "
                f"{', '.join(self.topologies)} (ppo and ippo have critics per policy, mappo, vdn "
                "and qmix one of the whole team)"
            )
        for name in ("critic_warmup", "critic_epochs"):
            if getattr(self, name) and self.critic == "shared":
                raise ConfigError(
                    f"{name} needs a critic with its own network, but critic='shared' is a head on "
                    f"the policy, trained with it; set critic to 'separate', or remove {name}"
                )
        if self.level not in self.levels:
            raise ConfigError(
                f"level={self.level!r}: {type(self).__name__} supports values of "
                f"{self.levels[0]}s only; set level to {self.levels[0]!r}"
            )
        if self.value_normalization and self.critic == "mixed":
            raise ConfigError(
                "value_normalization: a mixed critic has its own units, the root mean square of "
                "the first returns; remove it"
            )
        self.seen_returns: dict[str, RunningStats] = {}
        self.warmup_left: int = self.critic_warmup

    @property
    def spec(self) -> Spec:
        spec = super().spec
        return replace(
            spec,
            columns=spec.columns | {"values"},
            critic=CriticPlan(self.critic, self.turn_values, passes=self.critic_epochs),
            # a head on the policy is trained on every token that passes through it
            ignores_zero=self.critic != "shared" and spec.ignores_zero,
        )

    @property
    def turn_values(self) -> bool:
        """Whether a turn has a single value, that of its prompt."""
        return self.level == "turn"

    @property
    def normalizes_values(self) -> bool:
        """Whether critics predict normalised returns."""
        default = self.normalizes and self.critic != "mixed"
        return default if self.value_normalization is None else self.value_normalization

    # -- value normalisation -----------------------------------------------------------------------

    def units_of(self, critic: str) -> tuple[float, float]:
        """Current mean and deviation that normalise the values of a critic (the name of its policy,
        or `team`); (0, 1) are the rewards' own units."""
        seen = self.seen_returns.get(critic)
        return (0.0, 1.0) if seen is None else (seen.mean, seen.std or 1.0)

    def observe_returns(self, returns: Mapping[str, np.ndarray]) -> None:
        """Adds an iteration's returns to the statistics of each critic, if values are normalised;
        call it after all values of the iteration were read. Collective: every rank must call it."""
        if not self.normalizes_values:
            return
        for critic, moments in sorted(ops.global_moments(returns).items()):
            self.seen_returns.setdefault(critic, RunningStats()).add(moments)
            mean, std = self.units_of(critic)
            self.metrics.update({f"returns/{critic}/mean": mean, f"returns/{critic}/std": std})

    def value_loss(self, batch: Batch, values: Tensor) -> Tensor:
        errors, number = self.value_errors(batch, values)
        return errors.sum() / number

    def value_errors(self, batch: Batch, values: Tensor) -> tuple[Tensor, int]:
        """The errors (N,) whose sum, divided by the number, is the loss of the values."""
        mean, std = self.units_of(batch.turns[0].policy)
        targets = (batch.returns - mean) / std
        errors = ops.value_loss(values, targets, batch.values, self.value_clip_range)
        if self.level == "token":
            return errors, batch.totals.tokens
        first = torch.ones_like(errors)
        first[1:] = (batch.turn[1:] != batch.turn[:-1]).to(errors.dtype)
        return errors * first, batch.totals.turns

    def explain(
        self,
        returns: Mapping[str, np.ndarray],
        residuals: Mapping[str, np.ndarray],
        policies: Mapping[str, str] | None = None,
    ) -> None:
        """Logs the variance of returns (`return_variance`), the part of it that values explain
        before the update (at most 1) and their mean squared error (`value_error`), and decides
        whether the policies wait for the critic.
        Collective: every rank must call it.

        Args:
            returns, residuals: agent (or the team) -> its returns, and these minus the values.
            policies: agent -> its policy, where the numbers are also logged by agent and policy.
        """
        table: dict[str, np.ndarray] = {}
        for suffix, agents in ({"": set(returns)} | owners_of(policies or {})).items():
            for name, x in (("returns", returns), ("residuals", residuals)):
                parts = [x[agent] for agent in sorted(agents & x.keys())]
                table[name + suffix] = np.concatenate(parts) if parts else np.zeros(0)
        moments = ops.global_moments(table)
        for name in [name for name in moments if name.startswith("returns")]:
            suffix = name.removeprefix("returns")
            varies, left = moments[name].variance, moments[f"residuals{suffix}"]
            explained = 1 - left.variance / varies if varies else 0.0
            self.metrics[f"return_variance{suffix}"] = varies
            self.metrics[f"explained_variance{suffix}"] = explained
            error = left.variance * (left.count - 1) / left.count + left.mean**2
            self.metrics[f"value_error{suffix}"] = error
        if self.metrics.get("explained_variance", 0.0) > 0:
            self.warmup_left = 0
        self.waiting: bool = self.warmup_left > 0
        self.warmup_left -= self.waiting
        if self.critic_warmup:
            self.metrics["critic_warmup"] = float(self.waiting)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "warmup_left": self.warmup_left,
            "seen_returns": {name: asdict(seen) for name, seen in self.seen_returns.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.warmup_left = int(state["warmup_left"])
        self.seen_returns = {n: RunningStats(**seen) for n, seen in state["seen_returns"].items()}


def credit_joint_steps(
    algorithm: ActorCritic, groups: Sequence[Group], steps_of: Callable[[Episode], list[JointStep]]
) -> None:
    """Writes the estimates over joint steps on turns: the same for all agents that acted in a step.

    Args:
        algorithm: the actor-critic, whose critic values the whole team.
        steps_of: the joint steps of an episode; empty if it cannot be trained on.
    """
    played = [(episode, steps_of(episode)) for group in groups for episode in group.valid]
    played = [(episode, steps) for episode, steps in played if steps]
    steps = [step for _, episode_steps in played for step in episode_steps]
    mean, std = algorithm.units_of(TEAM)
    values = np.array([state_value(step.turns[0]) for step in steps]) * std + mean
    lengths = [len(episode_steps) for _, episode_steps in played]
    after = values[np.cumsum(lengths, dtype=np.int64) - 1]  # the last value of each episode
    goes_on = [episode.status == "truncated" for episode, _ in played]
    advantages = ops.gae(
        np.array([step.reward for step in steps]),
        values,
        lengths,
        np.array([step.discount for step in steps]),
        algorithm.gae_lambda,
        after * goes_on if algorithm.bootstrap_on_truncation else 0.0,
    )
    returns = advantages + values
    algorithm.observe_returns({TEAM: returns})
    algorithm.explain({TEAM: returns}, {TEAM: advantages})
    scaled = advantages
    if algorithm.whiten_advantages:
        acted = np.array([bool(step.trained) for step in steps], dtype=bool)
        moments = ops.global_moments({TEAM: advantages[acted]})
        scaled = ops.whiten(advantages, moments=moments[TEAM]) if steps else advantages
    for step, advantage, target, value in zip(steps, scaled, returns, values, strict=True):
        for turn in step.turns:
            turn.returns = float(target)
        for turn in step.trained:
            turn.advantages = float(advantage)
            explain_estimate(turn, target, value)


def trainable_steps(episode: Episode, gamma: float) -> list[JointStep]:
    """The joint steps of an episode; empty if it cannot be trained on."""
    steps = joint_steps(episode, gamma)
    finite = all(math.isfinite(step.reward) for step in steps)
    return steps if finite and any(step.trained for step in steps) else []
