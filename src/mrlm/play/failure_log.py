"""The log of failed episodes: each kind of failure once, with the user's stack frames. The record
of every episode has its own error."""

from collections.abc import Hashable, Sequence

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import EpisodeError
from mrlm.core.log import log
from mrlm.core.user_errors import explain, origin, title, whole


class AllFailedError(EpisodeError):
    """No episode of a batch succeeded."""

    episodes: Sequence[Episode] = ()


class Failures:
    """The failures of the episodes of one `Play`."""

    def __init__(self) -> None:
        self.latest: BaseException | None = None
        """The exception of the last failed episode."""
        self._known: set[Hashable] = set()

    def checked(self, groups: list[Group]) -> list[Group]:
        """The groups of a batch. A few failures are data; if nothing succeeded something is wrong
        with the set-up. Raises `AllFailedError`: every episode failed, or was cut short before
        anybody spoke."""
        episodes = [episode for group in groups for episode in group]
        if not episodes or not all(item.failed or _unread(item) for item in episodes):
            return groups
        first = episodes[0].error
        error = AllFailedError(f"all {len(episodes)} episodes failed; the first: {first}")
        error.episodes = episodes
        raise error from self.latest

    def note(self, episode: Episode, error: BaseException) -> None:
        """Log a failed episode. The whole traceback is logged at the level DEBUG."""
        self.latest = error
        kind = origin(error)
        if kind in self._known:
            log.debug("episode %s failed in the same place: %s", episode.id, title(error))
            return
        self._known.add(kind)
        log.warning("episode %s failed: %s", episode.id, explain(error))
        log.debug("%s", whole(error))


def _unread(episode: Episode) -> bool:
    """Whether an episode was cut short before anybody spoke: its first prompt is too long."""
    return episode.metrics.get("prompt_too_long", 0.0) > 0 and not episode.turns
