"""Policies behind an API in a run that is played again: nobody is asked, and they say what they
said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mrlm.core.errors import EngineError
from mrlm.core.types import Completion
from mrlm.play.engine import Key, Request
from mrlm.training.run import Run

Words = Mapping[tuple[str, int | None], Mapping[str, Sequence[str | None]]]
"""(id of an episode, its step where ids recur) -> agent -> what it said, turn by turn."""


def recorded_words(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int | None], Any]:
    """What the lines of `episodes.jsonl` say of policies behind an API."""
    found: dict[tuple[str, int | None], Any] = {}
    for line in lines:
        said = {
            name: [turn.get("text") for turn in agent.get("turns", ())]
            for name, agent in line["agents"].items()
        }
        found[line["id"], _step(line["id"], line["step"])] = said
    return found


def _step(episode: str, step: int) -> int | None:
    """Held-out tasks come again in every evaluation."""
    return step if episode.startswith("eval/") else None


class Recorded:
    """Stands for the engine of one policy behind an API.

    Args:
        policy: its name.
        words: what was said in the run.
        run: the run that is played again.
    """

    def __init__(self, policy: str, words: Words, run: Run) -> None:
        self.policy: str = policy
        self.tokenizer: Any = None
        self.max_context: int = 1 << 30
        self._words = words
        self._run = run

    async def answer(self, request: Request) -> Completion:
        """What it said.

        Raises:
            EngineError: it did not answer then either.
        """
        agent, index = request.key[-2:]
        assert isinstance(agent, str) and isinstance(index, int)
        for episode in self._episodes(request.key):
            said = self._words[episode, _step(episode, self._run.step)].get(agent, ())
            if index < len(said) and said[index] is not None:
                return Completion([], [], str(said[index]))
        raise EngineError(f"policy {self.policy!r} did not answer when the episode was played")

    def _episodes(self, key: Key) -> list[str]:
        """The logged episodes that a request may belong to: forks are known by the branches that
        were taken."""
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
        """There are none here."""

    def tolerance(self, policy: str) -> None:
        """There are no weights here."""

    def take_usage(self) -> dict[str, float]:
        """Nobody was asked."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to go on with."""
