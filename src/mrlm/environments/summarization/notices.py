"""Unlimited generated short texts about fictional places, with known facts that belong into the
summary and others that do not."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mrlm.core.environment import Split
from mrlm.environments.shared.rows import is_held_out

KINDS = ("bridge", "library", "lighthouse", "mill", "theatre", "observatory", "harbour", "school")
NAMES = ("Orsel", "Vanto", "Lirrow", "Quenby", "Tamsin", "Dovrek", "Halvor", "Merrin", "Sabeth")
TOWNS = ("Ardholm", "Breve", "Castrel", "Dunmere", "Elvstad", "Farrow", "Grimsel", "Hesket")
PEOPLE = ("Ada Morn", "Bruno Calt", "Cleo Varga", "Dario Finch", "Edda Lorne", "Felix Thane")
PURPOSES = ("grain", "letters", "sailors", "travellers", "orphans", "astronomers", "weavers")
OPENINGS = (
    "People in {town} like to tell the story of their {kind}.",
    "Visitors to {town} often stop at the {kind} on the hill.",
    "There is a {kind} in {town} that everybody knows.",
)
KEY = (
    "The {name} {kind} stands in {town}.",
    "It was {person} who built it.",
    "The year was {year}.",
    "It was meant for {purpose} above all.",
)
ASIDES = (
    "In {other_year} a storm took away a part of its roof.",
    "{other_person} painted it twice and gave one of the pictures away.",
    "The road from {other_town} is steep and closed in winter.",
    "Nowadays children sell lemonade in front of it.",
    "Cats sleep in its shadow when the days are warm.",
    "For a time {other_purpose} were kept there, though nobody had planned that.",
)
SUMMARY = "{person} built the {name} {kind} in {town} for {purpose} in {year}."


@dataclass(frozen=True, slots=True)
class Notice:
    """A text.

    Args:
        source: the text.
        question: required content of the summary.
        summary: a reference summary.
        facts: facts that a summary must contain.
        others: facts of the source that are not required.
    """

    source: str
    question: str
    summary: str
    facts: tuple[str, ...]
    others: tuple[str, ...]


def notice(seed: str, split: Split) -> Notice:
    """The text of a seed. Held-out texts never occur in training, for any seed."""
    rng = random.Random(f"summarization/{split}/{seed}")
    while True:
        found = _drawn(rng)
        if is_held_out(found.summary) == (split == "eval"):
            return found


def _drawn(rng: random.Random) -> Notice:
    person, other_person = rng.sample(PEOPLE, 2)
    town, other_town = rng.sample(TOWNS, 2)
    purpose, other_purpose = rng.sample(PURPOSES, 2)
    year, other_year = rng.sample(range(1810, 1990), 2)
    words = {
        "person": person, "town": town, "purpose": purpose, "year": str(year),
        "other_person": other_person, "other_town": other_town, "other_year": str(other_year),
        "other_purpose": other_purpose, "kind": rng.choice(KINDS), "name": rng.choice(NAMES),
    }  # fmt: skip
    lines = [rng.choice(OPENINGS), KEY[0], *_mixed(rng, list(KEY[1:]), list(ASIDES))]
    return Notice(
        source=" ".join(lines).format(**words),
        question=f"who built the {words['kind']}, where, when, and what for",
        summary=SUMMARY.format(**words),
        facts=(words["name"], town, person, str(year), purpose),
        others=(other_person, other_town, str(other_year), other_purpose),
    )


def _mixed(rng: random.Random, key: list[str], asides: list[str]) -> list[str]:
    """The key sentences in their order, with asides between them."""
    rng.shuffle(asides)
    places = sorted(rng.sample(range(len(key) + len(asides)), len(key)))
    return [key.pop(0) if i in places else asides.pop() for i in range(len(places) + len(asides))]
