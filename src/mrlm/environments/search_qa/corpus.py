"""A small built-in corpus and questions about it: people, books, towns, rivers and lakes of a
fictional country, so that no model can know the answers without searching.

One entity in eight is held out. Held-out entities are linked only with held-out ones, and the
others only with each other: no fact is needed by questions of both splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from mrlm.core.environment import Split
from mrlm.environments.tools.search import Document

COUNTS = {"lake": 24, "river": 48, "town": 72, "person": 120, "book": 72}
"""Number of entities of each kind; each has a document."""
HELD_OUT = 8
"""One in this many entities is held out."""
_STARTS, _MIDDLES, _JOINS, _ENDS = (
    part.split(",")
    for part in (
        "B,Br,C,D,Dr,F,G,Gr,H,J,K,L,M,N,P,Pr,Qu,R,S,St,T,Th,V,W,Y,Z",
        "a,e,i,o,u,ae,ei,ou",
        "l,m,n,r,s,v,ld,nd,rk,st,lm,rn",
        "ar,el,en,is,or,um,us,ia,ow,ey",
    )
)
"""Parts of names."""


@dataclass(frozen=True)
class Question:
    """A question about the corpus.

    Args:
        text: the question.
        answer: the right answer, one name or number.
        hops: the intermediate questions and their answers, in order; the last is the answer.
    """

    text: str
    answer: str
    hops: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Thing:
    name: str
    held_out: bool


@dataclass(frozen=True)
class _Land:
    """All entities by kind, and their links."""

    things: dict[str, list[_Thing]]
    lake: dict[_Thing, _Thing]
    river: dict[_Thing, _Thing]
    home: dict[_Thing, _Thing]
    author: dict[_Thing, _Thing]
    year: dict[_Thing, int]


@cache
def documents() -> tuple[Document, ...]:
    """The corpus, the same on every machine."""
    return _made()[0]


@cache
def questions(split: Split, hops: tuple[int, ...]) -> tuple[Question, ...]:
    """Questions of one or two hops, of one split, in a fixed order."""
    found = [each for each in _made()[1][split] if len(each.hops) in hops]
    random.Random(f"questions {split} {hops}").shuffle(found)
    return tuple(found)


def _words(rng: random.Random) -> Iterator[str]:
    """Unlimited unique names."""
    said: set[str] = set()
    while True:
        parts = (rng.choice(each) for each in (_STARTS, _MIDDLES, _JOINS, _ENDS))
        name = "".join(parts)
        if name not in said:
            said.add(name)
            yield name


@cache
def _made() -> tuple[tuple[Document, ...], dict[Split, list[Question]]]:
    rng = random.Random("search_qa")
    names = _words(rng)
    things: dict[str, list[_Thing]] = {}
    for kind, count in COUNTS.items():
        things[kind] = [
            _Thing(
                f"{next(names)} {next(names)}" if kind == "person" else next(names),
                place % HELD_OUT == 0,
            )
            for place in range(count)
        ]

    def link(of: _Thing, kind: str) -> _Thing:
        return rng.choice([each for each in things[kind] if each.held_out == of.held_out])

    land = _Land(
        things,
        lake={each: link(each, "lake") for each in things["river"]},
        river={each: link(each, "river") for each in things["town"]},
        home={each: link(each, "town") for each in things["person"]},
        author={each: link(each, "person") for each in things["book"]},
        year={each: rng.randint(1100, 1980) for many in things.values() for each in many},
    )
    asked: dict[Split, list[Question]] = {"train": [], "eval": []}
    for thing, question in _asked(land):
        asked["eval" if thing.held_out else "train"].append(question)
    return tuple(_texts(land)), asked


def _texts(land: _Land) -> list[Document]:
    """The documents, one per entity."""
    said = {
        "lake": lambda it: f"{it.name} is a lake. It was mapped in {land.year[it]}.",
        "river": lambda it: f"The river {it.name} flows into the lake {land.lake[it].name}.",
        "town": lambda it: (
            f"{it.name} is a town on the river {land.river[it].name}. "
            f"It was founded in {land.year[it]}."
        ),
        "person": lambda it: f"{it.name} lives in the town {land.home[it].name}.",
        "book": lambda it: (
            f"{it.name} is a book by {land.author[it].name}. It was printed in {land.year[it]}."
        ),
    }
    return [Document(said[kind](it), it.name) for kind, many in land.things.items() for it in many]


def _asked(land: _Land) -> Iterator[tuple[_Thing, Question]]:
    """All questions, each with its first entity."""

    def into(it: _Thing) -> tuple[str, str]:
        return f"Into which lake does the river {it.name} flow?", land.lake[it].name

    def lies(it: _Thing) -> tuple[str, str]:
        return f"On which river is the town {it.name}?", land.river[it].name

    def lives(it: _Thing) -> tuple[str, str]:
        return f"In which town does {it.name} live?", land.home[it].name

    def wrote(it: _Thing) -> tuple[str, str]:
        return f"Who wrote the book {it.name}?", land.author[it].name

    for it in land.things["lake"]:
        yield it, _one(f"In which year was the lake {it.name} mapped?", str(land.year[it]))
    for it in land.things["river"]:
        yield it, _one(*into(it))
    for it in land.things["town"]:
        yield it, _one(*lies(it))
        yield it, _one(f"In which year was the town {it.name} founded?", str(land.year[it]))
        text = f"Into which lake does the river of the town {it.name} flow?"
        yield it, _two(text, lies(it), into(land.river[it]))
    for it in land.things["person"]:
        yield it, _one(*lives(it))
        text = f"On which river is the town where {it.name} lives?"
        yield it, _two(text, lives(it), lies(land.home[it]))
    for it in land.things["book"]:
        yield it, _one(*wrote(it))
        yield it, _one(f"In which year was the book {it.name} printed?", str(land.year[it]))
        text = f"In which town does the author of the book {it.name} live?"
        yield it, _two(text, wrote(it), lives(land.author[it]))


def _one(text: str, answer: str) -> Question:
    return Question(text, answer, ((text, answer),))


def _two(text: str, first: tuple[str, str], second: tuple[str, str]) -> Question:
    return Question(text, second[1], (first, second))
