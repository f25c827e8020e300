"""Selection of turns for training: samples, units and minibatches, without tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from mrlm.core.episodes import Group
from mrlm.core.types import Turn
from mrlm.learn.data.batch import Sample, Totals, merge, units_of


def samples_of(
    groups: Sequence[Group], policy: str, unit: str = "turn", credited: bool = True
) -> list[Sample]:
    """Merges the turns of a policy's agents into samples, with the unit that stays in one
    micro-batch: a `turn`'s sample; the samples of a `rollout`; a `pair`, the samples of one agent
    in a group; or a `joint_step`, those of an episode. Failed episodes are skipped, and (if
    `credited`) turns without advantages."""
    samples: list[Sample] = []
    units: dict[tuple[object, ...], int] = {}
    rollouts = count()

    def key(number: int, episode_index: int, agent: str) -> tuple[object, ...]:
        if unit == "turn":
            return (len(samples),)
        if unit == "rollout":
            return (number, episode_index, agent)
        return (number, agent) if unit == "pair" else (number, episode_index)

    for number, group in enumerate(groups):
        for index, episode in enumerate(group.episodes):
            if episode.failed:
                continue
            for agent, rollout in episode.rollouts.items():
                turns = [
                    turn
                    for turn in rollout.turns
                    if turn.policy == policy
                    and turn.trained
                    and (not credited or turn.advantages is not None)
                ]
                for sample in merge(turns, rollout=next(rollouts)):
                    sample.unit = units.setdefault(key(number, index, agent), len(units))
                    samples.append(sample)
    return samples


def effective(samples: Sequence[Sample], ignores_zero: bool) -> list[Sample]:
    """The samples with a gradient: all, or (`ignores_zero`) those with an advantage that is not
    0."""
    if not ignores_zero:
        return list(samples)
    return [sample for sample in samples if any(map(has_advantage, sample.turns))]


def effective_part(samples: Sequence[Sample], ignores_zero: bool) -> tuple[list[Sample], Totals]:
    """`effective`, with the denominators of all samples."""
    chosen, totals = effective(samples, ignores_zero), Totals.of(samples)
    totals.seen = Totals.of(chosen).tokens
    return chosen, totals


def has_advantage(turn: Turn) -> bool:
    """Whether any advantage of a turn is not 0."""
    value = turn.advantages
    if isinstance(value, float):
        return value != 0.0
    return value is not None and bool(np.any(np.asarray(value)))


def openings(samples: Sequence[Sample]) -> list[Sample]:
    """One sample per turn that ends with the first token of its completion; each is a unit of its
    own, so that they fit into micro-batches."""
    first_samples: list[Sample] = []
    for turn in (turn for sample in samples for turn in sample.turns):
        first = Turn(
            turn.agent,
            turn.policy,
            turn.prompt_ids,
            turn.completion_ids[:1],
            sampling=turn.sampling,
        )
        first_samples += merge([first], unit=len(first_samples))
    return first_samples


def minibatches(
    samples: Sequence[Sample], parts: int, rng: random.Random
) -> Iterator[list[Sample]]:
    """Splits samples at random into `parts` minibatches of nearly equal size; units and rollouts
    stay whole."""
    rollouts: dict[int, list[Sample]] = {}
    for unit in units_of(samples):
        rollouts.setdefault(unit[0].rollout, []).extend(unit)
    units = list(rollouts.values())
    if parts > 1:
        rng.shuffle(units)
    for part in range(parts):
        chosen = units[part * len(units) // parts : (part + 1) * len(units) // parts]
        if chosen:
            yield [sample for unit in chosen for sample in unit]
