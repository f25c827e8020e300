"""ReMax: return from a turn on, relative to the return of the greedy policy.

- **Kind** one agent, or independent agents
- **Paper** arXiv 2310.10505.
- **Formula** `A_t = G_t - G_t of the greedy episode`; with one turn, `R - r(greedy answer)`.
- **Differs** from the authors' code: no discount within an answer (.99 there), no limit to rewards
  (5 there), the divergence to go and not of one token, none at all by default (`preset: remax`:
  .05); sums over a sequence are averaged over sequences, there over tokens (`aggregation`, in the
  preset).
- **Knobs** plan: `chain` and a greedy sibling; group: task; baseline: greedy.
- **Use it** if one greedy answer is cheaper than a group.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from mrlm.core.episodes import Group
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import LossType, PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.baselines import greedy_baselines
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import discounted, greedy_metrics, members, sampled_kl, trained_turns


@settings
class ReMax(PolicyGradient):
    """`A_t = G_t - G_t(greedy)` with `G_t = sum_{k >= t} r_k` over the agent's tokens (arXiv
    2310.10505, algorithm 2, where an answer has one turn).

    Every task has one additional, greedy episode as the baseline: it is not trained on, and no
    metric of rewards includes it. It does not depend on the sampled actions, so the gradient is
    unbiased, with one sample per task (`group_size=1`, the paper's setting) or with several.

    With `kl_coef` the sampled KL to the reference is subtracted from the reward of each token. The
    loss has no ratio (`loss_type="reinforce"`, summed over a sequence); `"ppo"` has one, for more
    than one update per iteration. A turn is compared with the greedy return from the turn of the
    same number on (from the last turn, where that was shorter); with `baseline_by="episode"`, with
    the whole return.

    With several agents each is compared with its own part of the greedy episode, in which all are
    greedy; an agent that did not act there has return 0. Groups whose greedy episode failed are not
    trained on, and `frac_without_greedy` counts them.

    Args:
        baseline_by: which greedy return a turn is compared with: from the `turn` of the same number
            on, or of the whole `episode`.
    """

    loss_type: LossType = "reinforce"
    baseline_by: Literal["turn", "episode"] = "turn"

    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    @property
    def spec(self) -> Spec:
        return replace(super().spec, sampling=SamplingPlan(greedy=True))

    def credit_group(self, group: Group) -> None:
        reference = group.greedy
        if reference is None:
            return
        for agent, agent_members in members(group).items():
            spoke = reference.rollouts.get(agent)
            alone = discounted([turn.reward for turn in spoke.turns], 1.0) if spoke else []
            alone = alone[:1] if self.baseline_by == "episode" else alone
            for _, rollout in agent_members:
                self._write(rollout, greedy_baselines(alone or [0.0], rollout, "turn"))

    def credit_batch(self, groups: Sequence[Group]) -> None:
        self.metrics.update(greedy_metrics(groups))

    def _write(self, rollout: Rollout, baselines: Sequence[float]) -> None:
        """Write returns and advantages of a rollout's tokens, from the last turn to the first."""
        rows = zip(trained_turns(rollout), baselines, strict=True)
        baseline_of = {id(turn): baseline for turn, baseline in rows}
        following = 0.0
        for turn in reversed(rollout.turns):
            following += turn.reward
            if id(turn) not in baseline_of:
                continue
            returns = np.full(len(turn), following)
            if self.kl_coef:
                kl_penalty = self.kl_coef * sampled_kl(turn)
                returns -= kl_penalty[::-1].cumsum()[::-1]
                following = float(returns[0])
            baseline = baseline_of[id(turn)]
            turn.returns, turn.advantages = returns, returns - baseline
            because(turn, "{} - greedy episode {} = {:+}", returns, baseline, turn.advantages)


PLUGIN = ReMax
