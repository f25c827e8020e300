"""Selection of turns for training, and the split of samples into mini-batches, parts of ranks and
micro-batches, which never changes results; without tensors."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count

import numpy as np

from mrlm.core.episodes import Group
from mrlm.core.prefixes import shared_prefix
from mrlm.core.process_group import Peers, shares
from mrlm.core.types import Turn
from mrlm.learn.data.batch import Sample, Totals, merge
from mrlm.learn.policy.policy import Policy

FEW = 8
"""Number of samples in a pass that only measures."""


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

    def taken(turn: Turn) -> bool:
        credit = not credited or turn.advantages is not None
        return turn.policy == policy and turn.trained and credit

    for number, group in enumerate(groups):
        for index, episode in enumerate(group.episodes):
            for agent, rollout in () if episode.failed else episode.rollouts.items():
                turns = [*filter(taken, rollout.turns)]
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


def without_gradient(samples: Sequence[Sample], ignores_zero: bool) -> list[Sample]:
    """A few samples of each agent that has none with a gradient."""
    trained = Totals.of(effective(samples, ignores_zero)).tokens_by_agent
    few: dict[str, list[Sample]] = {}
    for sample in samples:
        agent = sample.turns[0].role
        if agent not in trained and len(few.setdefault(agent, [])) < FEW:
            few[agent].append(sample)
    return [sample for agent_samples in few.values() for sample in agent_samples]


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
        first = Turn(turn.agent, turn.policy, turn.prompt_ids, turn.completion_ids[:1])
        first.sampling = turn.sampling
        first_samples += merge([first], unit=len(first_samples))
    return first_samples


def minibatches(
    samples: Sequence[Sample], parts: int, rng: random.Random
) -> Iterator[list[Sample]]:
    """Splits samples at random into `parts` of nearly equal size; units and rollouts stay whole."""
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


def split(
    samples: Sequence[Sample], max_tokens: int, parts: int = 1, packed: bool = False
) -> list[list[Sample]]:
    """Splits samples of one optimiser batch into at least `parts` micro-batches of at most
    `max_tokens` tokens without splitting a unit (a single unit may exceed the limit). Tokens are
    grid cells, padding included; or, with `packed`, those of the prefix tree, and samples with a
    common prefix are placed together."""
    units = units_of(samples)
    if packed:
        units.sort(key=lambda unit: unit[0].ids)
        if parts == 1 and units and sum([len(sample.ids) for sample in samples]) <= max_tokens:
            return [[*chain.from_iterable(units)]]  # they fit even without common prefixes
    else:
        units.sort(key=lambda unit: -max(len(sample.ids) for sample in unit))
    most = len(units) // parts
    batches: list[list[Sample]] = []
    load, count = _Load(packed), most  # the first unit opens a batch
    for unit in units:
        load.add(unit)
        if load.size > max_tokens or count >= most:
            batches.append([])
            load, count = _Load(packed), 0
            load.add(unit)
        batches[-1].extend(unit)
        count += 1
    return batches


@dataclass(slots=True)
class _Load:
    """Size of a micro-batch."""

    packed: bool
    rows: int = 0
    longest: int = 0
    tokens: int = 0
    last: Sequence[int] = ()

    @property
    def size(self) -> int:
        return self.tokens if self.packed else self.rows * self.longest

    def add(self, unit: Sequence[Sample]) -> None:
        if self.packed:
            self.tokens += new_tokens(unit, self.last)
            self.last = unit[-1].ids
            return
        self.rows += len(unit)
        self.longest = max(self.longest, *(len(sample.ids) for sample in unit))


def units_of(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Groups samples by unit, in order of first appearance."""
    by_unit: dict[int, list[Sample]] = {}
    for sample in samples:
        by_unit.setdefault(sample.unit, []).append(sample)
    return list(by_unit.values())


def new_tokens(unit: Sequence[Sample], last: Sequence[int] = ()) -> int:
    """Number of tokens of a unit that share no prefix with the sample before (`last` at first)."""
    count = 0
    for sample in unit:
        count += len(sample.ids) - shared_prefix(last, sample.ids)
        last = sample.ids
    return count


def parts(samples: Sequence[Sample], size: int, packed: bool) -> list[list[Sample]]:
    """Splits samples into `size` parts of about equal cost without splitting units; some may be
    empty. With `packed`, shared prefixes stay together and cost once."""
    if size == 1:
        return [list(samples)]
    units = units_of(samples)
    if not packed:
        loads = [float(sum(len(sample.ids) for sample in unit)) for unit in units]
        places = shares(loads, size)
    else:
        order = sorted(range(len(units)), key=lambda index: units[index][0].ids)
        before = [[], *(units[index][-1].ids for index in order)]
        costs = [new_tokens(units[index], last) for index, last in zip(order, before, strict=False)]
        places = _stretches(order, costs, size)
    return [[sample for index in chosen for sample in units[index]] for chosen in places]


def _stretches(order: Sequence[int], costs: Sequence[int], size: int) -> list[list[int]]:
    """Cuts an order into `size` contiguous runs of about equal cost, as sorted indices."""
    runs: list[list[int]] = [[] for _ in range(size)]
    total = max(1, sum(costs))
    for index, cost, end in zip(order, costs, accumulate(costs), strict=True):
        middle = end - cost / 2
        runs[min(size - 1, int(middle * size / total))].append(index)
    return [sorted(places) for places in runs]


def rounds(
    policy: Policy,
    peers: Peers,
    shared: Sequence[Sequence[Sample]],
    max_tokens: int,
    least: int = 1,
) -> list[list[Sample]]:
    """The micro-batches of this rank, from the samples of each rank; limits as in `split`. With a
    sharded model every rank has the same number, padded with empty ones."""
    batches = split(shared[peers.rank], max_tokens, least, policy.packed)
    if not policy.storage.sharded:
        return batches
    most = max(len(split(part, max_tokens, least, policy.packed)) for part in shared)
    return batches + [[] for _ in range(most - len(batches))]
