"""Scripted agents that err at a known rate: every turn is right for what it reads, or wrong, by the
seed of its request."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.types import Completion
from mrlm.play.engine import Request

RATES = {"flawless": 0.0, "steady": 0.1, "clumsy": 0.35, "saboteur": 0.6, "broken": 1.0}
"""Policy -> rate of wrong turns."""
RIGHT, WRONG = -1.0, -2.0
"""The recorded log-prob of every token of a right turn and of a wrong one: the ground truth, which
no method reads."""


def numbers(text: str) -> list[int]:
    """The whole numbers of a text, in order."""
    return [int(each) for each in re.findall(r"\d+", text)]


class ScriptedEngine:
    """An engine for all policies of a run whose messages follow from the requests.

    Args:
        policies: policy -> its weights, of which only the tokenizer is used.
    """

    max_context = 8192

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self.policies = policies

    def message(self, request: Request, rng: random.Random) -> tuple[str, float]:
        """The message of a request, and the log-prob that is recorded of each of its tokens; `rng`
        has the seed of the request."""
        raise NotImplementedError

    @property
    def tokenizer(self) -> Any:
        return next(iter(self.policies.values())).tokenizer

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        text, logprob = self.message(request, random.Random(request.seed))
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        return Completion(ids, [logprob] * len(ids), text, "stop", 0)

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Does nothing: the answers are scripted."""

    def tolerance(self, policy: str) -> None:
        """No tolerance: the log-probs are marks."""


class ScriptedAgents(ScriptedEngine):
    """Agents that are right or wrong. A subclass says what is right in one environment."""

    def right(self, agent: str, index: int, texts: Sequence[str]) -> str:
        """The right message after a conversation; `index` is the number of the agent's turn."""
        raise NotImplementedError

    def wrong(self, right: str, rng: random.Random) -> str:
        """A plausible wrong message: one of its numbers is another one."""
        places = list(re.finditer(r"\d+", right))
        if not places:
            return "0"
        place = rng.choice(places)
        other = int(place[0]) + rng.randint(1, 5)
        return f"{right[: place.start()]}{other}{right[place.end() :]}"

    def message(self, request: Request, rng: random.Random) -> tuple[str, float]:
        agent, index = request.key[-2:]
        assert isinstance(agent, str) and isinstance(index, int)
        text = self.right(agent, index, [each.content for each in request.messages])
        if rng.random() < RATES[request.policy]:
            return self.wrong(text, rng), WRONG
        return text, RIGHT
