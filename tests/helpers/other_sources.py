"""Sources of other libraries, and the names that our pages give of them."""

import importlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest
from scripts import coming_from

SOURCES = {
    "rllib": ("ray", "rllib", "2.60.0"),
    "verifiers": ("verifiers", "", "0.1.14"),
    "verifiers_v1": ("verifiers", "", "0.4.0"),
}
"""Library -> its distribution, the folder in its package, and the version with the names."""


def source(library: str) -> Path:
    """The folder of an installed library, which is not imported."""
    name, folder, version = SOURCES[library]
    found = importlib.util.find_spec(name)
    if found is None or importlib.metadata.version(name) != version:
        pytest.skip(f"needs {name} {version}")
    (place,) = found.submodule_search_locations or ()
    return Path(place, folder)


def assert_parts_are_named(library: str) -> None:
    folder = source(library)
    for row in coming_from.names()[library]["parts"]:
        text = (folder / row["in"]).read_text(encoding="utf-8")
        lacking = [name for name in row["there"] if not re.search(rf"\b{name}\b", text)]
        assert not lacking, row["in"]
