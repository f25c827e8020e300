"""MAGRPO: every agent gets the team's return, against its own mean over sibling episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.config.words import FlatWords
from mrlm.core.types import Episode, Group, Rollout
from mrlm.learn.algorithm import STRICT
from mrlm.learn.credit import Member, discounted, members, trained_turns
from mrlm.learn.ops import Aggregation
from mrlm.learn.policy_gradient import LossType, PolicyGradient
from mrlm.learn.trees import Node, by_state, forked, node_returns
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class MAGRPO(PolicyGradient):
    """`A_t = G_t - b` with the team's return `G_t = sum_{k >= t} gamma^(k - t) R_k` over joint
    steps (arXiv 2508.04652).

    Every agent that acted in a joint step gets the same return. The baseline `b` is, for each
    agent, the mean over the sibling episodes of the episode's mean return over that agent's turns,
    so that long episodes weigh no more than short ones; for episodes of one turn it is the paper's
    mean over the answers to one state. There is no division by the deviation, no ratio, no clip and
    no reference: `loss_type="reinforce"`, summed over a turn's tokens and averaged over turns.

    Where the workflow tries several answers from every state (`tree`), the return of an answer is
    its reward plus gamma times the mean return of what was tried after it, and the baseline is the
    mean over the answers to the same state.

    Groups whose siblings all have the same returns get exactly 0. gamma 0.9 and two siblings are
    the reference implementation's settings.

    Args:
        gamma: discount from one joint step to the next.
        returns: `joint`: the team's. `independent`: each agent's own rewards (a policy gradient per
            agent; the same thing where rewards are shared).
    """

    loss_type: LossType = "reinforce"
    aggregation: Aggregation | None = "turn_mean_token_sum"
    gamma: float = Field(default=0.9, ge=0, le=1)
    returns: Literal["joint", "independent"] = "joint"
    group_size: int = Field(default=2, ge=2)

    requires: ClassVar[frozenset[str]] = frozenset({"siblings"})
    reads_trees: ClassVar[bool] = True

    def baselines(self, returns: np.ndarray) -> np.ndarray:
        """What each of G siblings is compared with (G,), from what they returned (G,)."""
        return np.full(len(returns), returns.mean())

    def turn_returns(self, episode: Episode, rollout: Rollout) -> list[float]:
        """Return of each trained turn of an agent."""
        trained = trained_turns(rollout)
        if self.returns == "independent":
            steps = [turn.step for turn in rollout.turns]
            own = discounted([turn.reward for turn in rollout.turns], self.gamma, steps)
            found = {id(turn): value for turn, value in zip(rollout.turns, own, strict=True)}
            return [found[id(turn)] for turn in trained]
        team = discounted(episode.step_rewards or [episode.reward], self.gamma)
        return [team[turn.step] if turn.step < len(team) else 0.0 for turn in trained]

    def credit_group(self, group: Group) -> None:
        if forked(group.valid):
            for found in members(group).values():
                self._credit_tree(found)
            return
        for found in members(group).values():
            returns = [np.array(self.turn_returns(*member)) for member in found]
            same = all(np.array_equal(returns[0], other) for other in returns[1:])
            baselines = self.baselines(np.array([row.mean() for row in returns]))
            for (_, rollout), row, baseline in zip(found, returns, baselines, strict=True):
                for turn, value in zip(trained_turns(rollout), row, strict=True):
                    turn.returns = float(value)
                    teaches = not same or "siblings" not in self.requires
                    turn.advantages = float(value - baseline) if teaches else 0.0

    def _credit_tree(self, found: Sequence[Member]) -> None:
        """The same for an agent whose answers form a tree."""
        rows = [self._step_rewards(*member) for member in found]
        paths = [episode.path for episode, _ in found]
        returns = node_returns(paths, rows, self.gamma)
        advantages: dict[Node, float] = {}
        for answers in by_state(list(returns)).values():
            values = np.array([returns[node] for node in answers])
            found_here = values - self.baselines(values)
            if "siblings" in self.requires and values.max() == values.min():
                found_here = np.zeros(len(values))
            advantages |= dict(zip(answers, map(float, found_here), strict=True))
        for episode, rollout in found:
            for turn in trained_turns(rollout):
                node = episode.path[: turn.step + 1]
                if node not in returns:  # the step was never taken
                    continue
                turn.returns, turn.advantages = returns[node], advantages[node]

    def _step_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        """What a joint step paid, for the team or for the agent alone."""
        if self.returns == "joint":
            return list(episode.step_rewards)
        own = [0.0] * len(episode.step_rewards)
        for turn in rollout.turns:
            own[turn.step] += turn.reward
        return own


@dataclass(kw_only=True, config=STRICT)
class MAGRPOConfig(FlatWords, MAGRPO):  # pyright: ignore[reportIncompatibleVariableOverride]
    """MAGRPO with the flat words of its trainer."""


class MAGRPOTrainer(Trainer):
    """Train with `MAGRPO` in one call."""

    algorithm = "magrpo"


PLUGIN = MAGRPO
