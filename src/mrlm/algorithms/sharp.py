"""SHARP: the team's reward, the agent's Shapley value, and a reward for its use of tools.

- **Kind** teams without a critic
- **Paper** arXiv 2602.08335.
- **Formula** `A = (C - mean) / (std + 1e-6)` over siblings, for each agent, with `C = a R + b phi +
  c T`: `phi` is the agent's Shapley value from replays in which every set of agents is silent, or
  its marginal gain; `T` is a named component of its rewards (`tool`, `tool_coef`).
- **Differs** from the paper, of which only the abstract and summaries were available: the weights
  are ours, no replay is left out to save cost, planner and workers are treated alike, and what
  counts as good use of tools is up to the environment. More than five agents get their marginal
  gain.
- **Knobs** plan: `chain(G)` with replays; credit: team, counterfactual and process; group: task,
  agent; baseline: mean / deviation.
- **Use it** for a planner with up to four workers that use tools; n agents cost `2^n - 1` replays.
  Its mean is not the gradient of the reward: a message also counts by what it is worth while
  others are silent; `credit_by: marginal` has no such term.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.ccpo import CCPO, Without
from mrlm.core.episodes import Episode
from mrlm.core.matters import SEVERAL_AGENTS, Matters
from mrlm.core.replayed import Replays
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.groups import Member
from mrlm.learn.credit.replays import shapley_values


@settings
class SHARP(CCPO):
    """`A = (C - mean) / (std + 1e-6)` with `C = team_coef R + credit_coef phi + tool_coef T` over
    an agent's rollouts of one task (arXiv 2602.08335). `phi` sums to the outcome with all agents
    less that with none. Then GRPO's surrogate.

    Args:
        credit_by: `shapley`: the mean gain over all orders in which agents join; `marginal`: the
            gain of joining last, from replays without one agent each.
        tool: component of the rewards of an agent's turns whose sum is `T`; `None`: no such reward.
        tool_coef: its weight.
    """

    team_coef: float = Field(default=1.0, ge=0)
    credit_by: Literal["shapley", "marginal"] = "shapley"
    tool: str | None = None
    tool_coef: float = 1.0

    matters: ClassVar[Mapping[str, Matters]] = {
        "credit_by": SEVERAL_AGENTS,
        "tool_coef": Matters(lambda s, run: s.tool is not None, "tool is not set; set it"),
    }

    @property
    def spec(self) -> Spec:
        spec = super().spec
        if self.credit_by == "marginal":
            return spec
        request = Replays("coalitions", self.silent)
        return replace(spec, sampling=replace(spec.sampling, replays=request))

    def contribution(self, episode: Episode, agent: str, without: Without) -> float | None:
        values = shapley_values(episode.reward, without) if self.credit_by == "shapley" else None
        if values is not None:
            return values.get(agent)
        return super().contribution(episode, agent, without)

    def process(self, member: Member) -> float:
        if self.tool is None:
            return 0.0
        return self.tool_coef * sum(turn.components.get(self.tool, 0.0) for turn in member[1].turns)


PLUGIN = SHARP
