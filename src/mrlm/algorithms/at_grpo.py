"""AT-GRPO: GRPO over the answers of one agent to one state of a tree.

- **Kind** teams without a critic
- **Paper** arXiv 2510.11062.
- **Formula** `(R - mean) / std` over K answers to one state of one agent; the best is continued.
  `R` is the agent's own reward plus `alpha` times the team's.
- **Knobs** plan: `tree`, best only; credit: own and team; group: task, turn, agent; baseline: mean
  / deviation; `filter` drops the least informative answers or outliers, `filter_ratio` of them.
- **Differs** from the authors' code: no divergence (.001 there; `preset: at_grpo`).
- **Use it** for long joint tasks whose steps can be scored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Group
from mrlm.core.matters import Matters
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.explain import against
from mrlm.learn.credit.groups import members, trained_turns
from mrlm.learn.credit.returns import Node, by_state


@settings
class ATGRPO(GroupRelative, PolicyGradient):
    """`A = (R - mean) / (std + 1e-6)` over the K answers that one agent gave to one state, with `R
    = alpha r_team + r_own` of that joint step (arXiv 2510.11062); then GRPO's surrogate.

    The answers share task, turn, agent and history, which requires the workflow `tree`, with
    `select: best` to continue from the best answer to a state. K is `group_size` in the first turn
    and `workflow.branches` later; the paper uses one number for both.

    Rewards after a joint step do not count in its advantages; an agent with several turns in it
    gets the same advantage for all. Answers with equal rewards, or without siblings, get exactly 0.

    Args:
        alpha: weight of the team's reward relative to the agent's own; 1 adds them, as in the
            authors' code.
        filter: answers left out of training (all options of the authors' code). `zero_variance`:
            answers to a state whose rewards are all equal (their advantage is 0 in any case, but
            they no longer count in the loss's denominators). `variance`: of all states of the
            batch, per agent, the fraction `filter_ratio` with the lowest variance over squared
            range. `deviation`: of the answers to each state, the fraction furthest from their mean;
            the others are compared with one another.
        filter_ratio: the fraction that `variance` and `deviation` leave out, rounded down.
    """

    alpha: float = Field(default=1.0, ge=0)
    filter: Literal["none", "zero_variance", "variance", "deviation"] = "none"
    filter_ratio: float = Field(default=0.25, ge=0, lt=1)

    scales: ClassVar[tuple[str, ...]] = ("group", "none")
    decides: ClassVar[tuple[str, ...]] = ("key", "rewards")

    matters: ClassVar[Mapping[str, Matters]] = {
        "filter_ratio": Matters(
            lambda s, run: s.filter in ("variance", "deviation"),
            "filter leaves out no fraction; set filter=variance or deviation, or remove it",
        )
    }

    @property
    def spec(self) -> Spec:
        spec = super().spec
        return replace(spec, sampling=replace(spec.sampling, tree=True, credits="pruned_trees"))

    def credit_group(self, group: Group) -> None:
        for answers, scores in self.comparisons(group):
            indices = self._kept(scores)
            for index, advantage in zip(indices, self.compared(scores[indices]), strict=True):
                for turn in answers[index]:
                    turn.advantages = float(advantage)
                score = float(scores[index])
                against(answers[index], score, scores[indices], advantage, "answers to this state")

    def credit_batch(self, groups: Sequence[Group]) -> None:
        super().credit_batch(groups)
        if self.filter not in ("zero_variance", "variance"):
            return
        compared = [comparison for group in groups for comparison in self.comparisons(group)]
        spread = [range_normalised_variance(scores) for _, scores in compared]
        if self.filter == "variance":
            count = int(len(compared) * self.filter_ratio)
            dropped = sorted(range(len(compared)), key=spread.__getitem__)[:count]
        else:
            dropped = [index for index, value in enumerate(spread) if value == 0.0]
        for index in dropped:
            for turn in (turn for turns in compared[index][0] for turn in turns):
                turn.advantages = None
        if compared:
            self.metrics["frac_filtered"] = len(dropped) / len(compared)

    def comparisons(self, group: Group) -> Iterator[tuple[list[list[Turn]], np.ndarray]]:
        """For every agent and state, the turns of each of its K answers, and their scores (K,)."""
        for agent_members in members(group).values():
            turns: dict[Node, list[Turn]] = {}
            rewards: dict[Node, float] = {}
            for episode, rollout in agent_members:
                for turn in trained_turns(rollout):
                    if turn.step < len(episode.step_rewards):
                        node = episode.path[: turn.step + 1]
                        turns.setdefault(node, []).append(turn)
                        rewards[node] = self.alpha * episode.step_rewards[turn.step]
            for nodes in by_state(list(turns)).values():
                scores = [
                    rewards[node]
                    + sum(turn.reward for turn in turns[node])
                    + self.too_long(sum(len(turn) for turn in turns[node]))
                    for node in nodes
                ]
                yield [turns[node] for node in nodes], np.array(scores)

    def _kept(self, scores: np.ndarray) -> np.ndarray:
        """Indices of the answers to a state that are compared: all, or those closest to their
        mean."""
        if self.filter != "deviation":
            return np.arange(len(scores))
        far = np.argsort(-np.abs(scores - scores.mean()), kind="stable")
        return np.sort(far[int(len(scores) * self.filter_ratio) :])


def range_normalised_variance(scores: np.ndarray) -> float:
    """Variance of scores (K,) over their squared range, from 0 (all equal) to 1/4."""
    extent = float(scores.max() - scores.min())
    return float(scores.var()) / extent**2 if extent else 0.0


PLUGIN = ATGRPO
