"""Reward model: a scalar head trained to score chosen answers above rejected ones.

- **Kind** learning from data
- **Paper** arXiv 2203.02155, eq. 1; centred scores 2312.09244.
- **Formula** `-log s(r(chosen) - r(rejected))`, `r` a head's number at the end of a conversation.
- **Differs** from the paper: one pair is one row, where it takes all pairs of a prompt's answers
  together; scores are not shifted afterwards.
- **Knobs** plan: pairs; critic: a `shared` head, trained alone; pairs: a data set.
- **Use it** for a reward that cannot be programmed. `RewardModel(folder)` is a reward function, and
  `reward_model: folder` of the environment `reward` the same in a config; `configs/rlhf.yaml` and
  `examples/rlhf.py` train a policy against one. The folder may also hold a published reward model:
  any sequence classifier of one label.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from mrlm.core.episodes import Group
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.preference import (
    PAIRS,
    PreferencePair,
    credit_pairs,
    margins,
    pair_parts,
    pair_samples,
    row_pairs,
    scored,
)
from mrlm.learn.bases.spec import Spec
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs, Sample


@settings
class BradleyTerry(Algorithm):
    """A reward from preferences (arXiv 2203.02155, eq. 1): with the score `r`, the output of a head
    on the policy at the last token of a conversation, minimise

        -log s(r(chosen) - r(rejected)) + center_rewards_coefficient (r(chosen) + r(rejected))^2

    The second term (arXiv 2312.09244) keeps scores, which are determined up to a constant, around
    0. Pairs are dropped as in `DPO`. One epoch and a learning rate of 1e-5 are usual; the head has
    its own (`training.critic_learning_rate`).

    Args:
        center_rewards_coefficient: see above.
    """

    center_rewards_coefficient: float = Field(default=0.0, ge=0)
    group_size: int = Field(default=2, ge=2)

    default_learning_rate: ClassVar[float] = 1e-5

    face: ClassVar[str] = "RewardModel"

    @property
    def spec(self) -> Spec:
        return replace(PAIRS, scalar_head=True)

    def credit(self, groups: Sequence[Group]) -> None:
        pairs, metrics = credit_pairs(groups, lambda group: (len(group.agents), row_pairs(group)))
        self.pairs: list[PreferencePair] = pairs
        self.metrics: dict[str, float] = metrics

    def samples(self, groups: Sequence[Group], policy: str) -> list[Sample]:
        ends = [PreferencePair([scored(x.chosen)], [scored(x.rejected)]) for x in self.pairs]
        return pair_samples(ends, policy)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        assert outputs.values is not None
        units, pair = torch.unique(batch.unit, return_inverse=True)
        sides = [outputs.values * side for side in (batch.advantages > 0, batch.advantages < 0)]
        chosen, rejected = (ops.segment_sum(side, pair, len(units)) for side in sides)
        losses = -logsigmoid(chosen - rejected)
        if self.center_rewards_coefficient:
            losses = losses + self.center_rewards_coefficient * (chosen + rejected).square()
        good, bad = chosen.detach(), rejected.detach()
        number = batch.totals.units
        metrics: dict[str, Tensor | float] = {
            name: value.sum() / number for name, value in margins(good, bad).items()
        }
        return Loss(losses.sum() / number, metrics, {PART: pair_parts(losses / number, pair)})


PLUGIN = BradleyTerry
