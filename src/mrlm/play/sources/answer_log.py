"""What engines answered in episodes that nobody has learned from yet. Played again from their seeds
with the same answers, such episodes come to where they were, whatever the weights are by then."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mrlm.core.types import Completion
from mrlm.play.engine import Key, Request

log: logging.Logger = logging.getLogger("mrlm")

GROUP = 4
"""How much of a request's key names its group: (run seed, split, world, number of the task)."""
EPISODE = 5
"""And how much its episode: the number among its siblings comes next."""


@dataclass(slots=True)
class LoggedAnswer:
    """One answer.

    Args:
        asked: digest of what was asked.
        round: engine rounds until then, this one included.
        completion: what was answered.
    """

    asked: str
    round: int
    completion: Completion


class AnswerLog:
    """Notes answers, and gives those that were loaded once more."""

    def __init__(self) -> None:
        self.rounds: dict[Key, int] = {}
        """Episode -> the round of its latest answer."""
        self._noted: dict[Key, dict[Key, list[LoggedAnswer]]] = {}
        self._known: dict[Key, list[LoggedAnswer]] = {}

    def recall(self, request: Request) -> Completion | None:
        """What was answered to this request, if it is known and nothing else was asked then."""
        known = self._known.get(request.key)
        if not known:
            return None
        entry = known.pop(0)
        if not known:
            del self._known[request.key]
        if entry.asked != _digest(request):
            log.warning(
                "%s: the episode does not come to where it was when the run was saved, since its "
                "world is not reproducible; it goes on anew from here",
                "/".join(map(str, request.key[1:])),
            )
            return None
        self._note(request.key, entry)
        return entry.completion

    def note(self, request: Request, completion: Completion, round: int) -> None:
        """Keep an answer.

        Args:
            request: what was asked.
            completion: what was answered.
            round: engine rounds until then, this one included.
        """
        self._note(request.key, LoggedAnswer(_digest(request), round, completion))

    def forget(self, group: Key) -> None:
        """Nobody will ask again what was answered in the episodes of a group."""
        for key in self._noted.pop(group, {}):
            self.rounds.pop(key[:EPISODE], None)

    def state_dict(self) -> list[dict[str, Any]]:
        """Every answer that is kept."""
        return [
            {"key": list(key), **asdict(entry)}
            for answers in self._noted.values()
            for key, entries in answers.items()
            for entry in entries
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Answer what was answered before in the same way, each once."""
        self.rounds, self._noted, self._known = {}, {}, {}
        for row in state:
            entry = LoggedAnswer(row["asked"], row["round"], _completion(row["completion"]))
            self._known.setdefault(tuple(row["key"]), []).append(entry)

    def _note(self, key: Key, entry: LoggedAnswer) -> None:
        self._noted.setdefault(key[:GROUP], {}).setdefault(key, []).append(entry)
        episode = key[:EPISODE]
        self.rounds[episode] = max(entry.round, self.rounds.get(episode, 0))


def _completion(row: Mapping[str, Any]) -> Completion:
    usage = row["usage"]
    return Completion(**{**row, "usage": None if usage is None else (usage[0], usage[1])})


def _digest(request: Request) -> str:
    """Sixteen hexadecimal digits of what a request asks."""
    said = [(message.role.value, message.content) for message in request.messages]
    asked = repr(request.prompt_ids or said).encode()
    return hashlib.blake2b(asked, digest_size=8).hexdigest()
