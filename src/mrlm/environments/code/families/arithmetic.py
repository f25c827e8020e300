"""Problems about whole numbers."""

from __future__ import annotations

import random
from typing import Any

from mrlm.environments.code.templates import NUMBER, ProgramTemplate, Values


def _one(rng: random.Random, values: Values) -> Any:
    return (rng.randint(-50, 50),)


def _two(rng: random.Random, values: Values) -> Any:
    return (rng.randint(-30, 60), rng.randint(-30, 60))


def _natural(rng: random.Random, values: Values) -> Any:
    return (rng.randint(1, 400),)


TEMPLATES = (
    ProgramTemplate(
        "larger",
        1,
        "Return the larger of $a and $b.",
        "return max($a, $b)",
        takes=(NUMBER, NUMBER),
        called=("larger", "bigger", "higher", "top", "most"),
        args=_two,
        edges=((4, 4),),
    ),
    ProgramTemplate(
        "smaller",
        1,
        "Return the smaller of $a and $b.",
        "return min($a, $b)",
        takes=(NUMBER, NUMBER),
        called=("smaller", "lesser", "lower", "bottom", "least"),
        args=_two,
        edges=((4, 4),),
    ),
    ProgramTemplate(
        "sum_of_two",
        1,
        "Return the sum of $a and $b.",
        "return $a + $b",
        takes=(NUMBER, NUMBER),
        called=("add", "plus", "both", "sum_of", "together"),
        args=_two,
    ),
    ProgramTemplate(
        "difference",
        1,
        "Return $a minus $b.",
        "return $a - $b",
        takes=(NUMBER, NUMBER),
        called=("minus", "subtract", "less", "left", "remove"),
        args=_two,
    ),
    ProgramTemplate(
        "plus_number",
        1,
        "Return $a plus $k.",
        "return $a + $k",
        takes=(NUMBER,),
        called=("more", "up", "increase", "add_to"),
        args=_one,
        draws={"k": range(2, 60)},
    ),
    ProgramTemplate(
        "times_number",
        1,
        "Return $a times $k.",
        "return $a * $k",
        takes=(NUMBER,),
        called=("times", "scale", "multiply", "grow"),
        args=_one,
        draws={"k": range(2, 40)},
    ),
    ProgramTemplate(
        "distance",
        1,
        "Return how far $a and $b are apart, as a number that is not negative.",
        "return abs($a - $b)",
        takes=(NUMBER, NUMBER),
        called=("distance", "gap", "apart", "between"),
        args=_two,
        edges=((3, 3),),
    ),
    ProgramTemplate(
        "multiple_of",
        1,
        "Return whether $a is a multiple of $k.",
        "return $a % $k == 0",
        takes=(NUMBER,),
        called=("divides", "multiple", "even_share", "fits"),
        args=lambda rng, v: (v["k"] * rng.randint(-9, 9) + rng.choice((0, 0, 1, v["k"] - 1)),),
        draws={"k": range(2, 30)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "within",
        2,
        "Return $a, but $low if it is below $low and $high if it is above $high.",
        "return max($low, min($a, $high))",
        takes=(NUMBER,),
        called=("within", "clamp", "limit", "bounded"),
        args=lambda rng, v: (rng.randint(v["low"] - 15, v["high"] + 15),),
        draws={"low": range(-10, 5), "high": range(8, 25)},
    ),
    ProgramTemplate(
        "digit_sum",
        2,
        "Return the sum of the digits of the whole number $a, which may be negative, times $k.",
        "return sum(int(digit) for digit in str(abs($a))) * $k",
        takes=(NUMBER,),
        called=("digit_sum", "digits", "cross_sum", "checksum"),
        args=lambda rng, v: (rng.randint(-999, 99999),),
        draws={"k": range(1, 15)},
        edges=((0,), (-47,)),
    ),
    ProgramTemplate(
        "common_divisor",
        2,
        "Return the greatest common divisor of $a, which is above 0, and $k.",
        """
        first, second = $a, $k
        while second:
            first, second = second, first % second
        return first
        """,
        takes=(NUMBER,),
        called=("common", "divisor", "gcd_with", "shared"),
        args=_natural,
        draws={"k": (12, 18, 24, 30, 36, 48, 60, 72, 84, 90, 96, 120)},
        edges=((1,),),
    ),
    ProgramTemplate(
        "step_below",
        2,
        "Return the largest multiple of $k that is not above $a, which may be negative.",
        "return $a // $k * $k",
        takes=(NUMBER,),
        called=("step_below", "round_down", "floor_to", "snap"),
        args=_one,
        draws={"k": range(3, 25)},
        edges=((0,), (-1,)),
    ),
    ProgramTemplate(
        "polynomial",
        2,
        "Return $k times the square of $a, plus $j times $a, plus $i.",
        "return $k * $a**2 + $j * $a + $i",
        takes=(NUMBER,),
        called=("curve", "value_at", "evaluate", "quadratic"),
        args=_one,
        draws={"k": range(2, 9), "j": range(2, 9), "i": range(1, 20)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "count_primes",
        3,
        "Return how many prime numbers there are from $k to $a, both included.",
        """
        def prime(number):
            return number > 1 and all(number % i for i in range(2, int(number**0.5) + 1))

        return sum(prime(number) for number in range($k, $a + 1))
        """,
        takes=(NUMBER,),
        called=("primes", "count_primes", "prime_count", "num_primes"),
        args=lambda rng, v: (rng.randint(v["k"], v["k"] + 120),),
        draws={"k": range(0, 40)},
        edges=((-3,), (2,)),
    ),
    ProgramTemplate(
        "in_base",
        3,
        "Return the whole number $a, which is not negative, written in base $k, as text.",
        """
        result = ""
        rest = $a
        while rest or not result:
            result = str(rest % $k) + result
            rest //= $k
        return result
        """,
        takes=(NUMBER,),
        called=("in_base", "to_base", "digits_in", "written"),
        args=_natural,
        draws={"k": range(2, 10)},
        edges=((0,),),
    ),
    ProgramTemplate(
        "power_remainder",
        3,
        "Return the remainder of $a to the power of $b, divided by $k; $b is not negative and may "
        "be large.",
        "return pow($a, $b, $k)",
        takes=(NUMBER, NUMBER),
        called=("power_rest", "mod_power", "residue", "power_mod"),
        args=lambda rng, v: (rng.randint(0, 99), rng.choice((rng.randint(0, 20), 10**9 + 7))),
        draws={"k": range(3, 60)},
        edges=((5, 0),),
    ),
    ProgramTemplate(
        "halve_or_triple",
        3,
        "Start with $a, which is above 0. As long as it is not 1, halve it if it is even, else "
        "take three times it plus 1. Return the number of steps plus $k.",
        """
        steps, at = 0, $a
        while at != 1:
            at = at // 2 if at % 2 == 0 else 3 * at + 1
            steps += 1
        return steps + $k
        """,
        takes=(NUMBER,),
        called=("collatz", "steps_to_one", "journey", "how_long"),
        args=_natural,
        draws={"k": range(0, 30)},
        edges=((1,),),
    ),
)
