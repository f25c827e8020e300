"""What the loop takes groups of episodes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrlm.core.episodes import Group
from mrlm.play.agent import AgentSettings


class EpisodeSource:
    """Anything the loop can take groups from. What a source does not need to know, it ignores."""

    async def take(self, count: int) -> list[Group]:
        """The next `count` groups."""
        raise NotImplementedError

    def num_tasks(self) -> int | None:
        """Tasks in one epoch; `None` if they never end."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def assign(self, seats: Mapping[str, AgentSettings]) -> None:
        """Set who plays the tasks of the next iteration."""

    def plan(self, iterations: int) -> None:
        """Set how many iterations the run has."""

    async def rest(self, versions: Mapping[str, int]) -> None:
        """Return when weights may be exchanged.

        Args:
            versions: policy -> version of the weights that engines are about to get.
        """

    def metrics(self) -> dict[str, float]:
        """Numbers about what was taken since the last call of this."""
        return {}

    def close(self) -> None:
        """Release what runs beside the loop."""
