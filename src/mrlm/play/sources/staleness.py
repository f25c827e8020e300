"""Staleness of the weights that sampled the training data, and times that learner and engines wait
for each other."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

from mrlm.core.episodes import Group
from mrlm.core.timing import span


class Staleness:
    """Dates groups, and accumulates their metrics until `take`."""

    def __init__(self) -> None:
        self._tokens: Counter[int] = Counter()
        self._episodes = self._partial = self._dropped = 0
        self._waited = self._rested = 0.0
        self._since: float | None = None
        self._span: AbstractContextManager[None] | None = None

    def date(self, group: Group, versions: Mapping[str, int]) -> int:
        """Sets on every turn the staleness of the weights that sampled it; returns the maximum over
        the turns to be trained on. `versions`: policy -> version of its weights now."""
        oldest = 0
        for episode in group:
            for turn in episode.turns:
                turn.lag = max(0, versions.get(turn.policy, turn.version) - turn.version)
                if turn.trained and not episode.failed:
                    oldest = max(oldest, turn.lag)
        return oldest

    def note(self, groups: list[Group]) -> None:
        for episode in (item for group in groups for item in group.valid):
            versions: dict[str, set[int]] = {}
            for turn in (turn for turn in episode.own_turns if turn.trained):
                self._tokens[turn.lag] += len(turn)
                versions.setdefault(turn.policy, set()).add(turn.version)
            self._episodes += 1
            self._partial += any(len(several) > 1 for several in versions.values())

    def drop(self) -> None:
        """Counts a group that was too stale."""
        self._dropped += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which the learner waits for rollouts."""
        started = perf_counter()
        try:
            yield
        finally:
            self._waited += perf_counter() - started

    def doze(self) -> None:
        """Sampling pauses from now on."""
        if self._since is None:
            self._since, self._span = perf_counter(), span("waiting")
            self._span.__enter__()

    def wake(self) -> None:
        """Sampling continues."""
        if self._since is not None and self._span is not None:
            self._rested += perf_counter() - self._since
            self._span.__exit__(None, None, None)
            self._since = self._span = None

    def take(self, max_lag: int) -> dict[str, float]:
        """The metrics since the last call; `max_lag` is the maximal staleness that is allowed."""
        if self._since is not None:
            now = perf_counter()
            self._rested, self._since = self._rested + now - self._since, now
        tokens, everything = self._tokens, max(1, self._tokens.total())
        metrics = {
            "lag/mean": sum(lag * number for lag, number in tokens.items()) / everything,
            "lag/max": float(max(tokens, default=0)),
            "lag/partial": self._partial / max(1, self._episodes),
            "lag/dropped": float(self._dropped),
            "seconds/waiting": self._waited,
            "seconds/resting": self._rested,
        }
        metrics |= {f"lag/tokens/{lag}": tokens[lag] / everything for lag in range(max_lag + 1)}
        self._tokens = Counter()
        self._episodes = self._partial = self._dropped = 0
        self._waited = self._rested = 0.0
        return metrics
