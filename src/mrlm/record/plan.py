"""The choice of the episodes that are recorded, and of those with tokens."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mrlm.core.episodes import Episode
from mrlm.record.files import EpisodeFile

SAMPLED_GROUPS = 2
"""Groups of a training step whose tokens are recorded with `sample`."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """The choice of what is recorded.

    Args:
        tokens: `sample`: the tokens of evaluations and of two groups per training step; `all`;
            `none`.
        keep: `all` episodes, those of `evaluations`, or of so many groups per training step (and
            of evaluations).
        compress: whether the file is compressed.
        max_gb: size of the file in GB (1e9 bytes) from which training steps are thinned.
    """

    tokens: Literal["sample", "all", "none"] = "sample"
    keep: Literal["all", "evaluations"] | int = "all"
    compress: bool = True
    max_gb: float | None = None

    def chosen(self, groups: Iterable[Iterable[Episode]]) -> Iterator[tuple[int, Episode, bool]]:
        """The recorded episodes: number of the group, episode, whether with tokens."""
        evaluated = self.tokens != "none"
        for number, group in enumerate(groups):
            recorded = self.keep == "all" or (isinstance(self.keep, int) and number < self.keep)
            sampled = self.tokens == "sample" and number < SAMPLED_GROUPS
            for episode in group:
                if episode.id.startswith("eval/"):
                    yield number, episode, evaluated
                elif recorded:
                    yield number, episode, self.tokens == "all" or sampled

    def trace(self, groups: Iterable[Iterable[Episode]]) -> None:
        """Marks turns whose credit and update are to be traced: those recorded with tokens."""
        groups = [list(group) for group in groups]
        for group in groups:
            for episode in group:
                for turn in episode.turns:
                    turn.trace = turn.why = None  # of an earlier step, if episodes are kept
        for _, episode, tokens in self.chosen(groups):
            for turn in episode.turns if tokens else ():
                turn.trace = {}

    def open(self, folder: Path, first: int) -> EpisodeFile:
        """The file of episodes of a run folder; parts of step `first` and later are removed."""
        limit = None if self.max_gb is None else int(self.max_gb * 1e9)
        return EpisodeFile(folder, first, compress=self.compress, max_bytes=limit)
