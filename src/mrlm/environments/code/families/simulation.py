"""Problems about grids, search, and things that move step by step."""

from __future__ import annotations

import random
from typing import Any

from mrlm.environments.code.templates import (
    GRID,
    LIST,
    NUMBER,
    TEXT,
    ProgramTemplate,
    Values,
    grid,
    ints,
    letters,
)


def _maze(rng: random.Random, values: Values) -> Any:
    height, width = rng.randint(2, 5), rng.randint(2, 5)
    lines = [
        "".join(values["k"] if rng.random() < 0.3 else "." for _ in range(width))
        for _ in range(height)
    ]
    lines[0], lines[-1] = "." + lines[0][1:], lines[-1][:-1] + "."
    return (lines,)


def _sorted_list(rng: random.Random, values: Values) -> Any:
    found = sorted(set(ints(rng, -20, 40, 3, 9)))
    return (found, rng.choice(found) if rng.random() < 0.6 else rng.randint(-20, 40))


def _cell(rng: random.Random, values: Values) -> Any:
    found, k = grid(rng), values["k"]
    return (found, k + rng.randrange(len(found)), k + rng.randrange(len(found[0])))


TEMPLATES = (
    ProgramTemplate(
        "counter",
        1,
        "A counter stands at $k. Every '+' in $a adds 1 to it, every '-' takes 1 away. Return "
        "where it stands in the end.",
        'return $k + $a.count("+") - $a.count("-")',
        takes=(TEXT,),
        called=("counter", "clicks", "ending", "display"),
        args=lambda rng, v: (letters(rng, "+-+", 1, 9),),
        draws={"k": range(-5, 30)},
        edges=(("",),),
    ),
    ProgramTemplate(
        "grid_sum",
        1,
        "$a is a list of lists of numbers. Return the sum of all the numbers plus $k.",
        "return sum(map(sum, $a)) + $k",
        takes=(GRID,),
        called=("grid_sum", "everything", "add_cells", "whole"),
        args=lambda rng, v: (grid(rng),),
        draws={"k": range(1, 30)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "cell",
        1,
        "$a is a list of rows, which are lists. Return what stands in row $b and column $c, where "
        "the first row and the first column have the number $k.",
        "return $a[$b - $k][$c - $k]",
        takes=(GRID, NUMBER, NUMBER),
        called=("cell", "at", "peek", "content"),
        args=_cell,
        draws={"k": (1, 2, 3, 5, 10, 100)},
    ),
    ProgramTemplate(
        "transpose",
        2,
        "$a is a list of rows, which are lists. Return the list of its columns, in which every "
        "number is multiplied by $k.",
        "return [[value * $k for value in column] for column in zip(*$a)]",
        takes=(GRID,),
        called=("columns", "transpose", "turned", "flipped"),
        args=lambda rng, v: (grid(rng),),
        draws={"k": range(1, 15)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "robot",
        2,
        "A robot stands at [0, 0]. For every letter of $a it goes $k further: N adds to the second "
        "number, S takes away from it, E adds to the first, W takes away from it. Return where it "
        "stands in the end.",
        """
        across = $a.count("E") - $a.count("W")
        up = $a.count("N") - $a.count("S")
        return [across * $k, up * $k]
        """,
        takes=(TEXT,),
        called=("robot", "position", "walk", "travel"),
        args=lambda rng, v: (letters(rng, "NESW", 1, 9),),
        draws={"k": range(1, 20)},
        edges=(("",),),
    ),
    ProgramTemplate(
        "account",
        2,
        "An account holds $k. The changes in the list $a come one after the other; one that would "
        "make it hold less than 0 is refused. Return what it holds in the end.",
        """
        held = $k
        for change in $a:
            if held + change >= 0:
                held += change
        return held
        """,
        takes=(LIST,),
        called=("account", "balance", "purse", "bank"),
        args=lambda rng, v: (ints(rng, -30, 20, 2, 7),),
        draws={"k": range(0, 40)},
        edges=(([],), ([-100, 3],)),
    ),
    ProgramTemplate(
        "find_sorted",
        2,
        "$a is a sorted list of different numbers. Return the position of $b in it, counted from "
        "0, or $k if it is not there.",
        """
        low, high = 0, len($a)
        while low < high:
            middle = (low + high) // 2
            if $a[middle] < $b:
                low = middle + 1
            else:
                high = middle
        return low if low < len($a) and $a[low] == $b else $k
        """,
        takes=(LIST, NUMBER),
        called=("find", "locate", "search", "place_of"),
        args=_sorted_list,
        draws={"k": range(-40, -1)},
        edges=(([], 3),),
    ),
    ProgramTemplate(
        "diagonal",
        2,
        "$a has as many rows as columns. Return the sum of the numbers on the diagonal from the "
        "top left to the bottom right, times $k.",
        "return sum($a[i][i] for i in range(len($a))) * $k",
        takes=(GRID,),
        called=("diagonal", "trace", "slope_sum", "main_line"),
        args=lambda rng, v: (grid(rng, square=True),),
        draws={"k": range(1, 20)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "passes",
        2,
        "Return the list $a after $k passes of the following: go from its beginning to its end, "
        "and wherever a number is larger than the next one exchange the two. $a may be changed.",
        """
        for _ in range($k):
            for i in range(len($a) - 1):
                if $a[i] > $a[i + 1]:
                    $a[i], $a[i + 1] = $a[i + 1], $a[i]
        return $a
        """,
        takes=(LIST,),
        called=("passes", "bubble", "partly_sorted", "sweep"),
        args=lambda rng, v: (ints(rng, 0, 20, 3, 7),),
        draws={"k": range(1, 6)},
        edges=(([],), ([6, 5, 4, 3, 2, 1],)),
    ),
    ProgramTemplate(
        "automaton",
        3,
        "$a is a list of 0 and 1. Return the list in which every number is replaced by a digit of "
        "$k written in binary: the one for 2 to the power of (4 times the left neighbour plus 2 "
        "times the number itself plus the right neighbour). Outside the list everything is 0.",
        """
        padded = [0, *$a, 0]
        return [
            $k >> (4 * padded[i] + 2 * padded[i + 1] + padded[i + 2]) & 1 for i in range(len($a))
        ]
        """,
        takes=(LIST,),
        called=("automaton", "next_row", "evolve", "generation"),
        args=lambda rng, v: (ints(rng, 0, 1, 4, 9),),
        draws={"k": range(1, 255)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "shortest_path",
        3,
        "$a is a list of texts of equal length, a map in which '$k' is a wall. Return the fewest "
        "steps up, down, left or right from the top left to the bottom right; -1 if there is no "
        "way. Those two places are free.",
        """
        height, width = len($a), len($a[0])
        reached, front, steps = {(0, 0)}, [(0, 0)], 0
        while front:
            if (height - 1, width - 1) in reached:
                return steps
            following = []
            for i, j in front:
                for at in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                    inside = 0 <= at[0] < height and 0 <= at[1] < width
                    if inside and at not in reached and $a[at[0]][at[1]] != "$k":
                        reached.add(at)
                        following.append(at)
            front, steps = following, steps + 1
        return -1
        """,
        takes=(GRID,),
        called=("shortest", "path_length", "escape", "fewest_steps"),
        args=_maze,
        draws={"k": tuple("#XO*@%W=")},
        edges=((["."],), (["..", ".."],)),
    ),
    ProgramTemplate(
        "areas",
        3,
        "$a is a list of rows of numbers. Return how many areas of the number $k there are: two "
        "places belong to one area if they are next to each other, not across a corner.",
        """
        left = {(i, j) for i in range(len($a)) for j in range(len($a[i])) if $a[i][j] == $k}
        found = 0
        while left:
            found += 1
            front = [left.pop()]
            while front:
                i, j = front.pop()
                for at in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                    if at in left:
                        left.remove(at)
                        front.append(at)
        return found
        """,
        takes=(GRID,),
        called=("areas", "islands", "regions", "patches"),
        args=lambda rng, v: (
            [[v["k"] if rng.random() < 0.5 else 0 for _ in range(4)] for _ in range(4)],
        ),
        draws={"k": range(1, 10)},
        edges=(([],),),
    ),
    ProgramTemplate(
        "last_left",
        3,
        "The numbers from 1 to $a stand in a circle. Beginning with 1 they are counted, and every "
        "$k-th goes; the count then goes on with the one after it. Return the last that is left.",
        """
        circle, at = list(range(1, $a + 1)), 0
        while len(circle) > 1:
            at = (at + $k - 1) % len(circle)
            circle.pop(at)
        return circle[0]
        """,
        takes=(NUMBER,),
        called=("last_left", "survivor", "remaining", "counted_out"),
        args=lambda rng, v: (rng.randint(2, 30),),
        draws={"k": range(2, 12)},
        edges=((1,),),
    ),
    ProgramTemplate(
        "counters",
        3,
        "The people in the list $a, given by how long each is served, queue at $k counters. The "
        "first in the queue goes to a counter as soon as one is free. Return when all are served; "
        "0 for nobody.",
        """
        free = [0] * $k
        for time in $a:
            free.sort()
            free[0] += time
        return max(free)
        """,
        takes=(LIST,),
        called=("queue_time", "closing", "served_by", "finish"),
        args=lambda rng, v: (ints(rng, 1, 12, 2, 9),),
        draws={"k": range(1, 6)},
        edges=(([],),),
    ),
)
