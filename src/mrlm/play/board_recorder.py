"""Recording of the boards of episodes, where they change."""

from collections.abc import Hashable

from mrlm.core.board import bounded
from mrlm.core.episodes import Episode
from mrlm.core.log import log
from mrlm.core.user_errors import explain, origin, title

MOST_DRAWN = 100_000
"""Characters of an episode's boards, after which only its last board is added."""


class BoardRecorder:
    """Adds boards to episodes. An error of `render` changes nothing in an episode; each kind is
    logged once."""

    def __init__(self) -> None:
        self._known: set[Hashable] = set()

    def note(self, episode: Episode, board: object, last: bool) -> None:
        """Adds the current board of an episode, unless it is that of the step before.

        Args:
            board: what `Environment.render` returned.
            last: whether the episode is over.

        Raises:
            TypeError: the board is not text.
        """
        if board is None or board == "":
            return
        if not isinstance(board, str):
            raise TypeError(f"render must return a str, an Html or None, not {board!r:.60}")
        history, board = episode.boards, bounded(board)
        if history and history[-1][1] == board:
            return
        if last or sum(len(drawing) for _, drawing in history) < MOST_DRAWN:
            history.append((len(episode.step_rewards), board))

    def failed(self, episode: Episode, error: Exception) -> None:
        """Logs an error of `render`."""
        if (kind := origin(error)) in self._known:
            text = "episode %s: its board failed in the same place: %s"
            log.debug(text, episode.id, title(error))
            return
        self._known.add(kind)
        where = f"environment {episode.environment!r}, episode {episode.id}"
        log.warning("%s: render failed, no board is recorded: %s", where, explain(error))
