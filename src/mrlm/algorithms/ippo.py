"""IPPO: every agent learns by PPO from its own view, for its own rewards or the team's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from mrlm.algorithms.ppo import PPO
from mrlm.config.aliases import FlatWords
from mrlm.config.paper_presets import Preset
from mrlm.core.types import Episode, Rollout
from mrlm.learn.bases.algorithm import STRICT, Topology
from mrlm.learn.bases.policy_gradient import LossType
from mrlm.learn.credit.groups import team_rewards
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

    presets: ClassVar[Mapping[str, Preset]] = {
        "ippo": Preset(
            "IPPO as in MAPPO's paper, arXiv 2103.01955",
            {
                "rewards": ("team", "definition"),
                "critic": ("separate", "definition"),
                "value_normalization": (True, "section 5.1"),
                "clip_range": (0.2, "authors' code, config.py"),
                "gamma": (0.99, "authors' code, config.py"),
                "gae_lambda": (0.95, "authors' code, config.py"),
                "entropy_coef": (0.01, "authors' code, config.py"),
                "num_minibatches": (1, "section 5.3"),
                "update_epochs": (15, "authors' code, config.py"),
            },
            None,
            (
                "The paper that the name is from, arXiv 2011.09533, has other numbers.",
                "The critic's error is squared and not Huber's.",
                "`gamma` counts per turn; the rate, 5e-4, is too high for a language model.",
            ),
        ),
    }

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

    args_class: ClassVar[type[Any] | None] = IACConfig


PLUGIN = IPPO
