"""What policy gradients with learned values share: the knobs of a critic, its loss, the units of
its values, and the warm-up in which it learns alone. It does not know which step follows which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import STRICT
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import CriticPlan, Spec, Topology
from mrlm.learn.credit.running_stats import RunningStats
from mrlm.learn.data.batch import Batch

Level = Literal["token", "turn"]


@dataclass(kw_only=True, config=STRICT)
class ActorCritic(PolicyGradient):
    """Base of algorithms whose advantages are generalised advantage estimates (arXiv 1506.02438).
    A subclass gives `credit_batch`.

    Args:
        level: `turn`: one value per turn, read before its first token, and one advantage for all
            its tokens: a message is one action, as what is said in a joint step is. `token`: a
            value and an advantage for every token. A critic of the whole team knows turns only.
        gamma: discount from one turn (or joint step) to the next.
        gae_lambda: exponential weight of longer estimates.
        whiten_advantages: mean 0, deviation 1.
        critic: who estimates values: `shared`, a head on the policy; `separate`, a network beside
            each policy, which starts as a copy of it (a second adapter, where it is one);
            `central`, one network that reads what the whole team read and said; `mixed`, one that
            values every agent by itself and mixes the values by QMIX.
        critic_warmup: most iterations at the start of a run in which a critic with a network of its
            own learns alone; they are over as soon as it explains any variance of the returns.
        critic_epochs: times a critic with a network of its own goes over the episodes; `None`: as
            often as the policy. With a single pass a critic learns next to nothing in a short run.
        value_clip_range: how far the value may move from the old one before its gradient stops, in
            units of reward (of their deviation, where values are normalised); `None` is off.
        value_normalization: the critic predicts returns less their running mean, divided by their
            running deviation (arXiv 2103.01955, section 5.1; PopArt, arXiv 1602.07714, without its
            change of the last layer), so that its learning rate means the same for rewards of any
            size. The statistics are of each critic's own returns, from the first iteration on, and
            part of a checkpoint. `None`: on for mappo, happo and ippo, off for others and for a
            mixed critic, which has units of its own.
        bootstrap_on_truncation: where an episode was cut short, go on with the last value known
            instead of 0. Off: an answer that is cut short is a failure.
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
    """The critics this algorithm can use."""
    levels: ClassVar[tuple[Level, ...]] = ("turn", "token")
    """The levels at which it can credit."""
    normalizes: ClassVar[bool] = False
    """Whether values are normalised where `value_normalization` is not set."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "gae_lambda": Matters(
            lambda s, run: s.gamma or s.level == "token",
            "gamma is 0, so there are no longer estimates to weigh; remove it",
        ),
        "value_normalization": Matters(
            lambda s, run: s.critic != "mixed", "a mixed critic has units of its own; remove it"
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
                f"critic={self.critic!r} is none that this algorithm knows "
                f"({', '.join(self.topologies)}); ppo and ippo have critics per policy, "
                "mappo, vdn and qmix one of the whole team"
            )
        if self.critic_warmup and self.critic == "shared":
            raise ConfigError(
                "critic_warmup needs a critic with a network of its own, and critic='shared' is a "
                "head on the policy; set critic to 'separate', or critic_warmup to 0"
            )
        if self.critic_epochs and self.critic == "shared":
            raise ConfigError(
                "critic_epochs needs a critic with a network of its own, and critic='shared' is a "
                "head on the policy, which learns in update_epochs; set critic to 'separate'"
            )
        if self.level not in self.levels:
            raise ConfigError(
                f"level={self.level!r}: {type(self).__name__} has values of {self.levels[0]}s "
                f"only; set level to {self.levels[0]!r}"
            )
        if self.value_normalization and self.critic == "mixed":
            raise ConfigError(
                "value_normalization: a mixed critic has units of its own, the root mean square of "
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
            # a head on the policy learns from every token that goes through it
            ignores_zero=self.critic != "shared" and spec.ignores_zero,
        )

    @property
    def turn_values(self) -> bool:
        """Whether a turn has one value, that of what was read before it."""
        return self.level == "turn"

    @property
    def normalizes_values(self) -> bool:
        """Whether critics predict normalised returns."""
        default = self.normalizes and self.critic != "mixed"
        return default if self.value_normalization is None else self.value_normalization

    # -- units of values ---------------------------------------------------------------------------

    def units_of(self, critic: str) -> tuple[float, float]:
        """Mean and deviation that the values of a critic are in now; (0, 1) are the rewards' own.

        Args:
            critic: the policy it is beside or a head on, or `team`.
        """
        seen = self.seen_returns.get(critic)
        return (0.0, 1.0) if seen is None else (seen.mean, seen.std or 1.0)

    def observe_returns(self, returns: Mapping[str, np.ndarray]) -> None:
        """Take an iteration's returns into account, by critic, where values are normalised; after
        every value of the iteration has been read. Every process must call it."""
        if not self.normalizes_values:
            return
        for critic, found in sorted(ops.global_moments(returns).items()):
            self.seen_returns.setdefault(critic, RunningStats()).add(found)
            mean, std = self.units_of(critic)
            self.metrics.update({f"returns/{critic}/mean": mean, f"returns/{critic}/std": std})

    def value_loss(self, batch: Batch, values: Tensor) -> Tensor:
        mean, std = self.units_of(batch.turns[0].policy)
        targets = (batch.returns - mean) / std
        errors = ops.value_loss(values, targets, batch.values, self.value_clip_range)
        if self.level == "token":
            return errors.sum() / batch.totals.tokens
        first = torch.ones_like(errors)
        first[1:] = (batch.turn[1:] != batch.turn[:-1]).to(errors.dtype)
        return (errors * first).sum() / batch.totals.turns

    def explain(self, returns: Sequence[np.ndarray], residuals: Sequence[np.ndarray]) -> None:
        """Note how much of the variance of returns the values knew before the update (1 is all of
        it; where everybody always reads the same there is nothing to know, and it is 0), and decide
        whether the policies wait for the critic. Every process must call it."""
        table = {"returns": returns, "residuals": residuals}
        moments = ops.global_moments({key: np.concatenate(x) for key, x in table.items() if x})
        if "returns" in moments:
            varies, left = moments["returns"].variance, moments["residuals"].variance
            self.metrics["explained_variance"] = 1 - left / varies if varies else 0.0
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
