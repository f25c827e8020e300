"""Online DPO: of the answers just sampled to one state, the best is preferred to the worst.

- **Kind** learning from data
- **Paper** arXiv 2402.04792.
- **Formula** DPO's loss with the best answer to a state chosen and the worst rejected.
- **Differs** from the paper: rewards instead of a language model rank the answers, four of them by
  default (`preset: online_dpo`: two), and the pair is the best against the worst.
- **Knobs** plan: `chain(G)` or `tree`; credit: own or team; group: agent and state (the same
  prompt); loss: preference; schedule: the reference follows every `ref_update_freq` iterations;
  pairs: best against worst, ties dropped (or the first, `ties`).
- **Use it** if rewards rank answers but their differences mean little.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.dpo import DPO
from mrlm.core.episodes import Group
from mrlm.core.matters import Matters
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.preference import PreferencePair, Rewards, ScoredAnswer, answers_by_state
from mrlm.learn.bases.spec import SamplingPlan, Spec


@settings
class OnlineDPO(DPO):
    """`DPO` on pairs that the policy samples itself (arXiv 2402.04792): of an agent's answers to
    one state, the one with the highest reward is chosen and the one with the lowest is rejected.

    A state is a prompt: in episodes of several turns only the first turns are compared, and with
    the workflow `tree` the answers at every node, each with the mean reward of the episodes through
    it. States whose best and worst answers have the same reward, or are identical, are dropped
    (`frac_dropped_pairs`). With `ref_update_freq=1` every update starts at the reference.

    Args:
        rewards: rewards by which answers are ranked: the agent's `own` or the `team`'s.
        ties: states whose answers all have the same reward: `drop`, or `first`: the first answer is
            chosen and the last rejected, as in implementations that sort two samples.
    """

    rewards: Rewards = "own"
    ties: Literal["drop", "first"] = "drop"
    group_size: int = Field(default=4, ge=2)

    matters: ClassVar[Mapping[str, Matters]] = {
        "rewards": Matters(
            lambda s, run: run.rows or run.agents > 1, "with one agent both are the same; remove it"
        )
    }

    @property
    def spec(self) -> Spec:
        return replace(super().spec, sampling=SamplingPlan(siblings=True, credits="trees"))

    def pairs_of(self, group: Group) -> tuple[int, list[PreferencePair]]:
        states = answers_by_state(group, self.rewards).values()
        compared = [self.ranked(answers) for answers in states if len(answers) > 1]
        return len(compared), [pair for pair in compared if pair is not None]

    def ranked(self, answers: list[ScoredAnswer]) -> PreferencePair | None:
        """The best answer (the first of equals) against the worst (the last of equals)."""
        best = max(answers, key=lambda answer: answer.value)
        worst = min(reversed(answers), key=lambda answer: answer.value)
        if best.value == worst.value and self.ties == "drop":
            return None
        if best.turn.completion_ids == worst.turn.completion_ids:
            return None
        return PreferencePair([best.turn], [worst.turn])


PLUGIN = OnlineDPO
