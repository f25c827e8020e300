"""REINFORCE: the plain policy gradient, return times the gradient of the log-probs.

- **Kind** one agent, or independent agents
- **Paper** Williams 1992.
- **Formula** `A_t = G_t`; `-A l` summed over a sequence. With `baseline: mean` less the mean return
  of the agent's turns of the same number in the batch.
- **Differs** from the paper: an action is a token; the paper has no numbers for language.
- **Knobs** credit: to go; group: batch; baseline: none, `mean`, or `whiten`.
- **Use it** as the unbiased reference estimator.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import LossType, PolicyGradient
from mrlm.learn.credit.baselines import whiten_batch
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import credited_turns, discounted, is_trained, members


@settings
class REINFORCE(PolicyGradient):
    """`A_t = sum_{k >= t} gamma^(k - t) r_k` over the agent's own turns, loss `-A log pi` summed
    over a sequence (Williams 1992): without baseline and whitening the unbiased estimator that
    others are compared with, of high variance.

    Args:
        gamma: discount from one turn to the next.
        baseline: `none`, or the `mean` of the agent's returns over the whole batch.
        whiten: centre and scale the agent's returns over the whole batch.
        baseline_by: with either of these, which returns count: those of the same `turn` (the
            default: the first with the first, the second with the second), or all in the `batch`,
            which favours early turns, whose returns contain more rewards.
    """

    loss_type: LossType = "reinforce"
    gamma: float = Field(default=1.0, ge=0, le=1)
    baseline: Literal["none", "mean"] = "none"
    whiten: bool = False
    baseline_by: Literal["turn", "batch"] | None = None

    matters: ClassVar[Mapping[str, Matters]] = {
        "baseline": Matters(
            lambda s, run: not s.whiten, "whiten subtracts the mean already; remove one of them"
        )
    }

    face: ClassVar[str] = "Reinforce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline_by is not None and self.baseline == "none" and not self.whiten:
            raise ConfigError(
                f"baseline_by={self.baseline_by!r} selects the returns of the baseline, and "
                "baseline is 'none'; remove it, or set baseline=mean or whiten=true"
            )

    def credit_group(self, group: Group) -> None:
        for agent_members in members(group).values():
            for _, rollout in agent_members:
                returns = discounted([turn.reward for turn in rollout.turns], self.gamma)
                for turn, value in zip(rollout.turns, returns, strict=True):
                    if is_trained(turn):
                        turn.advantages = turn.returns = value
                        because(turn, "return {:+}", value)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        if self.baseline == "none" and not self.whiten:
            return
        by = self.baseline_by or "turn"
        whiten_batch(credited_turns(groups, by), by, scaled=self.whiten)


PLUGIN = REINFORCE
