"""Sampled episodes kept for supervised learning."""

from dataclasses import dataclass, field
from typing import Any

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import EpisodeError
from mrlm.core.records import episode_of, episode_record
from mrlm.play.sources.play import Play
from mrlm.play.sources.source import EpisodeSource, StateLater


@dataclass(slots=True)
class Collected(EpisodeSource):
    """Episodes for supervised learning: sampled, filtered by reward, and handed out one by one
    until the next collection is due.

    Args:
        play: samples the episodes.
        batch: tasks per collection.
        every: calls of `take` between collections; 0 collects once.
        min_reward: episodes with less are dropped; `None` keeps all.
    """

    play: Play
    batch: int
    every: int = 1
    min_reward: float | None = None
    kept: list[Episode] = field(default_factory=list)
    calls: int = 0
    cursor: int = 0

    def __post_init__(self) -> None:
        self.samples = self.rewarded = not self.play.demonstrate

    def num_tasks(self) -> int | None:
        return self.play.num_tasks()

    async def take(self, count: int) -> list[Group]:
        if not self.kept or (self.every and self.calls % self.every == 0):
            await self._collect()
        self.calls += 1
        size = len(self.kept)
        taken = [self.kept[(self.cursor + i) % size] for i in range(min(count, size))]
        self.cursor = (self.cursor + len(taken)) % size
        return [Group([episode], episode.task.id) for episode in taken]

    async def _collect(self) -> None:
        groups = await self.play.take(self.batch)
        played = [episode for group in groups for episode in group if not episode.failed]
        self.kept = [e for e in played if self.min_reward is None or e.reward >= self.min_reward]
        self.cursor = 0
        if not self.kept:
            best = max(episode.reward for episode in played)
            raise EpisodeError(
                f"none of {len(played)} episodes reached min_reward_threshold={self.min_reward:g} "
                f"(the best had {best:g}); lower it, or play more episodes"
            )

    def state_dict(self) -> dict[str, Any]:
        return self.state_later()()

    def state_later(self) -> StateLater:
        state = {"play": self.play.state_dict(), "calls": self.calls, "cursor": self.cursor}
        kept = self.kept  # a collection replaces the list
        return lambda: state | {"kept": [episode_record(episode) for episode in kept]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.play.load_state_dict(state["play"])
        self.calls, self.cursor = state["calls"], state["cursor"]
        self.kept = [episode_of(record) for record in state["kept"]]
