"""CCPO: the team's reward less the reward of the same episode without the agent's messages.

- **Kind** teams without a critic
- **Paper** arXiv 2603.21563.
- **Formula** `A = (C - mean) / (std + 1e-6)` over siblings, for each agent, with `C = a R + b (R -
  R_without)`; `R_without` is the team's reward of a replay in which all messages of the agent are
  empty.
- **Differs** from the paper: its first version has no term `a R` and normalises by a moving average
  over the run, its code of the second adds `b` times -1, 0 or 1 to the reward of the first of two
  agents only (`preset: ccpo` has its numbers, for every agent); credit from the agents' own
  evaluations is not done. Messages of others before the agent's first turn are kept.
- **Knobs** plan: `chain(G)` with replays; credit: team and counterfactual; group: task, agent;
  baseline: mean / deviation.
- **Use it** where agents free-ride: one whose silence changes nothing gets no credit.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.replayed import Replays
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.explain import against, because
from mrlm.learn.credit.groups import Member, assign, members, several, trained_turns
from mrlm.learn.credit.replays import outcomes_without

Without = Mapping[frozenset[str], float]
"""Silent agents -> outcome."""


@settings
class CCPO(GroupRelative, PolicyGradient):
    """`A = (C - mean) / (std + 1e-6)` with `C = team_coef R + credit_coef (R - R_without)` over an
    agent's rollouts of one task (arXiv 2603.21563): the marginal contribution of the agent to the
    outcome of the episode. Then GRPO's surrogate. One without a successful replay is left out.

    Args:
        silent: replays of each episode without each agent; `R_without` is their mean.
        team_coef: weight of the team's reward.
        credit_coef: weight of the contribution.
    """

    silent: int = Field(default=1, ge=1)
    team_coef: float = Field(default=0.0, ge=0)
    credit_coef: float = Field(default=1.0, ge=0)

    scales: ClassVar[tuple[str, ...]] = ("group", "none")
    decides: ClassVar[tuple[str, ...]] = ("key", "rewards")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.team_coef and not self.credit_coef:
            raise ConfigError(
                "team_coef and credit_coef are both 0, so that nothing gets credit; set one"
            )

    @property
    def spec(self) -> Spec:
        spec = super().spec
        request = Replays("silence", self.silent)
        return replace(spec, sampling=replace(spec.sampling, replays=request))

    def contribution(self, episode: Episode, agent: str, without: Without) -> float | None:
        """The part of the outcome of an episode that an agent added; `None` if it is unknown."""
        silent = without.get(frozenset({agent}))
        return None if silent is None else episode.reward - silent

    def process(self, member: Member) -> float:
        """Further reward of a rollout."""
        return 0.0

    def credit_group(self, group: Group) -> None:
        outcomes = outcomes_without(group)
        for agent, agent_members in members(group).items():
            credit = [self.contribution(e, agent, outcomes.get(e.id, {})) for e, _ in agent_members]
            pairs = zip(agent_members, credit, strict=True)
            scored = [(member, value) for member, value in pairs if value is not None]
            scores = [self._score(member, value) for member, value in scored]
            apart = several(member for member, _ in scored)
            compared = self.compared(scores) if apart else np.zeros(len(scored))
            for (member, value), score, advantage in zip(scored, scores, compared, strict=True):
                assign(member[1], advantage)
                turns = trained_turns(member[1])
                for turn in turns:
                    text = "team {}, contribution {}, process {}: score {}"
                    because(turn, text, member[0].reward, value, self.process(member), score)
                against(turns, score, scores, advantage)

    def _score(self, member: Member, contribution: float) -> float:
        total = self.team_coef * member[0].reward + self.credit_coef * contribution
        return total + self.process(member) + self.too_long(sum(map(len, member[1].turns)))


PLUGIN = CCPO
