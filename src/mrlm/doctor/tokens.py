"""Recorded tokens of training turns, as rules read them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mrlm.doctor.recent import Row, Rows
from mrlm.record.packing import unpack, unpack_end


@dataclass(frozen=True, slots=True)
class TokenTurn:
    """A trained turn of a recorded episode with its tokens; what is packed is unpacked on demand.

    Args:
        episode: the row of its episode.
        agent: the agent that acted.
        row: the row of the turn.
        shape: roles of the messages that it answers.
    """

    episode: Row
    agent: str
    row: Row
    shape: tuple[str, ...]

    @property
    def last(self) -> int:
        """The last sampled token."""
        return unpack_end(self.row["ids"], 1)[0]

    @property
    def prompt_end(self) -> list[int]:
        """The last two tokens of the prompt; none if it continues an earlier one."""
        shared, rest = self.row.get("prompt", (1, ""))
        return [] if shared else unpack_end(rest, 2)

    def packed(self, name: str) -> float | str | None:
        """A column as it is recorded: one number for all tokens, or a string; `None` without it."""
        return self.row.get("columns", {}).get(name)

    def column(self, name: str) -> np.ndarray | None:
        """(T,) float32; `None` if it is not recorded."""
        packed = self.packed(name)
        return None if packed is None else unpack(packed, self.row["tokens"])


def token_turns(episodes: Rows) -> Iterator[TokenTurn]:
    """The trained turns that are recorded with tokens."""
    for episode in episodes:
        for name, agent in episode["agents"].items():
            for turn in agent["turns"]:
                if isinstance(turn.get("ids"), str) and turn["trained"]:
                    index = turn.get("message") or 0
                    roles = tuple([message["role"] for message in agent["messages"][:index]])
                    yield TokenTurn(episode, name, turn, roles)
