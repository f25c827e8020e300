"""IPPO: every agent learns by PPO from its own view, for its own rewards or the team's."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from mrlm.algorithms.ppo import PPO
from mrlm.config.words import FlatWords
from mrlm.core.types import Episode, Rollout
from mrlm.learn.algorithm import STRICT, Topology
from mrlm.learn.credit import team_rewards
from mrlm.learn.policy_gradient import LossType
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class IPPO(PPO):
    """Independent PPO (arXiv 2011.09533): each agent's advantages follow from its own turns and the
    values of what it read alone; the next value after a turn is that of its own next turn.

    It is `PPO` by the name that several agents know it by, with values normalised as in `mappo`.
    With a policy per agent each has its own critic too; agents that share a policy share that, and
    are whitened apart. With `rewards="team"` and `critic="separate"` it differs from `mappo` only
    in what the critics read.

    Args:
        rewards: `own`: an agent is paid what the world pays it. `team`: every agent is paid the
            team's rewards, from the joint step of a turn up to that of its next one.
    """

    rewards: Literal["own", "team"] = "own"

    normalizes: ClassVar[bool] = True

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        if self.rewards == "own":
            return super().turn_rewards(episode, rollout)
        return team_rewards(episode, rollout)


@dataclass(kw_only=True, config=STRICT)
class IPPOConfig(FlatWords, IPPO):  # pyright: ignore[reportIncompatibleVariableOverride]
    """IPPO with the flat words of its trainer."""


class IPPOTrainer(Trainer):
    """Train with `IPPO` in one call."""

    algorithm = "ippo"


@dataclass(kw_only=True, config=STRICT)
class IACConfig(IPPOConfig):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Settings of `IACTrainer`."""

    loss_type: LossType = "reinforce"
    critic: Topology = "separate"
    level: Literal["token", "turn"] = "turn"


class IACTrainer(IPPOTrainer):
    """CoMLRL's independent actor-critic: no ratio, a value per turn, a critic per policy."""

    args_class = IACConfig


PLUGIN = IPPO
