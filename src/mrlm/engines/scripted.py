"""Returns scripted completions: for tests, and for measuring everything but the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.chat import Chat
from mrlm.core.types import Completion
from mrlm.play.engine import Request


@dataclass(eq=False, repr=False)
class ScriptedEngine:
    """Answers each request with a text of the script.

    Args:
        script: `script(request) -> str`, or texts that are returned in turn, in a cycle.
        max_context: context limit in tokens.
        logprob: log-prob reported for every token.
    """

    script: Callable[[Request], str] | Sequence[str]
    tokenizer: Any
    max_context: int = 8192
    logprob: float = -1.0

    def __post_init__(self) -> None:
        self.batches: list[list[Request]] = []
        """The requests of every call so far, for tests."""
        self._said = 0
        self._version = 0
        self._chat = Chat(self.tokenizer)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append(list(requests))
        return [self._answer(request) for request in requests]

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        self._version = version

    def tolerance(self, policy: str) -> None:
        """No tolerance: there are no weights."""

    def _answer(self, request: Request) -> Completion:
        if callable(self.script):
            text = self.script(request)
        else:
            text = self.script[self._said % len(self.script)]
            self._said += 1
        ids = self._chat.encode_text(text)
        limit = request.sampling.max_new_tokens
        if len(ids) >= limit:
            cut = ids[:limit]
            cut_text = self.tokenizer.decode(cut, skip_special_tokens=True)
            return Completion(cut, [self.logprob] * limit, cut_text, "length", self._version)
        whole = self._chat.encode_text(text, whole=True)
        return Completion(whole, [self.logprob] * len(whole), text, "stop", self._version)


PLUGIN = ScriptedEngine
