"""C3: the return of a message, relative to other messages of the agent in the same context.

- **Kind** teams without a critic
- **Paper** arXiv 2603.06859.
- **Formula** `A_k = G_k - mean over the other answers to this decision of G`: the context of a turn
  is frozen, the agent answers K times more, and the rest of each episode is sampled again by the
  same policies.
- **Differs** from the authors' code: the first version also subtracts a learned Q; here, as in the
  second, there is no critic. Alternatives branch from the turns of whole episodes, where the code
  grows a tree with a fixed fan-out per role; concurrent messages of other agents are part of the
  context; the divergence coefficient is fixed (adaptive there).
- **Knobs** plan: `chain(G)` with replays; credit: team, to go; group: state; baseline:
  leave-one-out; loss: token ratio.
- **Use it** for teams with several turns whose messages differ in what they matter, where episodes
  are cheap: an episode of T trained turns costs K T replays.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from mrlm.core.episodes import Group
from mrlm.core.replayed import Replays
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import centred, discounted, is_trained, leave_one_out
from mrlm.learn.credit.replays import decisions


@settings
class C3(PolicyGradient):
    """`A_k = G_k - mean(G of the other answers)` over the K + 1 answers of one agent to one frozen
    context (arXiv 2603.06859), with the team's return `G = sum_{j >= t} gamma^(j - t) R_j` from the
    joint step of the answer on; then the clipped surrogate. The answer of the episode and its
    alternatives are all trained on, each once. Where all have the same return, it is exactly 0.

    Turns before the replayed one, and those taken at the same time, are as in the episode, so that
    the difference is due to the message and to chance after it. The baseline depends on the context
    only: the gradient is unbiased.

    Args:
        alternatives: K, further answers to each replayed turn.
        decisions: trained turns of each episode that are replayed, chosen at random; the others are
            not trained on, and the advantages are multiplied by turns / `decisions`. `None`: all.
        baseline: `leave_one_out`: the mean over the other answers; `mean`: over all.
        gamma: discount from one joint step to the next.
    """

    alternatives: int = Field(default=3, ge=1)
    decisions: int | None = Field(default=None, ge=1)
    baseline: Literal["leave_one_out", "mean"] = "leave_one_out"
    gamma: float = Field(default=1.0, ge=0, le=1)

    @property
    def spec(self) -> Spec:
        request = Replays("alternatives", self.alternatives, self.decisions)
        return replace(super().spec, sampling=SamplingPlan(replays=request))

    def credit_group(self, group: Group) -> None:
        alone = self.baseline == "leave_one_out"
        for answers in decisions(group):
            count = sum(is_trained(turn) for turn in answers[0][0].turns)
            scale = count / min(count, self.decisions or count)
            to_go = [discounted(e.step_rewards, self.gamma)[turn.step] for e, turn in answers]
            returns = np.array(to_go)
            others, text = len(answers), "{} - mean of {} answers to this decision {} = {:+}"
            if alone:
                others, text = others - 1, text.replace("of {} answers", "of the {} other answers")
            advantages = (leave_one_out if alone else centred)(returns)
            for (_, turn), value, less in zip(answers, returns, advantages, strict=True):
                turn.returns, turn.advantages = float(value), float(scale * less)
                because(turn, text, value, others, value - less, less)
                if scale != 1:
                    because(turn, "x {} turns per replayed one = {:+}", scale, turn.advantages)


PLUGIN = C3
