"""Problems about lists of whole numbers."""

from __future__ import annotations

import random
from typing import Any

from mrlm.environments.code.templates import LIST, ProgramTemplate, Values, ints


def _few(rng: random.Random, values: Values) -> Any:
    return (ints(rng),)


def _many(rng: random.Random, values: Values) -> Any:
    return (ints(rng, -3, 6, 3, 9),)


def _around(rng: random.Random, values: Values) -> Any:
    """Numbers near the sampled one, which occurs often."""
    k = values["k"]
    return ([rng.choice((k, k, k - 1, k + 1, k + 2, k - 3)) for _ in range(rng.randint(2, 7))],)


def _stairs(rng: random.Random, values: Values) -> Any:
    steps, at = [], rng.randint(-5, 5)
    for _ in range(rng.randint(2, 8)):
        steps.append(at)
        at += values["k"] if rng.random() < 0.7 else rng.randint(-4, 4)
    return (steps,)


def _intervals(rng: random.Random, values: Values) -> Any:
    starts = [rng.randint(0, 30) for _ in range(rng.randint(2, 5))]
    return ([[start, start + rng.randint(1, 6)] for start in starts],)


TEMPLATES = (
    ProgramTemplate(
        "add_to_all",
        1,
        "Return a list with $k added to every number of the list $a.",
        "return [i + $k for i in $a]",
        takes=(LIST,),
        called=("add_all", "shift_all", "raise_all", "lift"),
        args=_few,
        draws={"k": range(1, 20)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "first_items",
        1,
        "Return the first $k items of the list $a as a list; all of them if there are fewer.",
        "return $a[:$k]",
        takes=(LIST,),
        called=("first", "head", "take", "begin"),
        args=_few,
        draws={"k": range(1, 6)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "sum_plus",
        1,
        "Return the sum of the list $a plus $k.",
        "return sum($a) + $k",
        takes=(LIST,),
        called=("total", "add_up", "sum_up", "altogether"),
        args=_few,
        draws={"k": range(1, 30)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "above",
        1,
        "Return the numbers of the list $a that are above $k, in their order.",
        "return [i for i in $a if i > $k]",
        takes=(LIST,),
        called=("above", "larger_than", "over", "keep_high"),
        args=_around,
        draws={"k": range(1, 20)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "count_value",
        1,
        "Return how often $k occurs in the list $a.",
        "return $a.count($k)",
        takes=(LIST,),
        called=("how_often", "times", "count_of", "frequency"),
        args=_around,
        draws={"k": range(1, 20)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "by_remainder",
        2,
        "Return the list $a sorted by the remainder of division by $k; numbers with the same "
        "remainder stay in their order.",
        "return sorted($a, key=lambda i: i % $k)",
        takes=(LIST,),
        called=("by_remainder", "arrange", "sort_mod", "in_classes"),
        args=_few,
        draws={"k": range(2, 12)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "rotate",
        2,
        "Return the list $a rotated to the left by $k places.",
        """
        if not $a:
            return []
        at = $k % len($a)
        return $a[at:] + $a[:at]
        """,
        takes=(LIST,),
        called=("rotate", "turn_left", "spin", "cycle_left"),
        args=_few,
        draws={"k": range(1, 12)},
        edges=(([],), ([5],)),
    ),
    ProgramTemplate(
        "chunks",
        2,
        "Return the list $a cut into lists of $k items; the last one may be shorter.",
        "return [$a[i : i + $k] for i in range(0, len($a), $k)]",
        takes=(LIST,),
        called=("chunks", "parts", "cut", "slices"),
        args=_few,
        draws={"k": range(2, 7)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "different",
        2,
        "Return the different numbers of the list $a except $k, in the order in which they first "
        "occur.",
        """
        result = []
        for i in $a:
            if i != $k and i not in result:
                result.append(i)
        return result
        """,
        takes=(LIST,),
        called=("different", "unique", "distinct", "without_repeats"),
        args=_around,
        draws={"k": range(-3, 15)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "kth_largest",
        2,
        "Return the number that comes at place $k when the different numbers of the list $a are "
        "put in order, the largest at place 1; None if there are fewer.",
        """
        ordered = sorted(set($a), reverse=True)
        return ordered[$k - 1] if len(ordered) >= $k else None
        """,
        takes=(LIST,),
        called=("kth_largest", "ranked", "place", "podium"),
        args=_many,
        draws={"k": range(1, 5)},
        edges=(([],), ([4, 4, 4, 4, 1],)),
    ),
    ProgramTemplate(
        "running_totals",
        2,
        "Return the list of running totals of the list $a, where the count begins at $k.",
        """
        result, total = [], $k
        for i in $a:
            total += i
            result.append(total)
        return result
        """,
        takes=(LIST,),
        called=("running", "totals", "cumulative", "sums"),
        args=_few,
        draws={"k": range(0, 25)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "longest_stairs",
        3,
        "Return the length of the longest stretch of neighbours in the list $a in which each "
        "number is the one before it plus $k; 0 for an empty list.",
        """
        best = length = 0
        for i in range(len($a)):
            length = length + 1 if i and $a[i] == $a[i - 1] + $k else 1
            best = max(best, length)
        return best
        """,
        takes=(LIST,),
        called=("longest_stairs", "streak", "climb", "longest_rise"),
        args=_stairs,
        draws={"k": (-3, -2, -1, 1, 2, 3, 4, 5)},
        edges=(([],), ([7],)),
    ),
    ProgramTemplate(
        "best_window",
        3,
        "Return the largest sum of $k neighbours in the list $a; None if it has fewer numbers.",
        """
        if len($a) < $k:
            return None
        return max(sum($a[i : i + $k]) for i in range(len($a) - $k + 1))
        """,
        takes=(LIST,),
        called=("best_window", "window", "peak_sum", "richest"),
        args=_many,
        draws={"k": range(2, 6)},
        edges=(([],), ([-5, -4, -3, -2, -9, -8],)),
    ),
    ProgramTemplate(
        "pairs_with_sum",
        3,
        "Return how many pairs of places in the list $a hold two numbers whose sum is $k; a place "
        "is not paired with itself, and the order in a pair does not matter.",
        """
        places = range(len($a))
        return sum($a[i] + $a[j] == $k for i in places for j in places if i < j)
        """,
        takes=(LIST,),
        called=("pairs", "pair_count", "matches", "couples"),
        args=lambda rng, v: (ints(rng, v["k"] // 2 - 3, v["k"] // 2 + 3, 3, 8),),
        draws={"k": range(0, 20)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "join_intervals",
        3,
        "$a is a list of intervals [start, end] in any order. Return the intervals in order of "
        "their starts, with those joined into one that overlap or have a gap of at most $k "
        "between them.",
        """
        result = []
        for start, end in sorted($a):
            if result and start <= result[-1][1] + $k:
                result[-1][1] = max(result[-1][1], end)
            else:
                result.append([start, end])
        return result
        """,
        takes=(LIST,),
        called=("join", "merged", "unite", "cover"),
        args=_intervals,
        draws={"k": range(0, 6)},
        edges=(([],), ([[0, 9], [2, 3]],)),
    ),
)
