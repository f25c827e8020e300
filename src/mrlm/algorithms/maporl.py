"""MAPoRL: a debate in which an answer is also rewarded for the scores of later answers.

- **Kind** teams with critics
- **Paper** arXiv 2502.18439.
- **Formula** `R_t,i = [s_t,i + sum_{t' > t} g^(t' - t) mean_j s_t',j] / sum g^(t' - t)`; PPO on
  each answer, no value across turns.
- **Differs** from the authors' code: one value per answer (`preset: maporl`: per token), bonuses
  off, or with the signs of the paper's intent (`parity`: of the code).
- **Knobs** plan: a debate; credit: influence, k1 in the reward; baseline: GAE inside a turn,
  whitened; critic: `shared` or `separate`.
- **Use it** for debates in which every answer can be scored.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode
from mrlm.core.matters import Matters
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.credit.groups import is_trained

Scores = Sequence[Sequence[float]]
"""Agent -> the score of each of its answers; their number may differ between agents."""


@settings
class MAPoRL(PPO):
    """`R_{t,i} = (s_{t,i} + sum_{k > t} g^(k-t) mean_j s_{k,j}) / sum_{k >= t} g^(k-t)` (arXiv
    2502.18439), with `s` the environment's reward of the `t`-th answer of agent `i`; then PPO on
    each answer separately: all credit across turns is in `R`, none in values (`gamma=0`). Sums and
    means run over the answers that were given, those of frozen agents included.

    With `alpha` an answer also gets a bonus that depends on whether scores (of others: their mean)
    are above .5, right, or below, wrong; exactly .5 is neither. From its second answer on, an agent
    that turns right gets `a0` if the others were right before and `a1` if they were wrong, and one
    that turns wrong loses `a0` if the others were wrong and `a1` if they were right. A second part
    depends on the next answers of the others: if they turn right, `a3` where the agent is right
    itself and `a2` where it is wrong; if they turn wrong, `-a3` where it is wrong and `-a2` where
    it is right. The reference implementation has the opposite signs in that second part, which
    penalises helping, and omits it for first answers; `parity=True` does the same. Other defaults
    are the authors'.

    Args:
        influence_gamma: `g`, the weight of each later round.
        reward_mode: `discounted_sum` as above; `last`: the score of the last round; `current`: the
            score of this round.
        score_of: whose later scores count: the mean over `all`, or the agent's own.
        alpha: `(a0, a1, a2, a3)` of the bonus.
        parity: the bonus as the reference implementation has it.
    """

    influence_gamma: float = Field(default=0.3, ge=0, le=1)
    reward_mode: Literal["discounted_sum", "last", "current"] = "discounted_sum"
    score_of: Literal["all", "individual"] = "all"
    alpha: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    parity: bool = False
    gamma: float = Field(default=0.0, ge=0, le=1)
    kl_coef: float = Field(default=0.002, ge=0)
    num_minibatches: int = Field(default=8, ge=1)

    matters: ClassVar[Mapping[str, Matters]] = {
        "influence_gamma": Matters(
            lambda s, run: s.reward_mode == "discounted_sum" and run.turns != 1,
            "later rounds count only with reward_mode=discounted_sum and several turns; remove it",
        ),
        "parity": Matters(
            lambda s, run: any(s.alpha),
            "alpha is 0, so there is no bonus; set alpha, or remove this",
        ),
    }

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        everyone = list(episode.rollouts.values())
        scores = [[turn.reward for turn in other.turns] for other in everyone]
        agent = next(index for index, other in enumerate(everyone) if other is rollout)
        return [
            self.shaped(scores, agent, t) + self.bonus(scores, agent, t)
            for t, turn in enumerate(rollout.turns)
            if is_trained(turn)
        ]

    def shaped(self, scores: Scores, agent: int, t: int) -> float:
        """`R` of an agent's `t`-th answer."""
        agent_scores = scores[agent]
        everyone = self.score_of == "all"
        rounds = max(map(len, scores)) if everyone else len(agent_scores)
        later = {k: _mean(scores, k) if everyone else agent_scores[k] for k in range(t, rounds)}
        if self.reward_mode == "current":
            return later[t]
        if self.reward_mode == "last":
            return later[rounds - 1]
        weights = [self.influence_gamma ** (k - t) for k in later]
        counted = [agent_scores[t], *list(later.values())[1:]]
        return sum(w * s for w, s in zip(weights, counted, strict=True)) / sum(weights)

    def bonus(self, scores: Scores, agent: int, t: int) -> float:
        """Bonus of the `t`-th answer for being persuaded, and for persuading."""
        a0, a1, a2, a3 = self.alpha
        others = [row for index, row in enumerate(scores) if index != agent]
        total = 0.0
        if not others:
            return total
        now = _verdict(scores[agent][t])
        around = [_verdict(_mean(others, k)) for k in range(max(map(len, others)))]
        if 0 < t <= len(around) and now and _verdict(scores[agent][t - 1]) == -now:
            total += now * {now: a0, -now: a1, 0: 0.0}[around[t - 1]]
        if t + 1 < len(around) and around[t] and around[t + 1] == -around[t] and now:
            turned = around[t + 1]
            size = a3 if now == turned else a2
            if not self.parity:
                total += turned * size
            elif t > 0:
                total -= turned * size
        return total


def _mean(scores: Scores, t: int) -> float:
    """Mean score of the `t`-th answers that were given."""
    values = [row[t] for row in scores if t < len(row)]
    return sum(values) / len(values)


def _verdict(score: float) -> int:
    """1 for right, -1 for wrong, 0 for neither."""
    return (score > 0.5) - (score < 0.5)


PLUGIN = MAPoRL
