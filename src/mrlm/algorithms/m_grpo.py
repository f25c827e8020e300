"""M-GRPO: a planner is compared with its siblings, and sub-agents call by call.

- **Kind** teams without a critic
- **Paper** arXiv 2511.13288.
- **Formula** planner: `(R - mean) / (std + 1e-6)` over the episodes of a task; sub-agent: the same
  over all its calls in these episodes, with `a R + (1 - a) r`, aligned: every episode counts with D
  calls, some of them several times or left out.
- **Differs** from the authors' code: a call that counts n times is one sample with n times the
  advantage; the reward of a call is ours (there its format, the planner's reward and a judge's
  score); one process trains all agents, where each has its own cluster and queue.
- **Knobs** plan: `chain(G)`, planner and sub-agents; credit: team and own (`planner_coef`);
  group: task, agent, calls; baseline: mean / deviation.
- **Use it** for a planner that calls sub-agents a varying number of times.
"""

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Group
from mrlm.core.matters import SEVERAL_AGENTS, Matters
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import check_agent, settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.credit.explain import against, because
from mrlm.learn.credit.groups import Member, members, several, trained_turns


@settings
class MGRPO(GroupRelative, PolicyGradient):
    """`A = (R - mean) / (std + 1e-6)` in two levels (arXiv 2511.13288): the planner's rewards over
    the episodes of a task; and for each sub-agent the scores of all its calls in these episodes,
    `planner_coef R + (1 - planner_coef) r` with the planner's reward of the episode and the
    sub-agent's own for the call. Then GRPO's surrogate.

    A call is the turns of a sub-agent in one joint step of the environment. So that an episode with
    many calls does not count more than one with few, each is aligned to `calls` of them: where
    there are fewer, some count several times; where there are more, some are left out, at random.

    Args:
        planner: the agent that calls the others; `None` is the first agent of the environment.
        calls: calls of a sub-agent per episode (D); `None` is the most in an episode of the group,
            so that none is left out.
        planner_coef: weight of the planner's reward in the score of a call.
    """

    planner: str | None = None
    calls: int | None = Field(default=None, ge=1)
    planner_coef: float = Field(default=0.5, ge=0, le=1)

    scales: ClassVar[tuple[str, ...]] = ("group", "none")
    decides: ClassVar[tuple[str, ...]] = ("key", "rewards")

    matters: ClassVar[Mapping[str, Matters]] = dict.fromkeys(
        ("planner", "calls", "planner_coef"), SEVERAL_AGENTS
    )

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        super().check_agents(policy_of, num_agents)
        check_agent("m_grpo.planner", self.planner, policy_of)

    def credit_group(self, group: Group) -> None:
        planner = self.planner or group.agents[0]
        for agent, agent_members in members(group).items():
            if agent == planner:
                self.credit_side(agent_members)
            else:
                self._credit_calls(agent_members, planner)

    def _credit_calls(self, members: Sequence[Member], planner: str) -> None:
        """Credit of a sub-agent from all its calls in a group."""
        calls = [calls_of(member) for member in members]
        number = self.calls or max(map(len, calls))
        rows: list[tuple[list[Turn], float]] = []
        counts: list[int] = []
        for (episode, _), episode_calls in zip(members, calls, strict=True):
            main = episode.rollouts.get(planner)
            reward = episode.reward if main is None else main.reward
            for turns in episode_calls:
                call_reward = sum(turn.reward for turn in turns)
                score = self.planner_coef * reward + (1 - self.planner_coef) * call_reward
                rows.append((turns, score + self.too_long(sum(map(len, turns)))))
            counts += aligned(len(episode_calls), number, f"{episode.id}/{members[0][1].agent}")
        scores = np.repeat([score for _, score in rows], counts)
        compared = self.compared(scores) if several(members) else np.zeros(len(scores))
        places = np.cumsum(counts) - counts
        for (turns, score), count, start in zip(rows, counts, places, strict=True):
            for turn in turns if count else ():
                turn.advantages = float(count * compared[start])
                against([turn], score, scores, float(compared[start]), "aligned calls")
                if count > 1:
                    because(turn, "x {} times aligned = {:+}", count, turn.advantages)


def calls_of(member: Member) -> list[list[Turn]]:
    """The trained turns of each call of a sub-agent in an episode."""
    calls: dict[int, list[Turn]] = {}
    for turn in trained_turns(member[1]):
        calls.setdefault(turn.step, []).append(turn)
    return list(calls.values())


def aligned(count: int, number: int, seed: str) -> list[int]:
    """How often each of `count` calls is used so that there are `number`: as equally as possible,
    the remainder at random.

    Examples:
        >>> aligned(2, 4, "an episode"), sum(aligned(5, 3, "an episode"))
        ([2, 2], 3)
    """
    whole, rest = divmod(number, count)
    more = random.Random(seed).sample(range(count), rest)
    return [whole + (index in more) for index in range(count)]


PLUGIN = MGRPO
