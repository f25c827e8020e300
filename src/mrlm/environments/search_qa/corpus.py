"""A small built-in corpus and questions about it: people, books, towns, rivers and lakes of a
fictional country, so that no model can know the answers without searching.

One entity in eight is held out. Held-out entities are linked only with held-out ones, and the
others only with each other: no fact is needed by questions of both splits.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.environments.tools.search import Document

_LAND = content(__file__, "corpus.json")
"""Number of entities of each kind, the kind that each is linked with, parts of names, and templates
of documents and questions."""
HELD_OUT = 8
"""One in this many entities is held out."""


@dataclass(frozen=True)
class Question:
    """A question about the corpus.

    Args:
        answer: the right answer, one name or number.
        hops: the intermediate questions and their answers, in order; the last is the answer.
    """

    text: str
    answer: str
    hops: tuple[tuple[str, str], ...]


@dataclass(eq=False)
class _Thing:
    kind: str
    name: str
    held_out: bool
    year: int = 0
    link: "_Thing | None" = field(default=None, repr=False)


@cache
def documents() -> tuple[Document, ...]:
    """The corpus, the same on every machine."""
    return _made()[0]


@cache
def questions(split: Split, hops: tuple[int, ...]) -> tuple[Question, ...]:
    """Questions of one or two hops, of one split, in a fixed order."""
    selected = [question for question in _made()[1][split] if len(question.hops) in hops]
    random.Random(f"questions {split} {hops}").shuffle(selected)
    return tuple(selected)


def _words(rng: random.Random) -> Iterator[str]:
    seen: set[str] = set()
    while True:
        name = "".join(rng.choice(parts.split(",")) for parts in _LAND["names"])
        if name not in seen:
            seen.add(name)
            yield name


@cache
def _made() -> tuple[tuple[Document, ...], dict[Split, list[Question]]]:
    rng = random.Random("search_qa")
    names = _words(rng)
    things: dict[str, list[_Thing]] = {}
    for kind, count in _LAND["counts"].items():
        things[kind] = []
        for index in range(count):
            name = f"{next(names)} {next(names)}" if kind == "person" else next(names)
            things[kind].append(_Thing(kind, name, index % HELD_OUT == 0))
    for kind, target in _LAND["links"].items():
        for thing in things[kind]:
            near = [one for one in things[target] if one.held_out == thing.held_out]
            thing.link = rng.choice(near)
    everything = [thing for many in things.values() for thing in many]
    for thing in everything:
        thing.year = rng.randint(1100, 1980)
    by_split: dict[Split, list[Question]] = {"train": [], "eval": []}
    for thing in everything:
        by_split["eval" if thing.held_out else "train"] += _questions(thing)
    texts = (Document(_LAND["texts"][thing.kind].format(thing), thing.name) for thing in everything)
    return tuple(texts), by_split


def _questions(thing: _Thing) -> Iterator[Question]:
    if thing.link is not None:
        text, name = _hop(thing)
        yield Question(text, name, ((text, name),))
    if thing.kind in _LAND["year_questions"]:
        text, year = _LAND["year_questions"][thing.kind].format(thing), str(thing.year)
        yield Question(text, year, ((text, year),))
    if thing.link is not None and thing.kind in _LAND["two_hop_questions"]:
        text, then = _LAND["two_hop_questions"][thing.kind].format(thing), _hop(thing.link)
        yield Question(text, then[1], (_hop(thing), then))


def _hop(thing: _Thing) -> tuple[str, str]:
    """The question of what an entity is linked with, and the answer."""
    assert thing.link is not None
    return _LAND["link_questions"][thing.kind].format(thing), thing.link.name
