"""What a router is paid for: the form of its transcript, then the answer (Router-R1, arXiv
2506.09033). Pure functions of text; what its questions to other models cost is counted here and
weighed by the algorithm, because the scale follows from what others cost."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from mrlm.environments.shared.text import exact_match, f1

TAGS = ("think", "search", "information", "answer")
PLACEHOLDERS = ("llm-name", "candidate llm", "your query", "your-query", "...")
"""What a query copied from the instructions contains."""
Models = Collection[str] | None
"""Names of those that may be asked; `None`: a search engine that has no name."""
WORST = -1.0
"""Reward of a transcript whose form is broken."""
_TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")


def blocks(text: str) -> list[tuple[str, str]] | None:
    """The tagged parts of a transcript in order as (tag, text); `None` where a tag is not closed,
    not opened, or stands inside another."""
    found: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(text):
        closes, name = bool(tag[1]), tag[2]
        if closes != (opened is not None) or (opened is not None and opened[2] != name):
            return None
        if opened is not None:
            found.append((name, text[opened.end() : tag.start()]))
        opened = None if closes else tag
    return None if opened is not None else found


def route(query: str, models: Models) -> tuple[str, str] | None:
    """`(model, question)` of what stands in a `<search>` tag, `model: question`; `None` unless it
    has one colon, a known model (in any case) and a question that is not the placeholder. Where
    there are no models but one search engine, all of it is the question, and the model is `""`."""
    name, colon, question = query.partition(":")
    if models is None:
        name, colon, question = "", ":", query.replace(":", " ")
    name, question = name.strip(), question.strip()
    known = {model.lower(): model for model in ([""] if models is None else models)}
    usable = bool(question) and not any(word in question.lower() for word in PLACEHOLDERS)
    if not colon or ":" in question or not usable or name.lower() not in known:
        return None
    return known[name.lower()], question


def routes(text: str, models: Models) -> int:
    """How many of its questions went to a model that exists."""
    return sum(tag == "search" and bool(route(body, models)) for tag, body in blocks(text) or ())


def form(text: str, models: Models) -> float:
    """0.0 where the transcript is well formed, else -1.0.

    It begins with `<think>` and ends with `</answer>`; tags are balanced and not nested; there is
    one answer and at least one thought, none of them empty; every `<search>` has its
    `<information>`, one colon, a known model and a question. Somebody who writes the information
    himself has one too many.

    Args:
        text: everything from the router's first token on, answers of others included.
        models: names of those it may ask.
    """
    text = text.strip()
    found = blocks(text)
    if not found or not (text.startswith("<think>") and text.endswith("</answer>")):
        return WORST
    by_tag = {tag: [body for name, body in found if name == tag] for tag in TAGS}
    fits = (
        len(by_tag["answer"]) == 1
        and all(body.strip() for body in by_tag["think"])
        and len(by_tag["search"]) == len(by_tag["information"])
        and all(route(body, models) for body in by_tag["search"])
    )
    return 0.0 if fits else WORST


def harmless(text: str) -> str:
    """What somebody else said, with the tags of a transcript in it made words, so that it can
    neither break the form nor end a block."""
    return _TAG.sub(lambda tag: f"[{tag[1]}{tag[2]}]", text)


def asking_cost(tokens: Mapping[str, int], prices: Mapping[str, float]) -> float:
    """What questions have cost: tokens times the price of one, over the models that were asked.
    Worlds report it as the component `cost` of a reward; `router_r1` weighs it."""
    return sum(count * prices[model] for model, count in tokens.items())


def routing_reward(
    text: str,
    accepted: Sequence[str],
    models: Models,
    metric: Literal["em", "f1"] = "em",
) -> float:
    """-1 where the form is broken, whatever the answer; else how good the answer is, from 0 to 1.

    Args:
        text: the whole transcript.
        accepted: answers that are right.
        models: names of those the router may ask.
        metric: exact match or token F1, after SQuAD's normalisation.
    """
    if form(text, models) < 0:
        return WORST
    (said,) = (body for tag, body in blocks(text) or () if tag == "answer")
    return (exact_match if metric == "em" else f1)(said, accepted)
