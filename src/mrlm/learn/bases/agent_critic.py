"""Base of actor-critics whose estimates run over the turns, or the tokens, of one agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from mrlm.core.episodes import Episode, Group
from mrlm.core.matters import Matters
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.bases.actor_critic import ActorCritic
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.credit.explain import explain_estimate
from mrlm.learn.credit.groups import Member, all_members, column, is_trained, trained_turns


@settings
class AgentCritic(ActorCritic):
    """Base of algorithms whose advantages follow one agent through an episode: the next value after
    a turn is that of the agent's own next turn, whatever messages others send in between. The
    reward of a turn is on its last token; that of an untrained turn is added to the preceding
    trained one. Advantages are whitened per agent over the batch. An episode whose last turn was
    truncated counts as truncated.

    A refinement gives other rewards (`turn_rewards`, `token_rewards`), another sequence of turns
    (`successions`) or another estimate (`estimate`).

    Args:
        gamma_token: discount from one token to the next inside a turn.
    """

    gamma_token: float = Field(default=1.0, ge=0, le=1)

    matters: ClassVar[Mapping[str, Matters]] = {
        "gamma_token": Matters(
            lambda s, run: s.level == "token",
            "it discounts from token to token, and level is turn; remove it, or set level=token",
        ),
    }

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        """Reward of each trained turn of a rollout."""
        rewards: list[float] = []
        for turn in rollout.turns:
            if is_trained(turn):
                rewards.append(turn.reward)
            elif rewards:
                rewards[-1] += turn.reward
        return rewards

    def successions(self, groups: Sequence[Group]) -> dict[str, list[Member]]:
        """Rollouts whose turns form one sequence, by the name under which they are whitened
        together. Here each agent's own."""
        return all_members(groups)

    def policies_of(self, found: Mapping[str, Sequence[Member]]) -> dict[str, str]:
        """Agent -> its policy, for the names of `successions` that are agents."""
        return {agent: trained_turns(members[0][1])[0].policy for agent, members in found.items()}

    def token_rewards(self, turn: Turn) -> np.ndarray:
        """Reward of each token of a turn (tokens,), without that of the turn itself."""
        return np.zeros(len(turn))

    def values_of(self, turn: Turn) -> np.ndarray:
        """Values of a turn (tokens,) in units of reward."""
        mean, std = self.units_of(turn.policy)
        return column(turn, "values") * std + mean

    def row(self, episode: Episode, rollout: Rollout) -> np.ndarray:
        """Rewards, values and discounts (3, tokens or turns) of one rollout."""
        parts: list[np.ndarray] = []
        turns = trained_turns(rollout)
        for turn, reward in zip(turns, self.turn_rewards(episode, rollout), strict=True):
            values = self.values_of(turn)
            rewards, discounts = self.token_rewards(turn), np.full(len(turn), self.gamma_token)
            rewards[-1] += reward
            discounts[-1] = self.gamma
            if self.turn_values:
                rewards, values, discounts = rewards.sum(keepdims=True), values[:1], discounts[-1:]
            parts.append(np.stack([rewards, values, discounts]))
        return np.concatenate(parts, axis=1)

    def last_value(self, episode: Episode, rollout: Rollout) -> float:
        """Bootstrap value after the end of a rollout."""
        last = trained_turns(rollout)[-1]
        cut = episode.status == "truncated" or last.finish_reason == "length"
        # a turn's value is that of its first token; only there is the critic trained
        value = self.values_of(last)[0 if self.turn_values else -1]
        return float(value) if cut and self.bootstrap_on_truncation else 0.0

    def estimate(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        lengths: Sequence[int],
        discounts: np.ndarray,
        last: np.ndarray,
    ) -> np.ndarray:
        """Advantages (N,) of concatenated rows of these `lengths`; `last` is the value (R,) after
        each row."""
        return ops.gae(rewards, values, lengths, discounts, self.gae_lambda, last)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        everyone = self.successions(groups)
        advantages: dict[str, np.ndarray] = {}
        returns: dict[str, np.ndarray] = {}
        for agent, rollouts in everyone.items():
            rows = [self.row(*member) for member in rollouts]
            rewards, values, discounts = np.concatenate(rows, axis=1)
            lengths = [row.shape[1] for row in rows]
            last = np.array([self.last_value(*member) for member in rollouts])
            advantages[agent] = self.estimate(rewards, values, lengths, discounts, last)
            returns[agent] = advantages[agent] + values
        moments = ops.global_moments(advantages)
        predicted: dict[str, list[np.ndarray]] = {}
        for agent, rollouts in everyone.items():
            estimates, targets = advantages[agent], returns[agent]
            if self.whiten_advantages:
                estimates = ops.whiten(estimates, moments=moments[agent])
            for turn, part in self._written(rollouts, estimates, targets, advantages[agent]):
                predicted.setdefault(turn.policy, []).append(part)
        self.observe_returns({policy: np.concatenate(x) for policy, x in predicted.items()})
        self.explain(returns, advantages, self.policies_of(everyone))

    def _written(
        self,
        rollouts: list[Member],
        advantages: np.ndarray,
        returns: np.ndarray,
        estimates: np.ndarray,
    ) -> Iterator[tuple[Turn, np.ndarray]]:
        """Writes advantages and returns on the turns (`estimates` are the advantages before they
        were whitened); yields each with the returns that its critic should predict."""
        start = 0
        for turn in (turn for _, rollout in rollouts for turn in trained_turns(rollout)):
            here = slice(start, start + (1 if self.turn_values else len(turn)))
            turn.advantages = np.broadcast_to(advantages[here], len(turn)).copy()
            turn.returns = np.broadcast_to(returns[here], len(turn)).copy()
            explain_estimate(turn, returns[here], returns[here] - estimates[here])
            start = here.stop
            yield turn, returns[here]
