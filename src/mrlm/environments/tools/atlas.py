"""A small built-in corpus: an atlas of a fictional country, so that no model can know its content
without searching."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from mrlm.environments.shared.content import content
from mrlm.environments.tools.search import Document

_NAMES = {kind: names.split(", ") for kind, names in content(__file__, "atlas.json").items()}
TOWNS, RIVERS = _NAMES["towns"], _NAMES["rivers"]


@dataclass(frozen=True)
class AtlasEntry:
    """An entry of the atlas: its name, its text, and its numbers by question."""

    name: str
    text: str
    numbers: dict[str, int]
    river: str = ""


@cache
def entries() -> dict[str, AtlasEntry]:
    """All entries by name, the same on every machine."""
    rng = random.Random("atlas")
    found: dict[str, AtlasEntry] = {}
    for name in TOWNS:
        year, people, river = (
            rng.randint(900, 1890),
            rng.randint(1200, 98000),
            rng.choice(RIVERS),
        )
        text = (
            f"{name} is a town on the river {river}. It was founded in {year}. "
            f"{people} people live there."
        )
        questions = {
            f"In which year was the town {name} founded?": year,
            f"How many people live in {name}?": people,
        }
        found[name] = AtlasEntry(name, text, questions, river)
    for name in RIVERS:
        length = rng.randint(40, 980)
        text = f"The {name} is a river. It is {length} km long."
        found[name] = AtlasEntry(name, text, {f"How many km long is the river {name}?": length})
    for name in _NAMES["peaks"]:
        height = rng.randint(700, 4900)
        text = f"Mount {name} is {height} m high."
        found[name] = AtlasEntry(name, text, {f"How many m high is Mount {name}?": height})
    for name in _NAMES["people"]:
        year, town = rng.randint(1700, 1980), rng.choice(TOWNS)
        text = f"{name}, a {rng.choice(_NAMES['crafts'])}, was born in {year} and lives in {town}."
        found[name] = AtlasEntry(name, text, {f"In which year was {name} born?": year})
    return found


def documents() -> list[Document]:
    """The atlas as documents."""
    return [Document(entry.text, name) for name, entry in entries().items()]
