"""Failed episodes as the log shows them: each kind of failure once, with the user's frames. The
record of every episode has its own."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from mrlm.core.episodes import Episode
from mrlm.core.errors import EpisodeError
from mrlm.core.user_errors import explain, origin, title, whole

log: logging.Logger = logging.getLogger("mrlm")


class AllFailedError(EpisodeError):
    """No episode of a batch succeeded.

    Attributes:
        episodes: all of them.
    """

    episodes: Sequence[Episode] = ()


class Failures:
    """The failures of the episodes of one `Play`.

    Attributes:
        latest: the exception of the last episode that failed here.
    """

    def __init__(self) -> None:
        self.latest: BaseException | None = None
        self._known: set[Hashable] = set()

    def all(self, episodes: Sequence[Episode]) -> AllFailedError:
        """The error of a batch in which every episode failed."""
        error = AllFailedError(
            f"all {len(episodes)} episodes failed; the first: {episodes[0].error}"
        )
        error.episodes = list(episodes)
        return error

    def note(self, episode: Episode, error: BaseException) -> None:
        """Log an episode that failed. The whole traceback is logged at the level DEBUG."""
        self.latest = error
        kind = origin(error)
        if kind in self._known:
            log.debug("episode %s failed in the same place: %s", episode.id, title(error))
            return
        self._known.add(kind)
        log.warning("episode %s failed: %s", episode.id, explain(error))
        log.debug("%s", whole(error))
