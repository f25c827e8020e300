"""HAPPO: sequential agent updates, advantages weighted by the ratios of earlier updates.

- **Kind** teams with critics
- **Paper** arXiv 2109.11251.
- **Formula** agents update sequentially, in random order, each on `F clip(A)` with `F = prod_j
  pi_new_j / pi_old_j` over the agents of the same joint step that have updated. Of a whole response
  that ratio is the geometric mean over its tokens, within [.5, 2] (`factor`, `factor_range`).
- **Differs** from the paper: on text the default is nearly MAPPO in a random order. The paper's
  factor is the product of the probability ratios over a whole action, here of all tokens of a
  response (`factor: exact`, `factor_range: null`, both in `preset: happo`). If each of 100 tokens
  changed by 1 % that product is 2.72; the geometric mean, the default, is 1.01, at any length. The
  theorem of monotonic improvement holds for the product, whose variance grows with the length: use
  it with short answers, few epochs and small steps.
- **Knobs** credit: team; baseline: GAE over joint steps; critic: `central`; loss: token (turn,
  sequence) ratio, row weight F; schedule: sequential.
- **Use it** if policies are separate and simultaneous updates interfere. Agents that share a policy
  are refused, or updated as one (`on_shared`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.algorithms.mappo import MAPPO
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import Spec
from mrlm.learn.bases.steps import CarryOver, Rescoring
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import column
from mrlm.learn.credit.joint_steps import JointStep, joint_steps
from mrlm.learn.ops import LOG_RATIO_LIMIT


@settings
class HAPPO(MAPPO, CarryOver):
    """Heterogeneous-agent PPO (arXiv 2109.11251): MAPPO's advantages, with policies updated one
    after the other in an order that is shuffled in every iteration. The k-th policy minimises
    `-mean(F min(r A, clip(r) A))` with `F = prod_{j<k} pi_new_j / pi_old_j` over the agents of the
    same joint step whose policies were already updated, at their final weights. F is positive, so
    the advantage is multiplied by it; it is one number per joint step for every `loss_type`.

    Where the agents of one step act one after the other, the product over all updated agents is
    still the weight of the joint action, whatever the order of their messages: agents that act
    later correct the agent's own value, earlier ones the distribution of its states.

    The critic is MAPPO's, trained on columns that no policy update changes, before the policies or
    after. One epoch, because large updates give extreme factors. For the first policy, and where
    earlier ones did not change, this is MAPPO.

    Args:
        factor: `geometric`, or `exact`: the product over all tokens.
        factor_range: bounds of the factor of each predecessor; `None` is off.
        on_shared: agents with one policy are updated together. `refuse` them, or update them as one
            (`simultaneous`) at that policy's position in the order.
    """

    factor: Literal["geometric", "exact"] = "geometric"
    factor_range: tuple[float, float] | None = (0.5, 2.0)
    on_shared: Literal["refuse", "simultaneous"] = "refuse"
    update_epochs: int = Field(default=1, ge=1)

    matters: ClassVar[Mapping[str, Matters]] = {
        "recompute_old": Matters(
            lambda s, run: False,
            "happo always takes ratios to log-probs of the trained model; remove it",
        )
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor_range is not None and not 0 < self.factor_range[0] <= self.factor_range[1]:
            raise ConfigError(
                f"factor_range={list(self.factor_range)} must be two positive numbers, the lower "
                "one first, such as [0.5, 2.0]"
            )

    @property
    def spec(self) -> Spec:
        spec = super().spec
        return replace(spec, columns=spec.columns | {"old_logprobs"}, orders=("sequential",))

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        super().check_agents(policy_of, num_agents)
        policy, count = Counter(policy_of.values()).most_common(1)[0]
        if count > 1 and self.on_shared == "refuse":
            agents = [agent for agent, name in policy_of.items() if name == policy]
            raise ConfigError(
                f"happo updates agents one after the other, and {', '.join(agents)} share the "
                f"policy {policy!r}; give each a policy (or an adapter) of its own, use mappo, or "
                "set happo.on_shared=simultaneous to update them as one"
            )

    async def carry(
        self, stage: Sequence[Rescoring], waiting: Sequence[Rescoring], groups: Sequence[Group]
    ) -> dict[str, float]:
        for learner in stage:
            await learner.rescore(groups)
        updated = frozenset(learner.policy for learner in stage)
        left = frozenset(learner.policy for learner in waiting)
        episodes = [episode for group in groups for episode in group.valid]
        steps = [step for episode in episodes for step in joint_steps(episode)]
        factors = [factor for step in steps for factor in self.weigh(step, updated, left)]
        name = "+".join(sorted(updated))
        return {f"compound_factor/{name}": float(np.mean(factors))} if factors else {}

    def weigh(
        self, step: JointStep, updated: frozenset[str], waiting: frozenset[str]
    ) -> list[float]:
        """Multiply the advantages in a joint step of the policies in `waiting` by the factors of
        the agents whose policies are in `updated`; returns these factors."""
        moved: dict[str, list[Turn]] = {}
        for turn in step.trained:
            if turn.policy in updated:
                moved.setdefault(turn.agent, []).append(turn)
        later = [x for x in step.trained if x.policy in waiting and x.advantages is not None]
        weight = math.prod(map(self._factor, moved.values())) if later else 1.0
        for turn in later:
            turn.advantages = column(turn, "advantages") * weight
            because(turn, "* factor of earlier agents {} = {:+}", weight, turn.advantages)
        return [weight] * len(later)

    def _factor(self, turns: Sequence[Turn]) -> float:
        """`pi_new / pi_old` of an agent's turns in a joint step."""
        moves = [column(turn, "new_logprobs") - column(turn, "old_logprobs") for turn in turns]
        together = np.concatenate(moves)
        move = float(together.mean() if self.factor == "geometric" else together.sum())
        factor = math.exp(min(max(move, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT))
        low, high = self.factor_range or (0.0, math.inf)
        return min(max(factor, low), high)


PLUGIN = HAPPO
