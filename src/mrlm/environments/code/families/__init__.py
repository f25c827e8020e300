"""Templates of the code environment by family, one file each."""

from __future__ import annotations

from mrlm.environments.code.families import (
    arithmetic,
    dictionaries,
    lists,
    recursion,
    simulation,
    strings,
)
from mrlm.environments.code.templates import ProgramTemplate

FAMILIES: dict[str, tuple[ProgramTemplate, ...]] = {
    "strings": strings.TEMPLATES,
    "lists": lists.TEMPLATES,
    "arithmetic": arithmetic.TEMPLATES,
    "recursion": recursion.TEMPLATES,
    "dictionaries": dictionaries.TEMPLATES,
    "simulation": simulation.TEMPLATES,
}
