"""Rewards of a router: for the form of its transcript, then for the answer (Router-R1, arXiv
2506.09033). Pure functions of text. The cost of its queries to models is computed here and weighed
by the algorithm, which scales it relative to other costs."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from mrlm.environments.shared.short_answers import exact_match, f1

TAGS = ("think", "search", "information", "answer")
PLACEHOLDERS = ("llm-name", "candidate llm", "your query", "your-query", "...")
"""Text that identifies a query copied from the instructions."""
Models = Collection[str] | None
"""Names of the models that can be queried; `None`: a search engine without a name."""
WORST = -1.0
"""Reward of a transcript with an invalid form."""
_TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")


def blocks(text: str) -> list[tuple[str, str]] | None:
    """The tagged parts of a transcript in order as (tag, text); `None` if a tag is not closed, not
    opened, or nested in another."""
    parts: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(text):
        closes, name = bool(tag[1]), tag[2]
        if closes != (opened is not None) or (opened is not None and opened[2] != name):
            return None
        if opened is not None:
            parts.append((name, text[opened.end() : tag.start()]))
        opened = None if closes else tag
    return None if opened is not None else parts


def route(query: str, models: Models) -> tuple[str, str] | None:
    """`(model, question)` from the content of a `<search>` tag, `model: question`; `None` unless it
    has one colon, a known model (ignoring case) and a question that is not a placeholder. With a
    search engine only, the whole content is the question, and the model is `""`."""
    name, colon, question = query.partition(":")
    if models is None:
        name, colon, question = "", ":", query.replace(":", " ")
    name, question = name.strip(), question.strip()
    names = {model.lower(): model for model in ([""] if models is None else models)}
    usable = bool(question) and not any(word in question.lower() for word in PLACEHOLDERS)
    if not colon or ":" in question or not usable or name.lower() not in names:
        return None
    return names[name.lower()], question


def routes(text: str, models: Models) -> int:
    """Number of valid queries in a transcript."""
    return sum(tag == "search" and bool(route(body, models)) for tag, body in blocks(text) or ())


def form(text: str, models: Models) -> float:
    """0.0 if the transcript is well formed, else -1.0.

    It begins with `<think>` and ends with `</answer>`; tags are balanced and not nested; there is
    one answer and at least one thought, none of them empty; every `<search>` has its
    `<information>`, one colon, a known model and a question. An `<information>` written by the
    router itself makes the form invalid.

    Args:
        text: everything from the router's first token on, including answers of others.
    """
    text = text.strip()
    parts = blocks(text)
    if not parts or not (text.startswith("<think>") and text.endswith("</answer>")):
        return WORST
    by_tag = {tag: [body for name, body in parts if name == tag] for tag in TAGS}
    fits = (
        len(by_tag["answer"]) == 1
        and all(body.strip() for body in by_tag["think"])
        and len(by_tag["search"]) == len(by_tag["information"])
        and all(route(body, models) for body in by_tag["search"])
    )
    return 0.0 if fits else WORST


def harmless(text: str) -> str:
    """Text of others with its transcript tags neutralised, so that it can neither invalidate the
    form nor end a block."""
    return _TAG.sub(lambda tag: f"[{tag[1]}{tag[2]}]", text)


def asking_cost(tokens: Mapping[str, int], prices: Mapping[str, float]) -> float:
    """The cost of queries: tokens times the price of one, summed over the queried models.
    Environments report it as the component `cost` of a reward; `router_r1` weighs it."""
    return sum(count * prices[model] for model, count in tokens.items())


def routing_reward(
    text: str, accepted: Sequence[str], models: Models, metric: Literal["em", "f1"] = "em"
) -> float:
    """-1 if the form is invalid, regardless of the answer; else the score of the answer, from 0 to
    1.

    Args:
        metric: exact match or token F1, after SQuAD's normalisation.
    """
    if form(text, models) < 0:
        return WORST
    (answer,) = (body for tag, body in blocks(text) or () if tag == "answer")
    return (exact_match if metric == "em" else f1)(answer, accepted)
