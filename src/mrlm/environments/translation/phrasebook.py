"""Norvi, a fictional language with a dictionary and a few rules, and sentences in Norvi and
English. Every sentence has exactly one translation. It serves for practice and tests: a model
trains to look up words and to order them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mrlm.core.environment import Split
from mrlm.environments.shared.content import content
from mrlm.environments.shared.generators import first_of

_BOOK = content(__file__)
NOUNS, ADJECTIVES, VERBS = _BOOK["nouns"], _BOOK["adjectives"], _BOOK["verbs"]
RULES: str = _BOOK["rules"]


@dataclass(frozen=True, slots=True)
class PhrasePair:
    """A sentence in both languages, and the dictionary entries of its words."""

    english: str
    norvi: str
    entries: tuple[tuple[str, str], ...]


def pair(seed: str, split: Split) -> PhrasePair:
    """The sentence of a seed. Held-out sentences never occur in training, for any seed."""
    rng = random.Random(f"translation/{split}/{seed}")
    return first_of(split, lambda: _drawn(rng), lambda found: found.norvi)


def _drawn(rng: random.Random) -> PhrasePair:
    entries: dict[str, str] = {}
    groups = [_group(rng, noun, entries) for noun in rng.sample(list(NOUNS), 2)]
    (subject, subject_norvi, several), (thing, thing_norvi, _) = groups
    verb = rng.choice(list(VERBS))
    singular, past, stem = VERBS[verb]
    entries[verb] = stem
    before = rng.random() < 0.5
    said = past if before else verb if several else singular
    english = f"The {subject} {said} the {thing}."
    norvi = f"{subject_norvi} {thing_norvi} {stem}{'it' if before else ''}."
    return PhrasePair(english, norvi[0].upper() + norvi[1:], tuple(sorted(entries.items())))


def _group(rng: random.Random, noun: str, entries: dict[str, str]) -> tuple[str, str, bool]:
    """A noun, possibly in the plural and with an adjective, in both languages."""
    several = rng.random() < 0.4
    entries[noun] = NOUNS[noun]
    english, norvi = noun, NOUNS[noun]
    if several:
        english, norvi = _BOOK["irregular"].get(noun, f"{noun}s"), f"{norvi}ra"
    if rng.random() < 0.6:
        adjective = rng.choice(list(ADJECTIVES))
        entries[adjective] = ADJECTIVES[adjective]
        english, norvi = f"{adjective} {english}", f"{norvi} {ADJECTIVES[adjective]}"
    return english, norvi, several
