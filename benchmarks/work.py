"""What is done in one step: the same numbers on either side, and the least time they can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weights = Literal["shared", "own", "lora"]


@dataclass(frozen=True, slots=True)
class Work:
    """One optimiser step on fixed work.

    Args:
        shape: a name of `models.SHAPES`.
        prompts: tasks (rows, pairs) per step.
        group: plays of each task.
        read: tokens of a prompt.
        written: tokens of a completion, exactly.
        agents: who all read and write in a play.
        turns: how often each does.
        tree: every joint answer is gone on from `group` times, instead of once.
        weights: one policy for all agents, one each, or an adapter each on one base.
        precision: what is computed in while learning; weights are float32.
    """

    shape: str
    prompts: int
    group: int
    read: int
    written: int
    agents: int = 1
    turns: int = 1
    tree: bool = False
    weights: Weights = "shared"
    precision: Literal["fp32", "bf16"] = "fp32"

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names."""
        return tuple(f"agent_{index}" for index in range(self.agents))

    @property
    def completions(self) -> int:
        """How many are sampled in a step."""
        if self.tree:
            answers = sum(self.group ** (turn + 1) for turn in range(self.turns))
        else:
            answers = self.group * self.turns
        return self.prompts * self.agents * answers

    @property
    def counts(self) -> Counts:
        """What either side has to do."""
        tokens = self.completions * self.written
        return Counts(self.completions * self.read, tokens, tokens)


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one step: those of all prompts as often as they were asked, those that were
    sampled, and those that were trained on."""

    read: int
    sampled: int
    trained: int
