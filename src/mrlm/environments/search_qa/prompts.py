"""What a router is told, how it is shown what it asked for, and what an able one says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mrlm.environments.shared.routing import harmless

Style = Literal["full", "short"]

ABOUT = (
    "Answer the question. Begin with what you think, between <think> and </think>. {how} What is "
    "found comes back between <information> and </information>; think again after it. You may do "
    "so up to {turns} times, and need not at all. When you know enough, write nothing after the "
    "thought but the answer, in as few words as possible: <answer>Beijing</answer>."
)
SEARCH = "If you need to know something, search for it: <search>a few words</search>."
ROUTE = (
    "If you need to know something, ask one of these models, by its name, one colon and a question "
    "of your own that makes sense by itself: <search>name: question</search>. They are:\n{models}\n"
)


def instructions(question: str, models: Mapping[str, str] | None, turns: int, style: Style) -> str:
    """The opening of an episode.

    Args:
        question: what is asked.
        models: name -> what is known of it; `None` where there is one search engine.
        turns: times the router may ask.
        style: `short` is the question alone, for small models that were shown how.
    """
    if style == "short":
        return question
    listed = "\n".join(f"{name}: {about}".rstrip(": ") for name, about in (models or {}).items())
    how = SEARCH if models is None else ROUTE.format(models=listed)
    return f"{ABOUT.format(how=how, turns=turns)}\n\nQuestion: {question}"


def information(text: str | None, longest: int) -> str:
    """What comes back, cut where it is too long; `None` is what nobody can answer."""
    said = "None" if text is None else harmless(text).strip()[:longest]
    return f"\n\n<information>{said}</information>\n\n"


def askable(question: str) -> str:
    """A question as it can be asked: in one line, without colons, dots that stand for something
    left out, and tags."""
    return " ".join(harmless(question).replace(":", " ").replace("...", " ").split())


def asks(query: str, model: str, thought: str, style: Style) -> str:
    """How an able router asks."""
    if style == "short":
        thought = "ask"
    address = f"{model}: " if model else ""
    return f"<think>{thought}</think>\n<search>{address}{askable(query)}</search>"


def answers(answer: str) -> str:
    """How an able router answers."""
    return f"<think>known</think>\n<answer>{answer}</answer>"
