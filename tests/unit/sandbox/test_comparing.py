"""What a solution gave is compared by value and exact type, and is harmless whatever it claims."""

import json
import math
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.sandbox.grading.comparing import SHOWN, same, same_packed, show
from mrlm.sandbox.grading.plain import BITS, DEPTH, ITEMS, Handle, NotPlain, pack, unpack

Point = namedtuple("Point", "x y")
NAN = float("nan")


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (3, 3), (3, 3.0), (3.0, 3), (-0.0, 0), (True, True), (None, None), ("a", "a"), (b"a", b"a"),
        ([1, [2]], [1, [2]]), ((1, 2), [1, 2]), ([(1, 2)], [[1, 2]]), ((1, 2), (1, 2)),
        ({1, 2}, {2, 1}), (frozenset({1}), {1}), ({1.0}, {1}), ({(1, 2)}, {(1, 2)}),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}), ({1: "x"}, {1.0: "x"}), ({(1, "k"): 0},) * 2,
        (2**70, 2**70), (-(2**53), -(2**53)), (1e300, 1e300), (float("inf"), float("inf")),
        (1 + 2j, 1 + 2j), (1 + 0j, 1), (range(3), range(0, 3)), ("\ud800", "\ud800"),
        (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1}), (Point(1, 2), (1, 2)),
        (defaultdict(int, {"a": 1}), {"a": 1}), (bytearray(b"x"), b"x"), ((), []), ("", ""),
        ({frozenset({1, 2}): 1}, {frozenset({2, 1}): 1}), ("é\n\x00", "é\n\x00"), (10**4000,) * 2,
    ],
)  # fmt: skip
def test_equal_values_are_the_same(got: Any, wanted: Any) -> None:
    assert same(got, wanted)
    assert same(unpack(json.loads(json.dumps(pack(got)))), wanted)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (True, 1), (1, True), (False, 0), (0, False), (1.0, True), ([True], [1]), ({True}, {1}),
        ({1: 0}, {True: 0}), (NAN, NAN), ([NAN], [NAN]), ({NAN}, {NAN}), ([1, 2], (1, 2)),
        ([[1, 2]], [(1, 2)]), ("3", 3), (b"a", "a"), (None, False), (None, 0), ("", None),
        ([1], [1, 1]), ([1, 2], [2, 1]), ({1}, [1]), ([1], {1}), ({1: 1}, {"1": 1}), ({}, []),
        ([], None), ((), set()),
        ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"a": 1}), (2**53 + 1, float(2**53)),
        (2**53, 2**53 + 1), (0.1 + 0.2, 0.3), (range(3), [0, 1, 2]), (float("inf"), 1e308),
        (object(), object()), (iter([1]), [1]), (math, math), (len, len), ("a", "a "), (1 + 1j, 1),
        ((1,), 1), (Handle(1), Handle(1)),
    ],
)  # fmt: skip
def test_other_values_are_not(got: Any, wanted: Any) -> None:
    assert not same(got, wanted)


def test_floats_may_differ_a_little_and_integers_may_not() -> None:
    assert same(0.1 + 0.2, 0.3, rel_tol=1e-9) and same([1.0000001], [1.0], rel_tol=1e-6)
    assert same(3, 3.0000001, rel_tol=1e-6) and same(1e-17, 0.0, rel_tol=1e-9)
    assert same(1 + 1e-9j, 1 + 0j, rel_tol=1e-6)
    assert not same(1.1, 1.0, rel_tol=1e-6) and not same(1e-17, 1e-9, rel_tol=1e-9)
    assert not same(10**12 + 1, 10**12, rel_tol=1e-6)
    assert not same(10**400, 1.0, rel_tol=1e-6) and not same(NAN, NAN, rel_tol=1.0)
    assert not same(True, 1.0, rel_tol=1.0) and not same(1e308, float("inf"), rel_tol=1e-6)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers()), inner, max_size=4)
        | st.sets(st.integers() | st.text() | st.booleans() | st.floats(), max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(plain, plain)
def test_same_is_equality_of_plain_data(one: Any, other: Any) -> None:
    again = unpack(json.loads(json.dumps(pack(one))))
    assert repr(again) == repr(one) or isinstance(one, set | dict | list | tuple)
    if "nan" not in repr(one):
        assert again == one and same(again, one) and same(one, again)
    else:
        assert not same(again, one)
    if one != other:
        lists_for_tuples = "(" in repr(one) and "[" in repr(other)
        assert not same(one, other) or lists_for_tuples


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*"ifctszdrobux"]), inner, max_size=2)
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(json_values)
def test_anything_that_claims_to_be_packed_is_harmless(claim: Any) -> None:
    try:
        value = unpack(claim)
    except NotPlain:
        value = None
    except (OverflowError, RecursionError) as error:  # pragma: no cover
        pytest.fail(f"{error!r}")
    assert len(show(claim)) <= SHOWN
    try:
        verdict = same_packed(claim, pack([1, "two"]))
    except NotPlain:
        verdict = False
    assert verdict == (value in ([1, "two"], (1, "two")) and not isinstance(value[0], bool))  # type: ignore[index]


def test_what_is_no_plain_data_is_refused() -> None:
    deep: Any = []
    for _ in range(DEPTH + 1):
        deep = [deep]
    cycle: list[Any] = []
    cycle.append(cycle)
    laughs: Any = [0]
    for _ in range(50):
        laughs = [laughs, laughs]
    large = ([0] * (ITEMS + 1), 1 << BITS, "x" * 10**6, range(1 << BITS))
    objects = (object(), {1: object()}, (n for n in [1]), NotPlain, map(str, []))
    for value in (deep, cycle, laughs, *large, *objects):
        with pytest.raises(NotPlain):
            pack(value)
    assert not same(objects[0], objects[0]) and not same(cycle, cycle)


@pytest.mark.parametrize(
    "claim",
    [
        {}, {"t": 1}, {"i": "zz"}, {"i": "1" * 10**5}, {"d": [[1]]}, {"s": [[1]]}, {"q": 1}, 1j,
        {"f": "1"}, {"c": [1]}, {"r": [1, 2, 0]}, {"t": [], "s": []}, {"b": "x"}, {"d": [[[], 1]]},
    ],
)  # fmt: skip
def test_a_false_claim_is_refused(claim: Any) -> None:
    with pytest.raises(NotPlain):
        unpack(claim)


def test_a_value_is_shown_short_and_without_control_codes() -> None:
    assert show(pack({"a": (1,), "b": [None, True]})) == "{'a': (1,), 'b': [None, True]}"
    assert show(pack(set())) == "set()"
    assert "\x1b" not in show(pack("\x1b[2J")) and "\u202e" not in show(pack("\u202e"))
    for value in ([0] * 10_000, "x" * 10_000, 1 << 60_000, {n: [n] * 99 for n in range(999)}):
        assert len(show(pack(value))) <= SHOWN
    nested: Any = "x"
    for _ in range(50):
        nested = [nested] * 3 if _ < 5 else [nested]
    assert len(show(pack(nested))) <= SHOWN


def test_numbers_with_one_hash_take_no_quadratic_time() -> None:
    same_hash = {n * (2**61 - 1): 0 for n in range(200)}
    packed = {"d": [[{"i": f"{n * (2**61 - 1):x}"}, 0] for n in range(30_000)]}
    begin = time.process_time()
    assert not same_packed(packed, pack(same_hash))
    assert time.process_time() - begin < 2
