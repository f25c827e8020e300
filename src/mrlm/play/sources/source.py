"""The interface from which the loop takes groups of episodes."""

from collections.abc import Callable, Mapping
from typing import Any

from mrlm.core.episodes import Group
from mrlm.play.agent import AgentSettings

StateLater = Callable[[], dict[str, Any]]
"""Returns a state as it was when this was made."""


class EpisodeSource:
    """A source of groups. Methods that a source does not need do nothing."""

    samples: bool = True
    """Whether its groups have completions of the policies' engines."""
    rewarded: bool = True
    """Whether rewards are what the policies get: not an expert's, and not those of a data set."""

    async def take(self, count: int) -> list[Group]:
        """The next `count` groups."""
        raise NotImplementedError

    def num_tasks(self) -> int | None:
        """Tasks in one epoch; `None` if they never end."""
        return None

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def state_later(self) -> StateLater:
        """The state of now, for later: of episodes no copies are made before that."""
        state = self.state_dict()
        return lambda: state

    def assign(self, settings_of: Mapping[str, AgentSettings]) -> None:
        """Sets the agents that play the tasks of the next iteration."""

    def plan(self, iterations: int) -> None:
        """Sets how many iterations the run has."""

    async def pause(self, versions: Mapping[str, int]) -> None:
        """Returns when weights may be updated. `versions`: policy -> version of the weights that
        engines are about to load."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the groups that were taken since the last call."""
        return {}

    def close(self) -> None:
        """Ends the threads that run beside the loop."""
