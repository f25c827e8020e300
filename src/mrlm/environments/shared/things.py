"""The table of twenty questions: things and their attributes. In doubtful cases the table defines
the truth."""

from __future__ import annotations

import json
from pathlib import Path

_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

ATTRIBUTES: dict[str, str] = _TABLE["attributes"]
"""Attribute -> its description."""
TRUE: dict[str, frozenset[str]] = {
    thing: frozenset(names.split()) for thing, names in _TABLE["things"].items()
}
"""Thing -> the attributes it has."""
