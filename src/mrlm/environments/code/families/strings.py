"""Problems about text."""

from __future__ import annotations

import random
from typing import Any

from mrlm.environments.code.templates import TEXT, ProgramTemplate, Values, letters, words

BETWEEN = ("-", "/", ",", ";", "_", "|", ":", "+")
SOME = ("aeiou", "abc", "rst", "lmn", "aei", "eno", "pqrst", "abcde")


def _word(rng: random.Random, values: Values) -> Any:
    return (words(rng, most=1),)


def _phrase(rng: random.Random, values: Values) -> Any:
    return (words(rng, most=4),)


def _joined(rng: random.Random, values: Values) -> Any:
    return (words(rng, values["k"], most=4),)


def _mirrored(rng: random.Random, values: Values) -> Any:
    half = letters(rng, "abc", 1, 3)
    text = half + half[::-1] if rng.random() < 0.5 else half + letters(rng, "abc", 1, 3)
    place = rng.randrange(len(text))
    return ((text[:place] + values["k"] + text[place:].upper()),)


TEMPLATES = (
    ProgramTemplate(
        "repeat_text",
        1,
        "Return $a repeated $k times.",
        "return $a * $k",
        takes=(TEXT,),
        called=("repeat", "copies", "echo", "again"),
        args=_word,
        draws={"k": range(2, 10)},
        edges=(("",),),
    ),
    ProgramTemplate(
        "put_before",
        1,
        "Return $a with '$k' in front of it.",
        'return "$k" + $a',
        takes=(TEXT,),
        called=("prefix", "before", "mark", "lead"),
        args=_word,
        draws={"k": ("re", "un", "pre", "my_", "id-", "no ", "Dr. ", "#", "@")},
    ),
    ProgramTemplate(
        "last_characters",
        1,
        "Return the last $k characters of $a, or all of it if it is shorter.",
        "return $a[-$k:]",
        takes=(TEXT,),
        called=("tail", "ending", "last_part", "suffix"),
        args=_word,
        draws={"k": range(1, 5)},
        edges=(("",),),
    ),
    ProgramTemplate(
        "upper_case",
        1,
        "Return $a in upper case with '$k' after it.",
        'return $a.upper() + "$k"',
        takes=(TEXT,),
        called=("shout", "loud", "upper", "cry"),
        args=_word,
        draws={"k": ("!", "?", ".", "!!", "...", ":", ";", "#")},
    ),
    ProgramTemplate(
        "length_plus",
        1,
        "Return the number of characters of $a plus $k.",
        "return len($a) + $k",
        takes=(TEXT,),
        called=("size", "width", "measure", "extent"),
        args=lambda rng, v: (letters(rng, most=15),),
        draws={"k": range(1, 20)},
        edges=(("",),),
    ),
    ProgramTemplate(
        "count_letter",
        2,
        "Return how many characters of $a are the letter '$k', in upper or lower case.",
        'return $a.lower().count("$k")',
        takes=(TEXT,),
        called=("count_letter", "how_many", "occurrences", "tally"),
        args=lambda rng, v: (letters(rng, f"{v['k']}{v['k'].upper()}xyz", 1, 9),),
        draws={"k": tuple("abcdefghijklmnop")},
        edges=(("",),),
    ),
    ProgramTemplate(
        "every_kth",
        2,
        "Return every character of $a whose position, counted from 0, is a multiple of $k.",
        "return $a[::$k]",
        takes=(TEXT,),
        called=("thin", "skip", "pick", "sieve_text"),
        args=_phrase,
        draws={"k": range(2, 8)},
        edges=(("",),),
    ),
    ProgramTemplate(
        "longest_word",
        2,
        "The words in $a are separated by '$k'. Return the longest; of equally long ones the "
        "first.",
        'return max($a.split("$k"), key=len)',
        takes=(TEXT,),
        called=("longest", "longest_word", "biggest_part", "widest"),
        args=_joined,
        draws={"k": BETWEEN},
        edges=(("",),),
    ),
    ProgramTemplate(
        "same_backwards",
        2,
        "Return whether $a reads the same backwards when every '$k' and the difference between "
        "upper and lower case are ignored.",
        """
        plain = $a.lower().replace("$k", "")
        return plain == plain[::-1]
        """,
        takes=(TEXT,),
        called=("mirrored", "palindrome", "same_backwards", "symmetric"),
        args=_mirrored,
        draws={"k": BETWEEN},
        edges=(("",),),
    ),
    ProgramTemplate(
        "capitals",
        2,
        "The words in $a are separated by '$k'. Return $a with the first letter of every word in "
        "upper case and the other letters in lower case.",
        'return "$k".join(part.capitalize() for part in $a.split("$k"))',
        takes=(TEXT,),
        called=("capitals", "headline", "proper", "name_case"),
        args=lambda rng, v: (
            "".join(
                char.upper() if rng.random() < 0.3 else char for char in words(rng, v["k"], most=4)
            ),
        ),
        draws={"k": BETWEEN},
        edges=(("",),),
    ),
    ProgramTemplate(
        "shift_letters",
        3,
        "Return $a with every letter from a to z moved $k places on in the alphabet, where a "
        "follows z. Other characters stay as they are.",
        """
        result = ""
        for char in $a:
            if "a" <= char <= "z":
                char = chr((ord(char) - 97 + $k) % 26 + 97)
            result += char
        return result
        """,
        takes=(TEXT,),
        called=("shift", "encode", "rotate_letters", "cipher"),
        args=lambda rng, v: (words(rng, rng.choice(" -A"), most=3),),
        draws={"k": range(1, 26)},
        edges=(("xyz",), ("",)),
    ),
    ProgramTemplate(
        "runs",
        3,
        "Return $a with every run of equal characters written as the character, '$k' and the "
        "length of the run.",
        """
        result, start = "", 0
        for i in range(len($a)):
            if i + 1 == len($a) or $a[i + 1] != $a[i]:
                result += $a[i] + "$k" + str(i + 1 - start)
                start = i + 1
        return result
        """,
        takes=(TEXT,),
        called=("runs", "squeeze", "run_lengths", "pack"),
        args=lambda rng, v: (letters(rng, "ab", 1, 8),),
        draws={"k": (*BETWEEN, "x", "*", "=")},
        edges=(("",), ("a" * 12,)),
    ),
    ProgramTemplate(
        "most_common",
        3,
        "Return the character other than '$k' that occurs most often in $a; of several the one "
        "that comes first in the alphabet; '' if there is none.",
        """
        found = sorted(set($a) - {"$k"})
        return max(found, key=$a.count) if found else ""
        """,
        takes=(TEXT,),
        called=("most_common", "favourite", "frequent", "mode_of"),
        args=lambda rng, v: (letters(rng, "abcdef" + v["k"], 2, 9),),
        draws={"k": tuple("abcdefghijk")},
        edges=(("",), ("cbbc",)),
    ),
    ProgramTemplate(
        "reverse_some",
        3,
        "Return $a with the order of those characters reversed that are in '$k'; all others stay "
        "where they are.",
        """
        moved = [char for char in $a if char in "$k"]
        return "".join(moved.pop() if char in "$k" else char for char in $a)
        """,
        takes=(TEXT,),
        called=("swap_some", "reverse_some", "turn", "flip_letters"),
        args=_phrase,
        draws={"k": SOME},
        edges=(("",),),
    ),
)
