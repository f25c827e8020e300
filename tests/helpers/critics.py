"""Episodes with values, as a critic reads and leaves them."""

import copy
from typing import Any

from mrlm import Message, MessageType, Rollout
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout as SubmittedCode
from mrlm.core.types import Task, Turn
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy

LORA = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}


def episode(tokenizers: dict[str, Any], rewards: tuple[float, ...] = (0.0, 1.0)) -> Episode:
    """Agents a and b, in two joint steps; each has its own tokenizer."""
    parts = {}
    for name, tokenizer in tokenizers.items():

        def ids(text: str, tokenizer: Any = tokenizer) -> list[int]:
            return tokenizer(text, add_special_tokens=False)["input_ids"]

        one = Turn(name, name, ids(f"go {name}. "), ids(f"{name} one"), step=0, index=0)
        prompt = [*one.prompt_ids, *one.completion_ids, *ids(" more ")]
        two = Turn(name, name, prompt, ids(f"{name} two"), step=1, index=1)
        for turn in (one, two):
            turn.logprobs = [-1.0] * len(turn)
        parts[name] = SubmittedCode(name, name, "t", [one, two])
    found = Episode("e", Task("t"), parts, sum(rewards), list(rewards), "done")
    found.states = ["dawn", None]
    return found


def policies(model: Any, tokenizer: Any, lora: bool) -> tuple[Policy, Policy]:
    """Two policies: two models, or two adapters on one base."""
    if not lora:
        return Policy("a", model, tokenizer), Policy("b", copy.deepcopy(model), tokenizer)
    model = add_adapter(add_adapter(model, "first", LORA), "second", LORA)
    return (
        Policy("a", model, tokenizer, adapter="first"),
        Policy("b", model, tokenizer, adapter="second"),
    )


def valued(values: list[float], rewards: list[float], agents: str = "ab") -> Group:
    """An episode in which all agents speak in every joint step, with the values of the steps."""
    parts = {}
    for name in agents:
        turns = [
            Turn(name, name, [1] * (i + 1), [2, 3], step=i, index=i) for i in range(len(values))
        ]
        for turn, value in zip(turns, values, strict=True):
            turn.values, turn.logprobs = value, [-1.0, -1.0]
        parts[name] = SubmittedCode(name, name, "t", turns)
    return Group([Episode("e", Task("t"), parts, sum(rewards), rewards, "done")], "t")


def columns(group: Group, name: str) -> dict[str, list[Any]]:
    (one,) = group.episodes
    return {a: [getattr(t, name) for t in r.turns] for a, r in one.rollouts.items()}


def spoken(answer: str) -> Rollout:
    question = Message("What is 2 + 3?", MessageType.MESSAGE)
    return Rollout().add_messages(question, Message(answer, MessageType.MODEL))
