"""Programming problems from rows of data sets: HumanEval, MBPP, MBPP+, and APPS (standard input or
a function). A row in none of these forms raises an error with its location."""

import ast
import builtins
import doctest
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mrlm.core.errors import DataError
from mrlm.data.tasks import Row, question_of, row_messages
from mrlm.environments.programs.code.problems import PROBLEM, CodeProblem

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

FORMS = (
    "HumanEval (prompt, entry_point, test), MBPP (text or prompt, test_list) or APPS (question, "
    "input_output)"
)


IMPORTS = """\
import collections, fractions, heapq, itertools, math, random, sys, time
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from heapq import *
from itertools import accumulate, combinations, permutations, product
from math import ceil, cos, exp, fabs, floor, gcd, log, log2, sin, sqrt, tan
from typing import List, Tuple
"""
"""Imports before a solution of APPS with a function or a class: its harness has them, and its
solutions rely on them."""


def converted(row: Row, where: str, num_visible: int, max_tests: int) -> Row:
    """A row with its problem in the column `code_problem` and its question in `prompt`.

    Args:
        num_visible: number of tests shown in the question, if the tests are separate.
        max_tests: number of tests used, the first ones.

    Raises:
        DataError: the row is in none of the known forms.
    """
    if row.get("entry_point") is not None and row.get("test") is not None:
        problem = _human_eval(row, where)
    elif row.get("test_list") is not None:
        problem = _mbpp(row, where, num_visible, max_tests)
    elif row.get("input_output") is not None:
        problem = _apps(row, where, num_visible, max_tests)
    else:
        raise DataError(
            f"{where}: unknown form; expected {FORMS}; the row has {', '.join(row)} "
            "(rename with columns)"
        )
    return row | {"prompt": problem.text, PROBLEM: problem.record()}


def _human_eval(row: Row, where: str) -> CodeProblem:
    stub, entry, test = (_text(row, name, where) for name in ("prompt", "entry_point", "test"))
    _identifier(entry, f"{where}, column 'entry_point'")
    if not re.search(r"^def check\(", test, re.MULTILINE):
        raise DataError(f"{where}, column 'test': function check(candidate) is not defined")
    rest = row.get("canonical_solution")
    return CodeProblem(
        text=f"Complete the Python function `{entry}`.\n\n{stub}",
        kind="check",
        tests=[test],
        entry=entry,
        examples=_examples(stub, entry),
        stub=stub,
        solution=stub.rstrip("\n") + "\n" + rest if isinstance(rest, str) else None,
    )


def _examples(stub: str, entry: str) -> list[str]:
    """Examples in a docstring that call the function and have a literal result, as asserts."""
    asserts: list[str] = []
    try:
        docstrings = [
            ast.get_docstring(node) or ""
            for node in ast.parse(stub).body
            if isinstance(node, ast.FunctionDef) and node.name == entry
        ]
        examples = doctest.DocTestParser().get_examples("\n".join(docstrings))
    except (SyntaxError, ValueError):  # not a complete function, or not in doctest format
        return asserts
    for example in examples:
        call, value = example.source.strip(), example.want.strip()
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            ast.literal_eval(value)
            ast.parse(call, mode="eval")
            asserts += [f"assert {call} == {value}"] if call.startswith(f"{entry}(") else []
    return asserts


def _mbpp(row: Row, where: str, num_visible: int, max_tests: int) -> CodeProblem:
    tests = [str(test).strip() for test in _list(row["test_list"], f"{where}, column 'test_list'")]
    tests = [test for test in tests if test][:max_tests]
    if not tests:
        raise DataError(f"{where}, column 'test_list': it is empty; at least one test is needed")
    entry = _tested_name(tests, row.get("code"), f"{where}, column 'test_list'")
    if row.get("test") is not None:
        tests.append(plus_test(row["test"], f"{where}, column 'test'"))
    setup = [str(line) for line in _list(row.get("test_imports") or [], where)]
    setup.append(str(row.get("test_setup_code") or ""))
    before = "\n".join(line for line in setup if line.strip())
    text = row.get("text") or question_of(row)
    if text is None:
        raise DataError(f"{where}: needs a column text or prompt; it has {', '.join(row)}")
    solution = row.get("code")
    return CodeProblem(
        text=f"{_words(text, where)}\nCall the function `{entry}`.",
        kind="asserts",
        tests=[f"{before}\n{test}".strip() for test in tests],
        entry=entry,
        visible=min(num_visible, len(tests) - 1),
        solution=solution if isinstance(solution, str) else None,
    )


def _apps(row: Row, where: str, num_visible: int, max_tests: int) -> CodeProblem:
    column = f"{where}, column 'input_output'"
    table = _parsed(row["input_output"], column)
    if not isinstance(table, Mapping):
        raise DataError(f"{column}: expected an object with 'inputs' and 'outputs'")
    inputs, outputs = (
        _list(table.get(name), f"{column}, {name}") for name in ("inputs", "outputs")
    )
    if not inputs or len(inputs) != len(outputs):
        raise DataError(f"{column}: {len(inputs)} inputs for {len(outputs)} outputs")
    text = question_of(row)
    if text is None:
        raise DataError(f"{where}: needs a column question; it has {', '.join(row)}")
    words, entry = _words(text, where), table.get("fn_name")
    if entry is None:
        tests: list[Any] = [[_lines(i), _lines(o)] for i, o in zip(inputs, outputs, strict=True)]
        words += "\nRead from standard input and print the answer."
    else:
        _identifier(entry, f"{column}, fn_name")
        if not all(isinstance(args, list) for args in inputs):
            raise DataError(f"{column}: with fn_name every input must be a list of arguments")
        tests = [list(test) for test in zip(inputs, outputs, strict=True)]
        if all(isinstance(output, list) and len(output) == 1 for output in outputs):
            # APPS puts results into lists, unless they are lists: both are right there
            tests = [[args, output[0], output] for args, output in tests]
        words += f"\nWrite the function `{entry}`."
        if str(row.get("starter_code") or "").strip():
            words += f" Begin with:\n{str(row['starter_code']).rstrip()}"
    tests = tests[:max_tests]
    return CodeProblem(
        text=words,
        kind="calls" if entry else "programs",
        tests=tests,
        entry=entry or "",
        visible=min(num_visible, len(tests) - 1),
        stub=IMPORTS if entry else "",
        solution=_first_solution(row),
    )


# -- columns ---------------------------------------------------------------------------------------


def _text(row: Row, name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}, column {name!r}: expected text, not {type(value).__name__}")
    return value


def _words(value: Any, where: str) -> str:
    return "\n".join(message.content.strip() for message in row_messages(value, where))


def _list(value: Any, where: str) -> list[Any]:
    """A list, which a CSV file stores as JSON."""
    value = _parsed(value, where)
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise DataError(f"{where}: expected a list, not {type(value).__name__}")
    return list(value)


def _parsed(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error


def _lines(value: Any) -> str:
    """Standard input or output, given as text or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _identifier(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise DataError(f"{where}: expected a function name, not {name!r}")


def _tested_name(tests: list[str], code: Any, where: str) -> str:
    """The function that the first test calls: a built-in one only if the solution replaces it."""
    try:
        tree = ast.parse(tests[0])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{where}: {tests[0][:80]!r} is not Python ({error})") from error
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [name.id for name in called if isinstance(name, ast.Name)]
    for name in sorted(names, key=lambda name: hasattr(builtins, name)):
        replaced = rf"^(?:def|class) {name}\b"
        if not hasattr(builtins, name) or re.search(replaced, str(code), re.MULTILINE):
            return name
    raise DataError(f"{where}: {tests[0][:80]!r} does not call a function of the solution")


def _first_solution(row: Row) -> str | None:
    """The first solution of a row, which APPS stores as JSON; `None` if the column cannot be read,
    as it only serves for demonstrations."""
    value = row.get("solutions")
    with suppress(DataError):
        value = _parsed(value, "solutions")
    solution = value[0] if isinstance(value, list) and value else None
    return solution if isinstance(solution, str) else None


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
