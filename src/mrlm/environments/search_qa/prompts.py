"""The router's prompts, the format of returned information, and the messages of the expert."""

from collections.abc import Mapping
from typing import Literal

from mrlm.environments.search_qa.routing import harmless

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
        models: name -> its description; `None` with a search engine only.
        style: `short` is the question alone, for small models trained on the format.
    """
    if style == "short":
        return question
    listed = "\n".join(f"{name}: {about}".rstrip(": ") for name, about in (models or {}).items())
    how = SEARCH if models is None else ROUTE.format(models=listed)
    return f"{ABOUT.format(how=how, turns=turns)}\n\nQuestion: {question}"


def information(text: str | None, longest: int) -> str:
    """The returned information, truncated to `longest` characters; `None` for an invalid query."""
    content = "None" if text is None else harmless(text).strip()[:longest]
    return f"\n\n<information>{content}</information>\n\n"


def askable(question: str) -> str:
    """A question in the form allowed in a query: one line, without colons, ellipses and tags."""
    return " ".join(harmless(question).replace(":", " ").replace("...", " ").split())


def asks(query: str, model: str, thought: str, style: Style) -> str:
    """An expert query of the router."""
    if style == "short":
        thought = "ask"
    address = f"{model}: " if model else ""
    return f"<think>{thought}</think>\n<search>{address}{askable(query)}</search>"


def answers(answer: str) -> str:
    """An expert answer of the router."""
    return f"<think>known</think>\n<answer>{answer}</answer>"
