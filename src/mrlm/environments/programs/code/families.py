"""Templates of the code environment by family, read from `families.yaml`, and the samplers of their
arguments."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrlm.core.content import content
from mrlm.environments.programs.code.templates import Args, ProgramTemplate, Values

_TABLES = content(__file__, "names.yaml")
NAMES: dict[str, list[str]] = {kind: names.split() for kind, names in _TABLES["names"].items()}
"""Type of value -> names of parameters. Solutions use none of them for anything else."""
WORDS, KEYS = _TABLES["words"].split(), _TABLES["keys"].split()

# -- one argument: functions that a template names with their settings -----------------------------


def ints(rng: random.Random, low: int = -9, high: int = 20, least: int = 1, most: int = 7) -> Any:
    """A list of whole numbers."""
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def letters(rng: random.Random, alphabet: str = "abcde", least: int = 1, most: int = 8) -> str:
    """A string of letters of a small alphabet."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(least, most)))


def words(rng: random.Random, between: str = " ", least: int = 1, most: int = 5) -> str:
    """Several words joined by a separator."""
    return between.join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def table(rng: random.Random, low: int = 0, high: int = 20, least: int = 1, most: int = 5) -> Any:
    """A dictionary of names and whole numbers."""
    keys = rng.sample(KEYS, rng.randint(least, most))
    return {key: rng.randint(low, high) for key in keys}


def grid(rng: random.Random, low: int = -9, high: int = 9, square: bool = False) -> Any:
    """A list of lists of whole numbers, 2 to 4 rows and columns."""
    height = rng.randint(2, 4)
    width = height if square else rng.randint(2, 4)
    return [[rng.randint(low, high) for _ in range(width)] for _ in range(height)]


MAKERS: dict[str, Callable[..., Any]] = {
    "number": random.Random.randint,
    **{maker.__name__: maker for maker in (ints, letters, words, table, grid)},
}

# -- all arguments of a call: functions that depend on the values drawn for the template -----------


def _with_key(rng: random.Random, v: Values) -> Args:
    """A table that contains the key `k` half of the time."""
    mapping = table(rng)
    mapping.pop(v["k"], None)
    if rng.random() < 0.5:
        mapping[v["k"]] = rng.randint(0, 20)
    return (mapping,)


def _tree(rng: random.Random, v: Values) -> Args:
    """A nested dictionary, and a path that may not exist in it."""
    inner = {"a": rng.randint(0, 50), "b": {"c": rng.randint(0, 50), "d": rng.randint(0, 50)}}
    tree = {"x": inner, "y": {"a": rng.randint(0, 50)}, "z": rng.randint(0, 50)}
    paths = ["x a", "x b c", "x b d", "y a", "z", "x b", "y b", "z a", "q", "x b c d"]
    return (tree, rng.choice(paths).replace(" ", v["k"]))


def _around(rng: random.Random, v: Values) -> Args:
    """Numbers near the sampled one, which occurs often."""
    k = v["k"]
    return ([rng.choice((k, k, k - 1, k + 1, k + 2, k - 3)) for _ in range(rng.randint(2, 7))],)


def _stairs(rng: random.Random, v: Values) -> Args:
    steps, at = [], rng.randint(-5, 5)
    for _ in range(rng.randint(2, 8)):
        steps.append(at)
        at += v["k"] if rng.random() < 0.7 else rng.randint(-4, 4)
    return (steps,)


def _intervals(rng: random.Random, v: Values) -> Args:
    starts = [rng.randint(0, 30) for _ in range(rng.randint(2, 5))]
    return ([[start, start + rng.randint(1, 6)] for start in starts],)


def _nested(rng: random.Random, depth: int) -> Any:
    """A list of numbers and lists."""
    return [
        _nested(rng, depth - 1) if depth > 1 and rng.random() < 0.4 else rng.randint(-5, 15)
        for _ in range(rng.randint(1, 4))
    ]


def _maze(rng: random.Random, v: Values) -> Args:
    height, width = rng.randint(2, 5), rng.randint(2, 5)
    lines = [
        "".join(v["k"] if rng.random() < 0.3 else "." for _ in range(width)) for _ in range(height)
    ]
    lines[0], lines[-1] = "." + lines[0][1:], lines[-1][:-1] + "."
    return (lines,)


def _sorted_list(rng: random.Random, v: Values) -> Args:
    numbers = sorted(set(ints(rng, -20, 40, 3, 9)))
    return (numbers, rng.choice(numbers) if rng.random() < 0.6 else rng.randint(-20, 40))


def _cell(rng: random.Random, v: Values) -> Args:
    cells, k = grid(rng), v["k"]
    return (cells, k + rng.randrange(len(cells)), k + rng.randrange(len(cells[0])))


def _mirrored(rng: random.Random, v: Values) -> Args:
    half = letters(rng, "abc", 1, 3)
    text = half + half[::-1] if rng.random() < 0.5 else half + letters(rng, "abc", 1, 3)
    index = rng.randrange(len(text))
    return ((text[:index] + v["k"] + text[index:].upper()),)


def _capitals(rng: random.Random, v: Values) -> Args:
    text = words(rng, v["k"], most=4)
    return ("".join(char.upper() if rng.random() < 0.3 else char for char in text),)


def _count_words(rng: random.Random, v: Values) -> Args:
    some = ("red", "sun", "sea", "")
    return (v["k"].join(rng.choice(some) for _ in range(rng.randint(2, 7))),)


_LONGER = (
    *(_around, _capitals, _cell, _count_words, _intervals, _maze, _mirrored, _sorted_list, _stairs),
    *(_tree, _with_key),
)
SAMPLERS: dict[str, Callable[[random.Random, Values], Args]] = {
    **{sampler.__name__[1:]: sampler for sampler in _LONGER},
    "areas": lambda rng, v: (
        [[v["k"] if rng.random() < 0.5 else 0 for _ in range(4)] for _ in range(4)],
    ),
    "by_first_letter": lambda rng, v: (words(rng, " ", 3, 9).split(),),
    "choices_with_sum": lambda rng, v: (ints(rng, 0, max(4, v["k"] // 2), 3, 8),),
    "count_letter": lambda rng, v: (letters(rng, f"{v['k']}{v['k'].upper()}xyz", 1, 9),),
    "count_primes": lambda rng, v: (rng.randint(v["k"], v["k"] + 120),),
    "joined": lambda rng, v: (words(rng, v["k"], most=4),),
    "ledger": lambda rng, v: (
        [[rng.choice(KEYS[:4]), rng.randint(-9, 15)] for _ in range(rng.randint(1, 7))],
    ),
    "most_common": lambda rng, v: (letters(rng, "abcdef" + v["k"], 2, 9),),
    "multiple_of": lambda rng, v: (
        v["k"] * rng.randint(-9, 9) + rng.choice((0, 0, 1, v["k"] - 1)),
    ),
    "nest": lambda rng, v: (_nested(rng, 4),),
    "pairs_with_sum": lambda rng, v: (ints(rng, v["k"] // 2 - 3, v["k"] // 2 + 3, 3, 8),),
    "power_remainder": lambda rng, v: (
        rng.randint(0, 99),
        rng.choice((rng.randint(0, 20), 10**9 + 7)),
    ),
    "shift_letters": lambda rng, v: (words(rng, rng.choice(" -A"), most=3),),
    "turned_round": lambda rng, v: (
        {key: rng.choice((v["k"], "up", "down")) for key in rng.sample(KEYS, 4)},
    ),
    "within": lambda rng, v: (rng.randint(v["low"] - 15, v["high"] + 15),),
}

# -- the templates ---------------------------------------------------------------------------------


def _sampler(args: str | Sequence[Mapping[str, Any]]) -> Callable[[random.Random, Values], Args]:
    """The named sampler, or one that makes each argument by itself."""
    if isinstance(args, str):
        return SAMPLERS[args]
    made = [(MAKERS[name], settings) for entry in args for name, settings in entry.items()]
    return lambda rng, v: tuple(maker(rng, *settings) for maker, settings in made)


def _template(name: str, row: Mapping[str, Any]) -> ProgramTemplate:
    draws = {
        key: range(*options["range"]) if isinstance(options, Mapping) else options
        for key, options in row.get("draws", {}).items()
    }
    fixed = {key: row[key] for key in ("level", "text", "body", "called")}
    takes, edges = [NAMES[kind] for kind in row["takes"]], list(map(tuple, row.get("edges", ())))
    return ProgramTemplate(
        name, **fixed, takes=takes, args=_sampler(row["args"]), draws=draws, edges=edges
    )


FAMILIES: dict[str, tuple[ProgramTemplate, ...]] = {
    family: tuple(_template(name, row) for name, row in group.items())
    for family, group in content(__file__).items()
}
