"""AT-GRPO: GRPO over the answers of one agent to one state of a tree."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.grpo import GRPO
from mrlm.config.words import FlatWords
from mrlm.core.errors import ConfigError
from mrlm.core.types import Group, Turn
from mrlm.learn.algorithm import STRICT
from mrlm.learn.credit import members, trained_turns
from mrlm.learn.trees import Node, by_state
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class ATGRPO(GRPO):
    """`A = (R - mean) / (std + 1e-6)` over the K answers that one agent gave to one state, with
    `R = alpha r_team + r_own` of that joint step (arXiv 2510.11062); then GRPO's clipped surrogate,
    averaged over tokens.

    What is compared shares task, turn, agent and history, which only a tree offers: parallel
    episodes read different prompts from their second turn on. The workflow is `tree` with `select:
    best`, in which the best answer to a state goes on, or with `select: all`. The K of the first
    turn is `group_size`, that of later ones `workflow.branches`; the paper takes the same number
    for both.

    What follows a step does not count in its credit. An agent that spoke more than once in a joint
    step gets the same advantage for all of it. Answers that are all paid the same, or the only one
    that is left of its siblings, get exactly 0. Other settings are GRPO's, so that the deviation is
    divided by unless `scale_rewards="none"`; no reference is kept unless `kl_coef` is set (0.001 in
    the authors' code).

    Args:
        alpha: weight of the team's reward beside the agent's own; 1 adds them, as the authors' code
            does.
    """

    alpha: float = Field(default=1.0, ge=0)

    requires: ClassVar[frozenset[str]] = frozenset({"siblings", "tree"})
    reads_trees: ClassVar[bool] = True
    reads_pruned: ClassVar[bool] = True
    decides: ClassVar[tuple[str, ...]] = ("key", "rewards")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_rewards == "batch":
            raise ConfigError(
                "scale_rewards='batch' divides by the deviation over whole episodes, and at_grpo "
                "compares the answers to one state; use 'group' or 'none'"
            )

    def credit_group(self, group: Group) -> None:
        for found in members(group).values():
            said: dict[Node, list[Turn]] = {}
            paid: dict[Node, float] = {}
            for episode, rollout in found:
                for turn in trained_turns(rollout):
                    if turn.step < len(episode.step_rewards):
                        node = episode.path[: turn.step + 1]
                        said.setdefault(node, []).append(turn)
                        paid[node] = self.alpha * episode.step_rewards[turn.step]
            for answers in by_state(list(said)).values():
                scores = [
                    paid[node]
                    + sum(turn.reward for turn in said[node])
                    + self.too_long(sum(len(turn) for turn in said[node]))
                    for node in answers
                ]
                for node, advantage in zip(answers, self.compared(scores), strict=True):
                    for turn in said[node]:
                        turn.advantages = float(advantage)


@dataclass(kw_only=True, config=STRICT)
class ATGRPOConfig(FlatWords, ATGRPO):  # pyright: ignore[reportIncompatibleVariableOverride]
    """AT-GRPO with the flat words of its trainer."""


class ATGRPOTrainer(Trainer):
    """Train with `ATGRPO` in one call."""

    algorithm = "at_grpo"


PLUGIN = ATGRPO
