"""A log of engine answers in episodes that are not trained on yet. Re-executed from their seeds
with the same answers, such episodes reach the same state, whatever the weights are by then."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mrlm.core.log import log
from mrlm.core.types import Completion
from mrlm.play.engine import Key, Request

GROUP = 4
"""Length of a key's prefix that names its group: (run seed, split, environment, task number)."""
EPISODE = 5
"""Length of the prefix that names its episode: the number among its siblings comes next."""


@dataclass(slots=True)
class LoggedAnswer:
    """An answer, with the digest of the request, and the rounds until then, this one included."""

    asked: str
    round: int
    completion: Completion


class AnswerLog:
    """Logs answers, and returns loaded ones again."""

    def __init__(self) -> None:
        self.rounds: dict[Key, int] = {}
        """Episode -> the round of its latest answer."""
        self._noted: dict[Key, dict[Key, list[LoggedAnswer]]] = {}
        self._known: dict[Key, list[LoggedAnswer]] = {}

    def recall(self, request: Request) -> Completion | None:
        """The logged answer to this request, if there is one and the request is the same."""
        entries = self._known.get(request.key)
        if not entries:
            return None
        entry = entries.pop(0)
        if not entries:
            del self._known[request.key]
        if entry.asked != _digest(request):
            log.warning(
                "%s: the episode does not reach the state it had when the run was saved, since its "
                "environment is not reproducible; it continues with new answers from here",
                "/".join(map(str, request.key[1:])),
            )
            return None
        self._note(request.key, entry)
        return entry.completion

    def note(self, request: Request, completion: Completion, round: int) -> None:
        """Logs an answer; `round` counts the engine's rounds until then, this one included."""
        self._note(request.key, LoggedAnswer(_digest(request), round, completion))

    def forget(self, group: Key) -> None:
        """Drops the answers in the episodes of a group; they are not needed again."""
        for key in self._noted.pop(group, {}):
            self.rounds.pop(key[:EPISODE], None)

    def state_dict(self) -> list[dict[str, Any]]:
        return [
            {"key": list(key), **asdict(entry)}
            for answers in self._noted.values()
            for key, entries in answers.items()
            for entry in entries
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Loads answers; each is returned once."""
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
    """Sixteen hexadecimal digits of a request's content."""
    texts = [(message.role.value, message.content) for message in request.messages]
    return hashlib.blake2b(repr(request.prompt_ids or texts).encode(), digest_size=8).hexdigest()
