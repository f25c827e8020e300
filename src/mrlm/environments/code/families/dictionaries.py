"""Problems about dictionaries with text as keys."""

from __future__ import annotations

import random
from typing import Any

from mrlm.environments.code.templates import (
    KEYS,
    LIST,
    TABLE,
    TEXT,
    WORDS,
    ProgramTemplate,
    Values,
    table,
    words,
)

BETWEEN = (" ", "-", "/", ",", ";", "_", "|", ":")


def _scores(rng: random.Random, values: Values) -> Any:
    return (table(rng),)


def _with_key(rng: random.Random, values: Values) -> Any:
    """A table that contains the key `k` half of the time."""
    found = table(rng)
    found.pop(values["k"], None)
    if rng.random() < 0.5:
        found[values["k"]] = rng.randint(0, 20)
    return (found,)


def _tree(rng: random.Random, values: Values) -> Any:
    """A nested dictionary, and a path that may not exist in it."""
    inner = {"a": rng.randint(0, 50), "b": {"c": rng.randint(0, 50), "d": rng.randint(0, 50)}}
    tree = {"x": inner, "y": {"a": rng.randint(0, 50)}, "z": rng.randint(0, 50)}
    paths = ["x a", "x b c", "x b d", "y a", "z", "x b", "y b", "z a", "q", "x b c d"]
    return (tree, rng.choice(paths).replace(" ", values["k"]))


TEMPLATES = (
    ProgramTemplate(
        "value_or",
        1,
        "Return the value of the key '$k' in the dictionary $a, or $j if it has no such key.",
        'return $a.get("$k", $j)',
        takes=(TABLE,),
        called=("look_up", "value_of", "fetch", "find"),
        args=_with_key,
        draws={"k": KEYS, "j": range(-9, 10)},
        edges=(({},),),
    ),
    ProgramTemplate(
        "other_keys",
        1,
        "Return the sorted list of the keys of the dictionary $a other than '$k'.",
        'return sorted(key for key in $a if key != "$k")',
        takes=(TABLE,),
        called=("others", "names", "keys_of", "rest_of"),
        args=_with_key,
        draws={"k": KEYS},
        edges=(({},),),
    ),
    ProgramTemplate(
        "total_plus",
        1,
        "Return the sum of the values of the dictionary $a plus $k.",
        "return sum($a.values()) + $k",
        takes=(TABLE,),
        called=("total", "sum_values", "worth", "balance"),
        args=_scores,
        draws={"k": range(1, 30)},
        edges=(({},),),
    ),
    ProgramTemplate(
        "has_key",
        1,
        "Return whether '$k' is a key of the dictionary $a.",
        'return "$k" in $a',
        takes=(TABLE,),
        called=("has", "knows", "contains", "present"),
        args=_with_key,
        draws={"k": KEYS},
        edges=(({},),),
    ),
    ProgramTemplate(
        "raise_values",
        2,
        "Return a dictionary with the keys of $a, in which every value is larger by $k.",
        "return {key: value + $k for key, value in $a.items()}",
        takes=(TABLE,),
        called=("raised", "increase", "add_bonus", "topped_up"),
        args=_scores,
        draws={"k": range(1, 30)},
        edges=(({},),),
    ),
    ProgramTemplate(
        "keys_above",
        2,
        "Return the sorted list of those keys of the dictionary $a whose value is above $k.",
        "return sorted(key for key, value in $a.items() if value > $k)",
        takes=(TABLE,),
        called=("winners", "keys_above", "passed", "over"),
        args=_scores,
        draws={"k": range(3, 17)},
        edges=(({},),),
    ),
    ProgramTemplate(
        "best_key",
        2,
        "Return the key of the dictionary $a with the largest value; of several the first in the "
        "alphabet; '$k' if $a is empty.",
        """
        best = "$k"
        for key in sorted($a):
            if best not in $a or $a[key] > $a[best]:
                best = key
        return best
        """,
        takes=(TABLE,),
        called=("best", "leader", "champion", "richest"),
        args=lambda rng, v: (table(rng, 0, 4, 2, 6),),
        draws={"k": ("nobody", "none", "-", "?", "empty", "zoe", "x", "nil")},
        edges=(({},),),
    ),
    ProgramTemplate(
        "count_words",
        2,
        "Return a dictionary of how often each word occurs in $a. Words are separated by '$k'; "
        "empty ones do not count.",
        """
        result = {}
        for part in $a.split("$k"):
            if part:
                result[part] = result.get(part, 0) + 1
        return result
        """,
        takes=(TEXT,),
        called=("count_words", "histogram", "word_counts", "tally"),
        args=lambda rng, v: (
            v["k"].join(rng.choice(("red", "sun", "sea", "")) for _ in range(rng.randint(2, 7))),
        ),
        draws={"k": BETWEEN},
        edges=(("",),),
    ),
    ProgramTemplate(
        "add_tables",
        2,
        "Return a dictionary with all keys of the dictionaries $a and $b, each with the sum of its "
        "two values; where a key is missing its value counts as $k.",
        "return {key: $a.get(key, $k) + $b.get(key, $k) for key in {**$a, **$b}}",
        takes=(TABLE, TABLE),
        called=("add_tables", "combine", "merge", "unite"),
        args=lambda rng, v: (table(rng), table(rng)),
        draws={"k": range(0, 12)},
        edges=(({}, {}), ({"ann": 1}, {})),
    ),
    ProgramTemplate(
        "by_first_letter",
        3,
        "$a is a list of words. Return a dictionary of first letter -> sorted list of the "
        "different words that begin with it and have at least $k letters; letters without such a "
        "word are left out.",
        """
        result = {}
        for item in sorted(set($a)):
            if len(item) >= $k:
                result.setdefault(item[0], []).append(item)
        return result
        """,
        takes=(LIST,),
        called=("by_letter", "index", "register", "catalogue"),
        args=lambda rng, v: (words(rng, " ", 3, 9).split(),),
        draws={"k": range(1, 6)},
        edges=(([],), (["sun", "sun"],)),
    ),
    ProgramTemplate(
        "turned_round",
        3,
        "The values of the dictionary $a are texts. Return a dictionary of value -> sorted list of "
        "the keys that have it, without the value '$k'.",
        """
        result = {}
        for key in sorted($a):
            if $a[key] != "$k":
                result.setdefault($a[key], []).append(key)
        return result
        """,
        takes=(TABLE,),
        called=("turned_round", "inverted", "groups", "by_value"),
        args=lambda rng, v: (
            {key: rng.choice((v["k"], "up", "down")) for key in rng.sample(KEYS, 4)},
        ),
        draws={"k": ("left", "none", "out", "off", *WORDS[:8])},
        edges=(({},),),
    ),
    ProgramTemplate(
        "top_keys",
        3,
        "Return the list of the $k keys of the dictionary $a with the largest values, the largest "
        "first, and of equal ones the first in the alphabet; all keys if there are fewer.",
        "return sorted($a, key=lambda key: (-$a[key], key))[:$k]",
        takes=(TABLE,),
        called=("top", "leaders", "podium", "front"),
        args=lambda rng, v: (table(rng, 0, 5, 3, 7),),
        draws={"k": range(1, 6)},
        edges=(({},), ({"bob": 2, "ann": 2},)),
    ),
    ProgramTemplate(
        "follow_path",
        3,
        "$a is a dictionary whose values are numbers or dictionaries of the same kind, and $b a "
        "path of keys separated by '$k'. Return what stands at the end of the path; None if it "
        "leads nowhere.",
        """
        at = $a
        for key in $b.split("$k"):
            if not isinstance(at, dict) or key not in at:
                return None
            at = at[key]
        return at
        """,
        takes=(TABLE, TEXT),
        called=("follow", "walk", "at_path", "deep_get"),
        args=_tree,
        draws={"k": BETWEEN},
        edges=(({}, "a"),),
    ),
    ProgramTemplate(
        "ledger",
        3,
        "$a is a list of pairs [name, amount]. Return a dictionary of name -> sum of its amounts, "
        "without the names whose sum is below $k.",
        """
        sums = {}
        for who, amount in $a:
            sums[who] = sums.get(who, 0) + amount
        return {who: amount for who, amount in sums.items() if amount >= $k}
        """,
        takes=(LIST,),
        called=("ledger", "accounts", "balances", "settle"),
        args=lambda rng, v: (
            [[rng.choice(KEYS[:4]), rng.randint(-9, 15)] for _ in range(rng.randint(1, 7))],
        ),
        draws={"k": range(-2, 15)},
        edges=(([],),),
    ),
)
