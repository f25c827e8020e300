"""ReMA: GRPO with turn-level ratios, for long dialogues of a planner and a solver.

- **Kind** teams without a critic
- **Paper** arXiv 2503.09501.
- **Formula** GRPO's advantage with the ratio of a turn, `exp(mean(l - o))`, clipped on both sides;
  turns averaged per trajectory.
- **Differs** from the authors' code: both agents are updated in every iteration;
  `training.schedule` can alternate them, as the paper also does.
- **Knobs** plan: `chain(G)`; credit: team; group: task; baseline: mean / deviation; loss: turn
  ratio, dual clip; schedule: simultaneous or alternating.
- **Use it** for a planner and a solver with a conversation of many turns.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Group
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import LossType, PolicyGradient
from mrlm.learn.bases.spec import Spec
from mrlm.learn.ops import Aggregation


@settings
class ReMA(GroupRelative, PolicyGradient):
    """GRPO's advantage on the team's reward in a surrogate over turns (arXiv 2503.09501): the ratio
    is `exp(mean(l - o))` over the tokens of a turn, with the exponent at most 3, clipped on both
    sides; a negative advantage costs at most 3 times itself (`dual_clip`). A single token of a long
    turn changes the ratio little, and a turn is clipped as a whole.

    Losses are averaged over a turn, then over the turns of a trajectory, then over trajectories;
    `turn_mean` weighs all turns equally. Groups of 16 are the authors' setting.

    Args:
        mask_unfinished: leave episodes that were truncated before the environment had ended out of
            loss and baseline.
    """

    loss_type: LossType = "turn"
    aggregation: Aggregation | None = "sequence_mean_turn_mean"
    dual_clip: float | None = Field(default=3.0, gt=1)
    rewards: Literal["own", "team"] = "team"
    mask_unfinished: bool = True
    group_size: int = Field(default=16, ge=2)

    @property
    def spec(self) -> Spec:
        base_spec = super().spec
        return replace(base_spec, leaves_out="truncated") if self.mask_unfinished else base_spec

    def credit_group(self, group: Group) -> None:
        if self.mask_unfinished:
            finished = [episode for episode in group if episode.status != "truncated"]
            group = Group(finished, group.task_id)
        super().credit_group(group)


PLUGIN = ReMA
