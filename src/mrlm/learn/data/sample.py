"""Training sequences and the counts of an optimiser batch, without tensors."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mrlm.core.types import Turn


@dataclass(slots=True)
class Sample:
    """One training sequence: turns of one rollout whose prompts extend one another. `starts[k]` is
    the index of the first completion token of turn `k`; samples of one `unit` stay in one
    micro-batch; `rollout` is the index of the rollout in the batch."""

    ids: list[int]
    turns: list[Turn]
    starts: list[int]
    unit: int = 0
    rollout: int = 0


@dataclass(slots=True)
class Totals:
    """Counts over the whole optimiser batch, on all ranks: the denominators of a loss. Each
    micro-batch contributes its part, so the sum does not depend on the split into micro-batches.
    A sequence is a rollout, however many samples it is split into by a template that rewrites the
    past; `by_rollout` has the (tokens, turns) of those on this rank."""

    tokens: int = 0
    sequences: int = 0
    turns: int = 0
    units: int = 0
    tokens_by_agent: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    """Tokens that pass through the model: samples with zero advantages may be skipped. Metrics are
    means over these."""
    by_rollout: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> "Totals":
        """Counts the trained tokens, turns and units of `samples`."""
        samples = list(samples)
        by_agent: dict[str, int] = {}
        rollouts: dict[int, tuple[int, int]] = {}
        for sample in samples:
            count, turns = rollouts.get(sample.rollout, (0, 0))
            for turn in sample.turns:
                length = len(turn.completion_ids)
                agent = turn.role
                by_agent[agent] = by_agent.get(agent, 0) + length
                count += length
            rollouts[sample.rollout] = (count, turns + len(sample.turns))
        turns, tokens = sum([len(sample.turns) for sample in samples]), sum(by_agent.values())
        units = len({sample.unit for sample in samples})
        return cls(tokens, len(rollouts), turns, units, by_agent, tokens, rollouts)
