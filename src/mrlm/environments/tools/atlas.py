"""A small built-in corpus: an atlas of a fictional country, so that no model can know its content
without searching."""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from mrlm.core.content import content
from mrlm.environments.tools.search import Document

_ATLAS = content(__file__, "atlas.json")
"""Names by kind, and of each kind of entry: the numbers (as ranges) and the names drawn for it, its
text, and questions with the place of their answer in what is drawn."""
_NAMES = {kind: names.split(", ") for kind, names in _ATLAS["names"].items()}
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
    table: dict[str, AtlasEntry] = {}
    for kind, entry in _ATLAS["entries"].items():
        for name in _NAMES[kind]:
            drawn: list[Any] = [
                rng.randint(*source) if isinstance(source, list) else rng.choice(_NAMES[source])
                for source in entry["drawn"]
            ]
            numbers = {text.format(name): drawn[i] for text, i in entry["questions"].items()}
            river = drawn[-1] if kind == "towns" else ""
            table[name] = AtlasEntry(name, entry["text"].format(name, *drawn), numbers, river)
    return table


def documents() -> list[Document]:
    """The atlas as documents."""
    return [Document(entry.text, name) for name, entry in entries().items()]
