"""Recorded completions of policies behind an API, to re-execute a run: no API is called."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mrlm.core.errors import EngineError
from mrlm.core.types import Completion
from mrlm.play.engine import Key, Request
from mrlm.training.run import Run

Words = Mapping[tuple[str, int | None], Mapping[str, Sequence[str | None]]]
"""(id of an episode, its step if ids recur) -> agent -> its completions, turn by turn."""


def recorded_words(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int | None], Any]:
    """Extract the completions of policies behind an API from the lines of `episodes.jsonl`."""
    completions: dict[tuple[str, int | None], Any] = {}
    for line in lines:
        texts = {
            name: [turn.get("text") for turn in agent.get("turns", ())]
            for name, agent in line["agents"].items()
        }
        completions[line["id"], _step(line["id"], line["step"])] = texts
    return completions


def _step(episode: str, step: int) -> int | None:
    """The step, if the id recurs: held-out tasks are played in every evaluation."""
    return step if episode.startswith("eval/") else None


class Recorded:
    """An engine of one policy behind an API that returns recorded completions.

    Args:
        policy: its name.
        words: the recorded completions.
        run: the run that is re-executed.
    """

    def __init__(self, policy: str, words: Words, run: Run) -> None:
        self.policy: str = policy
        self.tokenizer: Any = None
        self.max_context: int = 1 << 30
        self._words = words
        self._run = run

    async def answer(self, request: Request) -> Completion:
        """Return the recorded completion. Raises `EngineError`: the API did not answer in the
        recorded run either."""
        agent, index = request.key[-2:]
        assert isinstance(agent, str) and isinstance(index, int)
        for episode in self._episodes(request.key):
            texts = self._words[episode, _step(episode, self._run.step)].get(agent, ())
            if index < len(texts) and texts[index] is not None:
                return Completion([], [], str(texts[index]))
        raise EngineError(f"policy {self.policy!r} did not answer when the episode was played")

    def _episodes(self, key: Key) -> list[str]:
        """The logged episodes that a request may be of: forks are known by the branches taken."""
        forks = [str(part).rpartition(".")[2] for part in key if str(part).startswith("fork ")]
        stem = "/".join(str(part) for part in key[1:-2] if not str(part).startswith("fork "))
        named = [name for name, step in self._words if step in (None, self._run.step)]
        if not forks:
            return [stem] if stem in named else []
        below = [name for name in named if name.startswith(f"{stem}/")]
        return [
            name
            for name in below
            if [part.rpartition(".")[2] for part in name[len(stem) + 1 :].split("/")] == forks
        ]

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [await self.answer(request) for request in requests]

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Does nothing: there are no weights here."""

    def tolerance(self, policy: str) -> None:
        """No tolerance: there are no weights here."""

    def take_usage(self) -> dict[str, float]:
        """Empty: no API was called."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: there is no state."""
