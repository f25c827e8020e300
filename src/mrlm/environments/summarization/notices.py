"""Unlimited generated short texts about fictional places, with known facts that belong into the
summary and others that do not."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mrlm.core.environment import Split
from mrlm.environments.shared.content import content
from mrlm.environments.shared.generators import first_of

_WORDS = content(__file__)


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
    return first_of(split, lambda: _drawn(rng), lambda found: found.summary)


def _drawn(rng: random.Random) -> Notice:
    person, other_person = rng.sample(_WORDS["people"], 2)
    town, other_town = rng.sample(_WORDS["towns"], 2)
    purpose, other_purpose = rng.sample(_WORDS["purposes"], 2)
    year, other_year = rng.sample(range(1810, 1990), 2)
    words = {
        "person": person, "town": town, "purpose": purpose, "year": str(year),
        "other_person": other_person, "other_town": other_town, "other_year": str(other_year),
        "other_purpose": other_purpose, "kind": rng.choice(_WORDS["kinds"]),
        "name": rng.choice(_WORDS["names"]),
    }  # fmt: skip
    first, *key = _WORDS["key"]
    lines = [rng.choice(_WORDS["openings"]), first, *_mixed(rng, key, list(_WORDS["asides"]))]
    return Notice(
        source=" ".join(lines).format(**words),
        question=f"who built the {words['kind']}, where, when, and what for",
        summary=_WORDS["summary"].format(**words),
        facts=(words["name"], town, person, str(year), purpose),
        others=(other_person, other_town, str(other_year), other_purpose),
    )


def _mixed(rng: random.Random, key: list[str], asides: list[str]) -> list[str]:
    """The key sentences in their order, with asides between them."""
    rng.shuffle(asides)
    places = sorted(rng.sample(range(len(key) + len(asides)), len(key)))
    return [key.pop(0) if i in places else asides.pop() for i in range(len(places) + len(asides))]
