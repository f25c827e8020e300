"""RLOO: an answer's reward relative to the mean of the other answers to the same task.

- **Kind** one agent, or independent agents
- **Paper** arXiv 2402.14740, eq. 6.
- **Formula** `A = R - mean(R of the others)`; ratio of the whole sequence, clipped.
- **Knobs** plan: `chain(G)`; credit: own, k1 in the reward; group: task; baseline: leave-one-out;
  loss: sequence ratio.
- **Differs** from the paper, which has neither ratio nor clip and a divergence of .03 in the reward
  (`preset: rloo`).
- **Use it** for short answers with few samples per task; its baseline is unbiased.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.core.episodes import Group
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import LossType, PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.baselines import compare
from mrlm.learn.credit.groups import members, sampled_kl, trained_turns


@settings
class RLOO(PolicyGradient):
    """`A = R - mean(R of the others)`, unbiased, without a critic (arXiv 2402.14740, eq. 6).

    The whole answer is one action: `loss_type="sequence"` clips the ratio of the sequence, which is
    the plain policy gradient until the first update; `"reinforce"` has no ratio at all. With
    `kl_coef` above 0 the sampled KL to the reference is subtracted from the reward before the
    baseline. Two samples per task are the smallest group, and the number of the reference
    implementation.

    Args:
        baseline_by: which of the others a turn is compared with (`mrlm.learn.credit.baselines`).
            The score is that of a whole rollout, so this matters if episodes differ in length.
    """

    loss_type: LossType = "sequence"
    group_size: int = Field(default=2, ge=2)
    baseline_by: Literal["turn", "episode", "role"] = "turn"

    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    @property
    def spec(self) -> Spec:
        return replace(super().spec, sampling=SamplingPlan(siblings=True))

    def score(self, rollout: Rollout) -> float:
        """Reward of a rollout, less its KL to the reference."""
        if not self.kl_coef:
            return rollout.reward
        divergence = sum(float(sampled_kl(turn).sum()) for turn in trained_turns(rollout))
        return rollout.reward - self.kl_coef * divergence

    def credit_group(self, group: Group) -> None:
        for agent_members in members(group).values():
            rows = [[self.score(x)] * len(trained_turns(x)) for _, x in agent_members]
            compare(agent_members, rows, self.baseline_by, "leave_one_out", noted=False)


PLUGIN = RLOO
