"""Parts of grids: some members are quick tests, the others slow ones."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(members: Iterable[Any], chosen: Iterable[Any] | int) -> list[Any]:
    """All members, of which those that are not chosen are slow tests. A number chooses every
    so-many-th, beginning with the first."""
    chosen = chosen if isinstance(chosen, int) else list(chosen)
    return [
        pytest.param(
            member,
            marks=[]
            if (place % chosen == 0 if isinstance(chosen, int) else member in chosen)
            else [pytest.mark.slow],
        )
        for place, member in enumerate(members)
    ]
