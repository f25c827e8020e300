"""MARFT: the agents of a joint step decide in sequence, and values follow that sequence.

- **Kind** teams with critics
- **Paper** arXiv 2504.16129.
- **Formula** GAE along the chain of agents: after an agent comes the next agent of the same step;
  the reward is on the last. `level: turn` clips the ratio of a whole turn, whose log-probs are
  summed or averaged (`normalization`); `level: token` unrolls the chain over tokens.
- **Differs** from the authors' code: gamma 1 and no entropy bonus (`preset: marft`); log-probs at
  the sampling temperature; a critic that is a copy of the policy.
- **Knobs** credit: team, on the last agent; baseline: GAE along the chain, whitened over the team;
  critic: `separate` or `shared`, on the agent's context; loss: turn (action) or token ratio;
  schedule: simultaneous or alternating.
- **Use it** for pipelines of agents that act in sequence.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import Topology
from mrlm.learn.credit.groups import Member, trained_turns
from mrlm.learn.credit.joint_steps import chain, joint_steps
from mrlm.learn.data.batch import Batch


@settings
class MARFT(PPO):
    """Multi-agent reinforced fine-tuning (arXiv 2504.16129): the agents of a joint step are
    consecutive decisions, so that the next value after a turn is that of the next agent in the same
    step, and after the last agent that of the first one in the next step. The team's reward of a
    step goes to the last of them. Then every policy minimises PPO's clipped surrogate.

    `level="turn"` is the action level (APPO): one value, one advantage and one ratio `exp(sum_t log
    pi / pi_old)` per turn, averaged over turns. `level="token"` (TPPO) is the same sequence
    unrolled over tokens. Turns that are not trained are part of the environment: their reward is
    added to the preceding trained turn.

    The critic's input is the agent's prompt, which in a sequential workflow contains the messages
    of the preceding agents. Agents that share a policy share the critic. As in the public code,
    nothing corrects for earlier updates under `training.schedule: alternating` (`happo` does).

    Five epochs, a separate critic and learning rate 5e-7 are the published ones; their gamma of .99
    per token leaves 5 % of a reward after 300 of them. `target_kl` ends the epochs (theirs: 1e-3
    for turns, 1.7e-6 for tokens).

    Args:
        normalization: divisor of a turn's log-ratio: none (`sum`), its tokens (`token`) or its
            words (`word`). With `sum`, the ratio of long turns leaves the clip range at once. Only
            where `level` is `turn`.
    """

    normalization: Literal["sum", "token", "word"] = "sum"
    critic: Topology = "separate"
    update_epochs: int = Field(default=5, ge=1)

    default_learning_rate: ClassVar[float] = 5e-7

    matters: ClassVar[Mapping[str, Matters]] = {
        "normalization": Matters(
            lambda s, run: s.level == "turn",
            "it applies to the ratio of a turn, and level is token; remove it",
        )
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "turn" and self.loss_type != "ppo":
            raise ConfigError(
                f"loss_type={self.loss_type!r}: at level 'turn' the ratio is that of a turn "
                "(normalization); leave loss_type at 'ppo', or set level to 'token'"
            )
        if self.level == "token" and self.normalization != "sum":
            raise ConfigError(
                f"normalization={self.normalization!r} applies to the log-ratio of a turn, and at "
                "level 'token' there is none; leave it at 'sum', or set level to 'turn'"
            )

    def successions(self, groups: Sequence[Group]) -> dict[str, list[Member]]:
        chains = [(episode, chain(episode)) for group in groups for episode in group.valid]
        team_members = [(e, r) for e, r in chains if math.isfinite(e.reward) and trained_turns(r)]
        return {"team": team_members} if team_members else {}

    def policies_of(self, found: Mapping[str, Sequence[Member]]) -> dict[str, str]:
        return {}  # one sequence of the whole team

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        rewards: list[float] = []
        for step in joint_steps(episode, self.gamma):
            rewards += [0.0] * len(step.trained)
            if rewards:
                rewards[-1] += step.reward
        return rewards

    def _ratio(self, batch: Batch, logprobs: Tensor, difference: Tensor) -> tuple[Tensor, Tensor]:
        if self.level == "token":
            return super()._ratio(batch, logprobs, difference)
        sizes = ops.numbers([self._size(turn) for turn in batch.turns], difference)
        total = ops.segment_sum(difference, batch.turn, batch.num_turns) / sizes
        limit = ops.LOG_RATIO_LIMIT
        return total.clamp(-limit, limit).exp()[batch.turn], batch.advantages

    def _size(self, turn: Turn) -> float:
        """Divisor of the log-ratio of a turn."""
        if self.normalization == "word" and turn.message is not None:
            return float(max(1, len(turn.message.content.split())))
        return float(len(turn)) if self.normalization == "token" else 1.0

    def _shares(self, like: Tensor, batch: Batch) -> Tensor:
        if self.level == "turn" and self.aggregation is None:
            return ops.token_weights(like, batch, "turn_mean")
        return super()._shares(like, batch)


PLUGIN = MARFT
