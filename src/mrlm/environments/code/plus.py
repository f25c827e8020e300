"""The additional tests of MBPP+: one program per problem with many inputs, without numpy."""

from __future__ import annotations

import re
from typing import Any

from mrlm.core.errors import DataError

IMPORT = "import numpy as np\n"
KNOWN = ("allclose", "ndarray", "float64", "float32")
REPLACEMENT = '''class np:
    """The parts of numpy that compare results; the sandbox has no numpy."""

    class ndarray:
        dtype = None

    float64 = float32 = float

    @staticmethod
    def allclose(out, exp, rtol, atol):
        if isinstance(exp, (list, tuple)):
            pairs = zip(out, exp)
            return len(out) == len(exp) and all(np.allclose(a, b, rtol, atol) for a, b in pairs)
        return out == exp or abs(out - exp) <= atol + rtol * abs(exp)


'''


def plus_test(value: Any, where: str) -> str:
    """The program in the column `test` of a row of MBPP+ (arXiv 2305.01210), as one test.

    Args:
        value: the column: a program that calls the function with many inputs and compares the
            results by `assertion`, with numpy.
        where: location of the row and column, for errors.

    Returns:
        The program, in which the parts of numpy that it uses are replaced.

    Raises:
        DataError: it is no text, has no `assertion`, or needs another part of numpy.
    """
    if not isinstance(value, str) or "\n    assertion(" not in value:
        raise DataError(f"{where}: expected a program of MBPP+ that calls assertion(...)")
    unknown = sorted({*re.findall(r"\bnp\.(\w+)", value)} - {*KNOWN})
    if unknown:
        raise DataError(f"{where}: it needs numpy.{unknown[0]}, which the sandbox does not have")
    return value.replace(IMPORT, REPLACEMENT, 1)
