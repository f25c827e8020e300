"""HAPPO: agents learn one after the other, each weighing its advantages by how far the others moved
before it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.mappo import MAPPO
from mrlm.config.paper_presets import PaperPreset
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import STRICT
from mrlm.learn.bases.spec import Spec
from mrlm.learn.bases.steps import CarryOver, Rescoring
from mrlm.learn.credit.groups import column
from mrlm.learn.credit.joint_steps import JointStep, joint_steps
from mrlm.learn.ops import LOG_RATIO_LIMIT


@dataclass(kw_only=True, config=STRICT)
class HAPPO(MAPPO, CarryOver):
    """Heterogeneous-agent PPO (arXiv 2109.11251): MAPPO's advantages, and policies that update in
    random order, anew in every iteration. Whoever comes k-th minimises
    `-mean(F min(r A, clip(r) A))` with the compound factor `F = prod_{j<k} pi_new_j / pi_old_j` of
    the agents of the same joint step whose policies have updated already, from the weights they
    ended with. F is positive, so that weighing the advantage by it is weighing the minimum.

    A product over the tokens of responses explodes with their length, hence the default
    `factor="geometric"`: the geometric mean over the tokens an agent wrote in the joint step, and
    each predecessor's factor within [.5, 2]. F is one number per joint step whatever `loss_type`
    makes of the agent's own ratio. It never reaches beyond a joint step.

    Where agents of one step speak one after the other, the texts are as they were sampled, and the
    product over all that have updated is still the weight of the joint action, whatever the order
    of their messages: those who spoke later correct the agent's own value, those who spoke earlier
    the states it is in.

    The critic is MAPPO's. It has a network of its own and learns from columns that no policy's
    update touches, so that it makes no difference whether it learns before the policies or after.
    One epoch, as weights that moved far make for extreme factors. Where those before do not move,
    and for whoever is first, this is MAPPO.

    Args:
        factor: `geometric`, or `exact`: the product over all tokens.
        factor_range: bounds of the factor of each predecessor; `None` is off.
        factor_scope: `updated`: all that have updated. `later_only`: of these, only turns that were
            not over when the agent was asked, for less variance.
        on_shared: agents with one policy move together. `refuse` them, or update them as one
            (`simultaneous`) when it is that policy's turn.
    """

    factor: Literal["geometric", "exact"] = "geometric"
    factor_range: tuple[float, float] | None = (0.5, 2.0)
    factor_scope: Literal["updated", "later_only"] = "updated"
    on_shared: Literal["refuse", "simultaneous"] = "refuse"
    update_epochs: int = Field(default=1, ge=1)

    presets: ClassVar[Mapping[str, PaperPreset]] = {
        "happo": PaperPreset(
            "HAPPO, arXiv 2109.11251",
            {
                "factor": ("exact", "authors' code, happo.py"),
                "factor_range": (None, "authors' code, happo.py"),
                "value_normalization": (True, "authors' code, happo.yaml"),
                "clip_range": (0.2, "authors' code, happo.yaml"),
                "gamma": (0.99, "authors' code, happo.yaml"),
                "gae_lambda": (0.95, "authors' code, happo.yaml"),
                "entropy_coef": (0.01, "authors' code, happo.yaml"),
                "num_minibatches": (1, "authors' code, happo.yaml"),
                "update_epochs": (5, "authors' code, happo.yaml"),
                "critic_epochs": (5, "authors' code, happo.yaml"),
            },
            None,
            (
                "The exact factor of a long message is far from 1 after one update: 2.72 where "
                "each of 100 tokens moved by 1 %. The paper's actions are a few numbers.",
                "The critic learns before the policies, from columns that they do not touch; its "
                "error is squared and not Huber's.",
                "The learning rate, 5e-4, is too high for a language model.",
            ),
        ),
    }

    matters: ClassVar[Mapping[str, Matters]] = {
        "recompute_old": Matters(
            lambda s, run: False,
            "happo always takes ratios to log-probs of the trained model; remove it",
        ),
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
        steps = [
            step for group in groups for episode in group.valid for step in joint_steps(episode)
        ]
        factors = [factor for step in steps for factor in self.weigh(step, updated, left)]
        name = "+".join(sorted(updated))
        return {f"compound_factor/{name}": float(np.mean(factors))} if factors else {}

    def weigh(
        self, step: JointStep, updated: frozenset[str], waiting: frozenset[str]
    ) -> list[float]:
        """Multiply the advantages in a joint step of the policies in `waiting` by the factors of
        the agents whose policies are in `updated`; returns what with."""
        moved: dict[str, list[Turn]] = {}
        for turn in step.trained:
            if turn.policy in updated:
                moved.setdefault(turn.agent, []).append(turn)
        factors: list[float] = []
        for turn in step.trained:
            if turn.policy not in waiting or turn.advantages is None:
                continue
            weight = math.prod(self._factor(turns, turn) for turns in moved.values())
            turn.advantages = column(turn, "advantages") * weight
            factors.append(weight)
        return factors

    def _factor(self, turns: Sequence[Turn], turn: Turn) -> float:
        """`pi_new / pi_old` of what another agent said in the joint step of a turn."""
        later = self.factor_scope == "later_only"
        said = [each for each in turns if not later or each.order >= turn.order]
        if not said:
            return 1.0
        moves = [column(each, "new_logprobs") - column(each, "old_logprobs") for each in said]
        together = np.concatenate(moves)
        move = float(together.mean() if self.factor == "geometric" else together.sum())
        factor = math.exp(min(max(move, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT))
        low, high = self.factor_range or (0.0, math.inf)
        return min(max(factor, low), high)


PLUGIN = HAPPO
