"""From turns to samples, to micro-batches, to tensors: every number by hand."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mrlm.core.episodes import Episode, Group
from mrlm.core.process_group import Peers
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn.data.batch import Batch, Outputs, Sample, Totals, as_column, merge, pack
from mrlm.learn.data.data_parallel import exchange_columns, flat, nothing, write_column
from mrlm.learn.data.samples import (
    minibatches,
    new_tokens,
    openings,
    parts,
    rounds,
    samples_of,
    split,
    units_of,
)


def turn(prompt: list[int], said: list[int], agent: str = "a", policy: str = "p") -> Turn:
    return Turn(agent, policy, prompt, said)


def sample(ids: list[int], start: int = 1, unit: int = 0) -> Sample:
    """One turn, which begins at `start`."""
    return Sample(ids, [turn(ids[:start], ids[start:])], [start], unit, unit)


def sizes(batches: list[list[Sample]]) -> list[list[int]]:
    return [[len(each.ids) for each in batch] for batch in batches]


# -- turns to samples ------------------------------------------------------------------------------


def test_turns_that_continue_one_another_are_one_sample() -> None:
    turns = [
        turn([1, 2], [3]),
        turn([1, 2, 3, 4], [5, 6]),
        turn([1, 2, 3, 4, 5, 6], [7]),  # reads nothing more
        turn([1, 2, 9], [8]),  # something else
        turn([1, 2, 9, 8, 1], []),  # says nothing
        turn([1, 2, 9, 8, 1], [4]),
    ]
    turns[5].trained = False
    turns += [turn([1, 2, 9, 8, 4, 4], [6])]
    found = merge(turns, unit=3, rollout=5)
    assert [each.ids for each in found] == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 8, 4, 4, 6]]
    assert [each.starts for each in found] == [[2, 4, 6], [3, 6]]
    assert [each.turns for each in found] == [turns[:3], [turns[3], turns[6]]]
    assert [(each.unit, each.rollout) for each in found] == [(3, 5)] * 2
    (alone,) = merge(turns[:1])
    assert (alone.unit, alone.rollout) == (0, 0)
    assert merge([]) == []


def played() -> list[Group]:
    """Two groups of three episodes, in which a and b say two things each; but one episode failed,
    and of the turns of a later one a's first has no advantage, and its second is not trained. One
    turn is another policy's."""
    groups = []
    for group in range(2):
        episodes = []
        for place in range(3):
            rollouts = {}
            for agent in "ab":
                turns = [turn([1], [2, place], agent), turn([7], [8], agent)]
                for each in turns:
                    each.advantages = 0.0
                rollouts[agent] = Rollout(agent, "p", "t", turns)
            episodes.append(Episode(f"{group}{place}", Task("t"), rollouts, 0.0, [0.0], "done"))
        groups.append(Group(episodes, "t"))
    groups[0].episodes[1].status = "error"
    first, second = groups[1].episodes[0].rollouts["a"].turns
    first.advantages, second.trained = None, False
    groups[1].episodes[1].rollouts["b"].turns[1].policy = "q"
    return groups


def ranked(numbers: list[int]) -> list[int]:
    """Numbers that tell things apart, in the order in which they come."""
    known: dict[int, int] = {}
    return [known.setdefault(number, len(known)) for number in numbers]


@pytest.mark.parametrize(
    ("unit", "units"),
    [
        ("turn", [*range(17)]),
        ("pair", [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 3, 3, 2, 2]),
        ("joint_step", [0] * 4 + [1] * 4 + [2] * 2 + [3] * 3 + [4] * 4),
    ],
)
def test_what_a_policy_trains_on(unit: str, units: list[int]) -> None:
    found = samples_of(played(), "p", unit)
    assert "".join(each.turns[0].agent for each in found) == "aabb" + "aabb" + "bb" + "aab" + "aabb"
    assert [each.unit for each in found] == units
    rollouts = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 7, 8, 8]
    assert ranked([each.rollout for each in found]) == rollouts


def test_what_is_looked_at_before_credit() -> None:
    groups = played()
    found = samples_of(groups, "p", credited=False)
    assert [each.unit for each in found] == [*range(18)] and len(samples_of(groups, "p")) == 17
    assert found[8].turns == groups[1].episodes[0].rollouts["a"].turns[:1]
    (other,) = samples_of(groups, "q")
    assert other.turns == groups[1].episodes[1].rollouts["b"].turns[1:]


def test_openings_end_with_the_first_token_of_a_turn() -> None:
    warm = SamplingParams(temperature=0.5)
    (given,) = merge([turn([1, 2], [3, 4]), Turn("b", "q", [1, 2, 3, 4, 5], [6, 7], sampling=warm)])
    first, second = openings([given])
    assert (first.ids, first.starts) == ([1, 2, 3], [2])
    assert (second.ids, second.starts) == ([1, 2, 3, 4, 5, 6], [5])
    (said,) = second.turns
    assert (said.agent, said.policy) == ("b", "q")
    assert (said.prompt_ids, said.completion_ids) == ([1, 2, 3, 4, 5], [6])
    assert [len(part) for part in split([first, second], 8, packed=False)] == [1, 1]


def test_mini_batches_are_nearly_equal_and_keep_units_whole() -> None:
    samples = [sample([unit] * 3, unit=unit) for unit in (0, 1, 0, 2, 3, 4)]
    rng = random.Random(0)
    (whole,) = minibatches(samples, 1, rng)
    assert [each.unit for each in whole] == [0, 0, 1, 2, 3, 4]
    assert rng.random() == random.Random(0).random()  # nothing was drawn
    found = list(minibatches(samples, 3, rng))
    units = [[*dict.fromkeys(each.unit for each in part)] for part in found]
    assert sorted(unit for part in units for unit in part) == [0, 1, 2, 3, 4]
    assert [len(part) for part in units] == [1, 2, 2]
    assert sum(len(part) for part in found) == 6
    assert found != list(minibatches(samples, 3, rng)), "every epoch has an order of its own"
    assert [len(part) for part in minibatches(samples[:2], 5, rng)] == [1, 1]


def test_totals_count_what_is_trained_on() -> None:
    one = merge([turn([1], [2, 3]), turn([1, 2, 3, 4], [5], "b")], unit=0)
    other = merge([turn([1], [2]), turn([9], [2, 2, 2])], unit=7, rollout=3)
    assert len(other) == 2  # one rollout, in two samples
    found = Totals.of([*one, *other])
    assert found == Totals(7, 2, 4, 2, {"a": 6, "b": 1}, 7, {0: (3, 2), 3: (4, 2)})


# -- micro-batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_tokens", "least", "expected"),
    [
        (15, 1, [[5, 4, 4], [3, 2]]),  # three rows of five cells fit exactly
        (14, 1, [[5, 4], [4, 3, 2]]),
        (25, 1, [[5, 4, 4, 3, 2]]),
        (24, 1, [[5, 4, 4, 3], [2]]),
        (1, 1, [[5], [4], [4], [3], [2]]),  # one exceeds it
        (99, 2, [[5, 4], [4, 3], [2]]),
        (99, 9, [[5], [4], [4], [3], [2]]),
    ],
)
def test_cells_of_a_micro_batch(max_tokens: int, least: int, expected: Any) -> None:
    samples = [sample([1] * size, unit=unit) for unit, size in enumerate((3, 4, 5, 2, 4))]
    assert sizes(split(samples, max_tokens, least)) == expected


def test_units_are_cut_by_their_longest_sample_and_never_apart() -> None:
    samples = [
        sample([1] * size, unit=unit) for unit, size in ((0, 2), (1, 4), (0, 6), (2, 5), (1, 4))
    ]
    assert [[len(s.ids) for s in unit] for unit in units_of(samples)] == [[2, 6], [4, 4], [5]]
    assert sizes(split(samples, 18)) == [[2, 6, 5], [4, 4]]
    assert sizes(split(samples, 17)) == [[2, 6], [5, 4, 4]]
    assert sizes(split(samples, 14)) == [[2, 6], [5], [4, 4]]
    assert split([], 14) == []


def test_tokens_of_a_packed_micro_batch() -> None:
    """What several begin with counts once."""
    ids = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [9, 9], [1, 2, 7]]
    samples = [sample(row, unit=unit) for unit, row in enumerate(ids)]
    assert new_tokens(samples) == 4 + 2 + 2 + 3
    assert new_tokens(samples[1:2], ids[0]) == 2
    assert new_tokens(samples[3:], ids[1]) == 1
    assert sizes(split(samples, 14, packed=True)) == [[4, 5, 3, 2]]  # all tokens fit
    assert split([], 14, packed=True) == []
    assert sizes(split(samples, 9, packed=True)) == [[4, 5, 3, 2]]  # 4 + 2 + 1 + 2
    assert sizes(split(samples, 8, packed=True)) == [[4, 5, 3], [2]]
    assert sizes(split(samples, 6, packed=True)) == [[4, 5], [3, 2]]
    assert sizes(split(samples, 99, 2, packed=True)) == [[4, 5], [3, 2]]
    together = [sample(row, unit=0) for row in (ids[0], ids[2])]
    after = [*together, sample([9, 9, 8], unit=1)]
    assert sizes(split(after, 7, packed=True)) == [[4, 2, 3]]  # 6, and what follows 9 9
    assert sizes(split(after, 6, packed=True)) == [[4, 2], [3]]


# -- samples to tensors ----------------------------------------------------------------------------


def awkward() -> list[Sample]:
    """Two samples of three turns: two agents, sampled in three ways, with and without columns."""
    first = Turn("b", "p", [1, 2], [3, 4, 5], [-1.0, -2.0, -3.0])
    first.sampling = SamplingParams(temperature=0.5, top_p=0.9)
    first.old_logprobs, first.advantages = np.array([-1.5, -2.5, -3.5]), 2.0
    second = Turn("a", "p", [1, 2, 3, 4, 5, 6], [7], [-4.0])
    second.sampling = SamplingParams(temperature=0.0, top_p=0.5)
    second.returns, second.values = [0.25], 0.75
    third = Turn("b", "p", [8], [9, 1])
    third.old_logprobs, third.ref_logprobs = [-0.5, -0.25], -1.0
    return [*merge([first, second], 4, 2), *merge([third], 6, 3)]


EXPECTED: dict[str, list[float]] = {
    "sequence": [0, 0, 0, 0, 1, 1],
    "turn": [0, 0, 0, 1, 2, 2],
    "rollout": [2, 2, 2, 2, 3, 3],
    "unit": [4, 4, 4, 4, 6, 6],
    "agent": [0, 0, 0, 1, 0, 0],
    "place": [1, 2, 3, 5, 0, 1],
    "tokens": [3, 4, 5, 7, 9, 1],
    "temperature": [0.5, 0.5, 0.5, 1.0, 1.0, 1.0],
    "behaviour_logprobs": [-1.0, -2.0, -3.0, -4.0, -0.5, -0.25],
    "old_logprobs": [-1.5, -2.5, -3.5, -4.0, -0.5, -0.25],
    "advantages": [2.0, 2.0, 2.0, 0.0, 0.0, 0.0],
    "returns": [0.0, 0.0, 0.0, 0.25, 0.0, 0.0],
    "values": [0.0, 0.0, 0.0, 0.75, 0.0, 0.0],
    "ref_logprobs": [0.0, 0.0, 0.0, 0.0, -1.0, -1.0],
}


def test_every_column_of_a_batch() -> None:
    samples = awkward()
    batch = pack(samples, pad_id=11)
    for name, expected in EXPECTED.items():
        column = getattr(batch, name)
        assert column.tolist() == expected, name
        whole = all(isinstance(number, int) for number in expected)
        assert column.dtype == (torch.int64 if whole else torch.float32), name
    assert batch.agents == ["b", "a"] and batch.pad_id == 11
    assert (len(batch), batch.num_sequences, batch.num_turns) == (6, 2, 3)
    assert batch.trained_token_ids() == [[3, 4, 5], [7], [9, 1]]
    assert batch.totals == Totals(6, 2, 3, 2, {"b": 5, "a": 1}, 6, {2: (4, 2), 3: (2, 1)})
    totals = Totals(99)
    later = pack(samples[1:], totals)
    assert later.totals is totals and later.pad_id == 0


def test_the_rectangle_of_a_batch() -> None:
    batch = pack(awkward(), pad_id=11)
    grid = batch.grid
    assert grid.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7], [11, 8, 9, 1, 11, 11, 11]]
    assert grid.attention_mask.tolist() == [[1] * 7, [0, 1, 1, 1, 0, 0, 0]]
    assert grid.position_ids.tolist() == [[*range(7)], [0, 0, 1, 2, 0, 0, 0]]
    assert grid.keep.tolist() == [1, 2, 3, 5]
    assert grid.column.tolist() == [0, 1, 2, 3, 0, 1]
    right = batch.right_padded
    assert right.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 1, 11, 11, 11, 11]]
    assert right.attention_mask.tolist() == [[1] * 7, [1, 1, 1, 0, 0, 0, 0]]
    assert right.keep.tolist() == [0, 1, 2, 3, 5] and right.column.tolist() == [1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize(
    ("size", "cuts"), [(6, [(0, 6)]), (5, [(0, 4), (4, 6)]), (1, [(0, 4), (4, 6)])]
)
def test_parts_of_a_batch_hold_whole_units(size: int, cuts: list[tuple[int, int]]) -> None:
    batch = pack(awkward(), Totals(99), pad_id=11)
    found = list(batch.parts(size))
    assert [(here.start, here.stop) for here, _ in found] == cuts
    for here, part in found:
        for name, expected in EXPECTED.items():
            column = expected[here]
            if name in ("sequence", "turn"):
                column = [number - column[0] for number in column]
            assert getattr(part, name).tolist() == column, name
        assert part.totals is batch.totals
        assert part.trained_token_ids() == [t.completion_ids for t in part.turns]
        assert sum(len(t) for s in part.samples for t in s.turns) == len(part)
        assert sum(len(t) for t in part.turns) == len(part)
    assert cuts != [(0, 6)] or found[0][1] is batch


def test_a_column_is_a_number_for_every_token() -> None:
    assert as_column(None, 2).tolist() == [0.0, 0.0]
    assert as_column(3, 2).tolist() == as_column(np.array(3), 2).tolist() == [3.0, 3.0]
    assert as_column([1, 2], 2).tolist() == [1.0, 2.0] and as_column([1, 2], 2).dtype == float


# -- several processes -----------------------------------------------------------------------------


class Reader:
    """A policy, as far as samples are concerned."""

    def __init__(self, packed: bool, sharded: bool = False) -> None:
        self.packed, self.storage = packed, SimpleNamespace(sharded=sharded)


class Gathered(Peers):
    """One of several processes, all of which bring what is given."""

    def __init__(self, rank: int, brought: list[Any]) -> None:
        self.rank, self.size, self.brought = rank, len(brought), brought
        self.own: Any = None

    def from_all(self, value: Any) -> list[Any]:
        self.own = value
        return self.brought


def test_shares_by_length_and_by_what_is_new() -> None:
    ids = [[1] * 6, [2] * 5, [1] * 4 + [3], [2] * 4 + [3], [4]]
    samples = [sample(row, unit=unit) for unit, row in enumerate(ids)]
    assert parts(samples, 1, packed=False) == [samples]
    plain = parts(samples, 2, packed=False)
    assert [[each.unit for each in part] for part in plain] == [[0, 3], [1, 2, 4]]
    # in order of what they begin with: 6, 1, 5, 1 and 1 tokens are new
    packed = parts(samples, 2, packed=True)
    assert [[each.unit for each in part] for part in packed] == [[0, 2], [1, 3, 4]]
    both = [sample(row, unit=place // 2) for place, row in enumerate([*ids, [5]])]
    assert [[s.unit for s in part] for part in parts(both, 3, packed=False)] == [
        [0, 0],
        [1, 1],
        [2, 2],
    ]
    # a unit of two ends like the next one begins: 2 + 8, 1, 2 and 15 tokens are new
    ids = [[1] * 2, [2] * 8, [2] * 8 + [3], [5] * 2, [6] * 15]
    two = [sample(row, unit=unit) for row, unit in zip(ids, (0, 0, 1, 2, 3), strict=True)]
    shared = parts(two, 2, packed=True)
    assert [[s.unit for s in part] for part in shared] == [[0, 0, 1, 2], [3]]
    # the last one is read already
    same = [sample(row, unit=unit) for unit, row in enumerate(([1] * 3, [2] * 2, [2] * 2))]
    assert [[s.unit for s in part] for part in parts(same, 2, packed=True)] == [[0], [1, 2]]
    # the middle of the second is before half of the twelve tokens
    three = [sample([unit] * size, unit=unit) for unit, size in enumerate((2, 6, 4))]
    assert [[s.unit for s in part] for part in parts(three, 2, packed=True)] == [[0, 1], [2]]
    assert parts([], 2, packed=True) == parts([], 2, packed=False) == [[], []]


@pytest.mark.parametrize("rank", [0, 1])
def test_where_a_model_is_cut_everybody_has_as_many_micro_batches(rank: int) -> None:
    shared = [[sample([1] * 4, unit=unit) for unit in range(3)], [sample([2] * 4, unit=3)]]
    peers = Gathered(rank, [None, None])
    own = [[[4], [4], [4]], [[4]]][rank]
    assert sizes(rounds(Reader(False), peers, shared, 4)) == own
    assert sizes(rounds(Reader(False, True), peers, shared, 4)) == own + [[]] * (3 - len(own))
    assert len(rounds(Reader(False), peers, shared, 99, least=3)) == len(own)
    assert len(rounds(Reader(False), peers, shared, 99)) == 1


def test_columns_are_written_and_exchanged_by_turn() -> None:
    samples = awkward()
    batch = pack(samples)
    write_column(batch.turns, "entropies", np.arange(6, dtype=np.float32))
    first, second, third = batch.turns
    assert [np.asarray(t.entropies).tolist() for t in batch.turns] == [[0, 1, 2], [3], [4, 5]]
    other = [sample([1, 2, 3, 4]), sample([5, 6])]
    theirs = {"entropies": np.array([0.5, 1.5, 2.5, 3.5], np.float32)}
    peers = Gathered(0, ["its own is not read", theirs])
    exchange_columns(peers, [samples, other], ["entropies"])
    assert peers.own["entropies"].tolist() == [0, 1, 2, 3, 4, 5]
    assert peers.own["entropies"].dtype == np.float32
    written = [np.asarray(each.turns[0].entropies).tolist() for each in other]
    assert written == [[0.5, 1.5, 2.5], [3.5]]
    assert [np.asarray(t.entropies).tolist() for t in (first, second, third)] == [
        [0, 1, 2],
        [3],
        [4, 5],
    ]
    assert flat([]).dtype == np.float32 and len(flat([])) == 0


def test_a_loss_that_teaches_nothing_still_depends_on_everything() -> None:
    batch: Batch = pack(awkward())
    for with_values in (False, True):
        outputs = Outputs(*(torch.ones(6, requires_grad=True) for _ in range(2 + with_values)))
        found = nothing(batch, outputs)
        assert found.item() == 0.0
        found.backward()
        for column in (outputs.logprobs, outputs.entropy, outputs.values):
            assert column is None or column.grad.tolist() == [0.0] * 6
        assert (outputs.values is None) == (not with_values)
