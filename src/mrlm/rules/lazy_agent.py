"""An agent is lazy or ignored.

In the recorded episodes of the last steps nearly all of an agent's messages are empty; or, in a
team, all its advantages are 0 or far smaller than those of another agent in every one of the last
steps: its turns get no credit; or, with `evaluation.effects`, in several evaluations its messages
change nothing of what others write, silence in its place costs nothing, and other agents have an
influence; or, in a team of one speaker and one listener that has not solved its task, in several
evaluations the listener's turns are the same with silence in place of the speaker's, which costs
nothing; or, while its advantages are 0 and the task is not solved, its answers to a task are the
same in nearly all recent groups, although the messages of another agent that it read differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.messages import Written, heard, written
from mrlm.doctor.progress import solved, success
from mrlm.doctor.recent import RecentEpisodes, training
from mrlm.doctor.rule import WINDOW, Rule

Finding = tuple[int, str]


@dataclass(frozen=True)
class LazyAgent(Rule):
    """Silence, no credit, or no effect.

    Args:
        steps: consecutive steps in which it holds.
        silent: share of an agent's messages that are empty.
        share: spread of its advantages, as a share of the largest of another agent; and its
            influence, as a share of the largest of another agent.
        evaluations: consecutive evaluations without an effect.
        influence: that of another agent, in nats per token, from which messages are read.
        groups: least number of recent groups whose messages differ.
        same: share of these in which its answers do not; and of its turns that are the same with
            silence in place of what it reads.
        cost: of silence, in standard deviations of the held-out reward.
    """

    steps: int = 8
    silent: float = 0.9
    share: float = 0.02
    evaluations: int = 4
    influence: float = 0.05
    cost: float = 0.05
    groups: int = 16
    same: float = 0.95

    do: ClassVar[str] = (
        "give the agent a reward of its own, or credit that tells agents apart; check whether its "
        "messages reach the others and whether its prompt asks for something"
    )

    def ready(self, history: History) -> bool:
        return len(history.agents) > 0 and history.has(r"advantage/.+/std", self.steps)

    def __call__(self, history: History, episodes: RecentEpisodes) -> Iterator[Alarm]:
        steps = episodes.by_step(written)
        for agent in history.agents:
            messages = {
                step: written_by[agent] for step, written_by in steps.items() if agent in written_by
            }
            finding = self._mute(messages) or self._ignored(history, agent)
            finding = finding or self._idle(history, agent) or self._deaf(history, episodes, agent)
            finding = finding or self._deaf_alone(history, episodes, agent)
            if finding is not None:
                since, because = finding
                rows = [row for row in training(episodes) if agent in row["agents"]]
                yield Alarm(since, because, agent, history.policies.get(agent), cited(rows))

    def _mute(self, steps: dict[int, Written]) -> Finding | None:
        trained = {step: messages for step, messages in steps.items() if messages.trained}
        count = sum(messages.trained for messages in trained.values())
        if len(trained) < min(WINDOW, self.steps) or count < 16:
            return None
        if any(each.empty < self.silent * each.trained for each in trained.values()):
            return None
        whole = sum(messages.empty for messages in trained.values()) / count
        return min(trained), f"{whole:.0%} of its {count} messages are empty"

    def _ignored(self, history: History, agent: str) -> Finding | None:
        others = [other for other in history.agents if other != agent]
        if not others:
            return None
        steps, stds = history.known(f"advantage/{agent}/std", self.steps)
        spreads = [history.known(f"advantage/{other}/std", self.steps)[1] for other in others]
        if len(stds) < self.steps or any(len(other) < self.steps for other in spreads):
            return None
        most = np.max(spreads, axis=0)
        if (most <= 0).any() or (stds > self.share * most).any():
            return None
        return int(steps[0]), (
            f"the standard deviation of its advantages is {stds.max():.3g} in {self.steps} steps, "
            f"that of another agent {most.min():.3g} or more"
        )

    def _deaf(self, history: History, episodes: RecentEpisodes, agent: str) -> Finding | None:
        """Whether what it answers does not depend on what it has read of another agent, and nearly
        all its advantages are 0."""
        ties = history.known(f"advantage/{agent}/zero", self.steps)[1]
        if len(ties) < self.steps or ties.min() < self.same:
            return None
        steps = episodes.by_step(heard)
        for other in history.agents:
            counts = {
                step: each[other, agent] for step, each in steps.items() if (other, agent) in each
            }
            varied, equal = (sum(each[place] for each in counts.values()) for place in (0, 1))
            if varied < self.groups or equal < self.same * varied:
                continue
            rates = success(history, episodes)[1][-self.steps :]
            if (len(rates) and rates.mean() > 0.9) or solved(history, episodes, self.steps):
                continue
            return min(counts), (
                f"its answers to a task are the same in {equal} of {varied} recent groups in which "
                f"it read different messages of {other}: what {other} writes has no effect"
            )
        return None

    def _idle(self, history: History, agent: str) -> Finding | None:
        """Whether its messages had no effect in the last evaluations, and those of others had."""
        pairs = history.names(r"eval/influence/(.+)")
        pair_names = [name for name, pair in pairs.items() if pair.startswith(f"{agent}/")]
        others = [name for name in pairs if name not in pair_names]
        free = self._free(history, agent)
        if not pair_names or not others or free is None:
            return None
        since, cost = free
        values = [history.known(name, self.evaluations)[1] for name in (*pair_names, *others)]
        if any(len(value_row) < self.evaluations for value_row in values):
            return None
        own, rest = values[: len(pair_names)], values[len(pair_names) :]
        most, read = np.max(own, axis=0), np.max(rest, axis=0)
        if (read < self.influence).any() or (most > self.share * read).any():
            return None
        return since, (
            f"its messages have an influence of at most {most.max():.2g} nats per token in "
            f"{self.evaluations} evaluations, those of another agent {read.min():.2g} or more, and "
            f"silence in its place costs at most {cost:.2g}"
        )

    def _deaf_alone(self, history: History, episodes: RecentEpisodes, agent: str) -> Finding | None:
        """Whether its turns did not depend on those of the only agent that it reads in the last
        evaluations."""
        pairs = history.names(r"eval/changed/(.+)")
        if len(pairs) != 1:
            return None
        ((name, pair),) = pairs.items()
        speaker, _, listener = pair.partition("/")
        changed = history.known(name, self.evaluations)[1]
        free = self._free(history, speaker)
        if listener != agent or free is None or len(changed) < self.evaluations:
            return None
        influence = history.known(f"eval/influence/{pair}", self.evaluations)[1]
        if len(influence) and not influence.any():  # it is not shown them, as in chain with alone
            return None
        if changed.max() > 1 - self.same or solved(history, episodes, self.steps):
            return None
        return free[0], (
            f"its turns do not depend on what {speaker} writes: with silence in its place "
            f"{1 - changed.max():.0%} of them are the same in {self.evaluations} evaluations, and "
            f"the reward falls by at most {free[1]:.2g}"
        )

    def _free(self, history: History, agent: str) -> tuple[int, float] | None:
        """The first of the last evaluations and what silence costs at most in them, if that is
        nothing."""
        steps, costs = history.known(f"eval/marginal/{agent}", self.evaluations)
        deviations = history.known("eval/reward/std")[1]
        if len(costs) < self.evaluations or not len(deviations):
            return None
        free = costs.max() <= self.cost * float(np.median(deviations))
        return (int(steps[0]), float(costs.max())) if free else None


PLUGIN = LazyAgent
