"""Problems whose solution calls itself."""

from __future__ import annotations

import random
from typing import Any

from mrlm.environments.code.templates import (
    LIST,
    NUMBER,
    TEXT,
    ProgramTemplate,
    Values,
    ints,
    letters,
)


def _small(rng: random.Random, values: Values) -> Any:
    return (rng.randint(1, 12),)


def _nested(rng: random.Random, depth: int = 3) -> Any:
    """A list of numbers and lists."""
    return [
        _nested(rng, depth - 1) if depth > 1 and rng.random() < 0.4 else rng.randint(-5, 15)
        for _ in range(rng.randint(1, 4))
    ]


def _nest(rng: random.Random, values: Values) -> Any:
    return (_nested(rng, 4),)


TEMPLATES = (
    ProgramTemplate(
        "factorial",
        1,
        "Return $k times the product of all whole numbers from 1 to $a; $k if $a is 0.",
        "return $k if $a == 0 else $a * $f($a - 1)",
        takes=(NUMBER,),
        called=("product", "factorial", "multiplied", "fact"),
        args=_small,
        draws={"k": range(1, 20)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "sum_up_to",
        1,
        "Return $k plus the sum of all whole numbers from 1 to $a; $k if $a is 0.",
        "return $k if $a == 0 else $a + $f($a - 1)",
        takes=(NUMBER,),
        called=("sum_to", "triangle", "pile", "heap"),
        args=lambda rng, v: (rng.randint(1, 60),),
        draws={"k": range(0, 25)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "power",
        1,
        "Return $k to the power of $a, which is not negative.",
        "return 1 if $a == 0 else $k * $f($a - 1)",
        takes=(NUMBER,),
        called=("power", "raised", "exponent", "grown"),
        args=_small,
        draws={"k": range(2, 12)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "two_before",
        2,
        "A sequence begins with $k and $j; every other number is the sum of the two before it. "
        "Return the number at place $a, where the first has place 0.",
        "return ($k, $j)[$a] if $a < 2 else $f($a - 1) + $f($a - 2)",
        takes=(NUMBER,),
        called=("sequence", "rabbit", "fib", "member"),
        args=lambda rng, v: (rng.randint(2, 16),),
        draws={"k": range(0, 9), "j": range(1, 9)},
        edges=((0,), (1,)),
    ),
    ProgramTemplate(
        "backwards",
        2,
        "Return the characters of $a in reverse order with '$k' between them.",
        'return $a if len($a) < 2 else $f($a[1:]) + "$k" + $a[0]',
        takes=(TEXT,),
        called=("backwards", "reversed_text", "turned", "mirror"),
        args=lambda rng, v: (letters(rng, "abcdefgh"),),
        draws={"k": ("-", ".", "/", "_", ",", "+", "*", "~")},
        edges=(("",), ("x",)),
    ),
    ProgramTemplate(
        "count_down",
        2,
        "Return the list of $a, $a minus $k, $a minus twice $k and so on, as long as the numbers "
        "are not negative.",
        "return [$a] + $f($a - $k) if $a >= 0 else []",
        takes=(NUMBER,),
        called=("count_down", "descend", "steps_down", "ladder"),
        args=lambda rng, v: (rng.randint(1, 40),),
        draws={"k": range(2, 14)},
        edges=((0,), (-1,)),
    ),
    ProgramTemplate(
        "nested_sum",
        2,
        "$a is a list of numbers and of lists of the same kind. Return the sum of all numbers in "
        "it, at any depth, times $k.",
        "return sum($f(i) if isinstance(i, list) else i * $k for i in $a)",
        takes=(LIST,),
        called=("nested_sum", "deep_sum", "sum_all", "weigh"),
        args=_nest,
        draws={"k": range(1, 15)},
        edges=(([],), ([[[]]],)),
    ),
    ProgramTemplate(
        "nesting",
        2,
        "$a is a list of numbers and of lists of the same kind. Return how many lists stand in one "
        "another at the deepest place, plus $k; an empty list counts as one.",
        """
        def depth(part):
            return 1 + max(map(depth, part), default=0) if isinstance(part, list) else 0

        return depth($a) + $k
        """,
        takes=(LIST,),
        called=("nesting", "levels", "depth_of", "how_deep"),
        args=_nest,
        draws={"k": range(0, 20)},
        edges=(([],), ([[[]]],)),
    ),
    ProgramTemplate(
        "flat_above",
        3,
        "$a is a list of numbers and of lists of the same kind. Return one list of all numbers in "
        "it that are above $k, in their order.",
        """
        result = []
        for i in $a:
            if isinstance(i, list):
                result += $f(i)
            elif i > $k:
                result.append(i)
        return result
        """,
        takes=(LIST,),
        called=("flat", "flatten", "spread_out", "level_out"),
        args=_nest,
        draws={"k": range(-4, 10)},
        edges=(([],), ([[], [[20]]],)),
    ),
    ProgramTemplate(
        "choices_with_sum",
        3,
        "Return in how many ways some of the places of the list $a (all, or none, if you like) can "
        "be chosen so that the sum of the numbers there is $k.",
        """
        def ways(i, rest):
            if i == len($a):
                return int(rest == 0)
            return ways(i + 1, rest) + ways(i + 1, rest - $a[i])

        return ways(0, $k)
        """,
        takes=(LIST,),
        called=("ways", "choices", "selections", "num_subsets"),
        args=lambda rng, v: (ints(rng, 0, max(4, v["k"] // 2), 3, 8),),
        draws={"k": range(2, 16)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "stairs",
        3,
        "Return in how many ways a stair of $a steps can be climbed if 1 to $k steps are taken at "
        "a time; there is one way to climb 0 steps.",
        """
        if $a == 0:
            return 1
        return sum($f($a - i) for i in range(1, min($k, $a) + 1))
        """,
        takes=(NUMBER,),
        called=("stairs", "climbs", "ways_up", "walks"),
        args=_small,
        draws={"k": range(2, 8)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "coins",
        3,
        "Return in how many ways the amount $a can be paid with coins of 1, $j and $k; the order "
        "of the coins does not matter.",
        """
        def ways(rest, coins):
            if rest == 0:
                return 1
            if rest < 0 or not coins:
                return 0
            return ways(rest - coins[0], coins) + ways(rest, coins[1:])

        return ways($a, [$k, $j, 1])
        """,
        takes=(NUMBER,),
        called=("coins", "change", "payments", "num_ways"),
        args=lambda rng, v: (rng.randint(1, 45),),
        draws={"j": range(2, 6), "k": range(7, 14)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "no_neighbours",
        3,
        "Return the sorted list of all texts of $a characters that consist of '$k' and '$j' and in "
        "which no '$j' follows another directly; [''] if $a is 0.",
        """
        if $a == 0:
            return [""]
        longer = [part + char for part in $f($a - 1) for char in "$k$j"]
        return sorted(part for part in longer if not part.endswith("$j$j"))
        """,
        takes=(NUMBER,),
        called=("patterns", "codes", "all_texts", "arrangements"),
        args=lambda rng, v: (rng.randint(1, 6),),
        draws={"k": tuple("abcdefg"), "j": tuple("rstuvw")},
        edges=((0,),),
    ),
)
