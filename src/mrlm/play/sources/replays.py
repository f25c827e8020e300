"""The source of an algorithm that gives credit by replays: after the episodes of a task, the same
ones are played again with one decision changed."""

import asyncio
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from mrlm.core.environment import Environment
from mrlm.core.episodes import Episode, Group
from mrlm.core.replayed import ReplayMark, Replays, coalitions
from mrlm.core.types import Turn
from mrlm.play.agent import Agent, AgentSettings, seed_of
from mrlm.play.engine import Key
from mrlm.play.sources.branches import Past, Script, past_of, scripted
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import PlannedTask

REPLAY = "~"
"""Between the id of an episode and the number of its replay."""


@dataclass(eq=False, repr=False)
class PlayWithReplays(Play):
    """A `Play` that adds replays of its training episodes to their groups. An environment is
    stepped again from its reset with the recorded messages, which takes no completions; failed
    episodes are not replayed, and evaluations play no replays.

    Args:
        replays: the replays of an episode.
    """

    replays: Replays = field(default_factory=lambda: Replays("silence"))

    def __post_init__(self, *arguments: object) -> None:
        super().__post_init__(*arguments)  # type: ignore[arg-type]
        self._script: Script = Script()
        self._past: Past = {}

    async def _group(self, job: PlannedTask) -> Group:
        group = await super()._group(job)
        if job.split == "train":
            jobs = [
                self._replay(job, episode, script, mark)
                for episode in group.valid
                for script, mark in self._changes(job, episode)
            ]
            every = [*group.episodes, *await asyncio.gather(*jobs)]
            group.episodes = sorted(every, key=lambda episode: episode.path)
        return group

    def _changes(self, job: PlannedTask, episode: Episode) -> Iterator[tuple[Script, ReplayMark]]:
        """The script of every replay of an episode, and its mark."""
        kind, number = self.replays.kind, 0
        trained = [turn for turn in episode.turns if turn.trained and turn.completion_ids]
        if kind == "alternatives":
            for turn in self._chosen(job, episode, trained):
                mark = ReplayMark(episode.id, kind, (turn.agent,), turn.index)
                for _ in range(self.replays.count):
                    turns = frozenset({(turn.agent, turn.index)})
                    yield Script(number, turns=turns, own_rest=False, feed=False), mark
                    number += 1
            return
        agents = list(dict.fromkeys(turn.agent for turn in trained))
        sets = coalitions(agents) if kind == "coalitions" else [frozenset({a}) for a in agents]
        for silent in sets:
            mark = ReplayMark(episode.id, kind, tuple(sorted(silent)))
            for _ in range(self.replays.count):
                yield Script(number, agents=silent, how="text", own_rest=False, feed=False), mark
                number += 1

    def _chosen(self, job: PlannedTask, episode: Episode, turns: list[Turn]) -> list[Turn]:
        """The turns of an episode that are changed."""
        most = self.replays.decisions
        if most is None or most >= len(turns):
            return turns
        key = (*self.task_sampler.key(job), episode.path[0], "decisions")
        places = random.Random(seed_of(key)).sample(range(len(turns)), most)
        return [turns[index] for index in sorted(places)]

    async def _replay(
        self, job: PlannedTask, episode: Episode, script: Script, mark: ReplayMark
    ) -> Episode:
        """One replay; only a turn that is sampled instead of another is trained on."""
        one, number = copy.copy(self), episode.path[0]
        one._script, one._past = script, past_of(episode)
        env, key = job.env, (*self.task_sampler.key(job), number)
        play = partial(one._episode, env, episode.task, None, key, job.lineups[number])
        (replay,) = await self._tried(env.retries, play)
        replay.id, replay.replayed = f"{episode.id}{REPLAY}{script.number}", mark
        for turn in replay.turns:
            turn.trained &= mark.kind == "alternatives" and (turn.agent, turn.index) in script.turns
        return replay

    def _agent(
        self, settings: AgentSettings, episode: Episode, environment: Environment, key: Key
    ) -> Agent:
        made = super()._agent(settings, episode, environment, key)
        if not self._past:
            return made
        return scripted(made, key, self._script, self._past, environment)
