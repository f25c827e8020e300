"""Score of an answer, and feedback on it. Hidden tests contribute only a number: neither they nor
any output of a solution while it runs them is shown."""

import re
from collections.abc import Sequence

from mrlm.core.board import Html, stacked, table
from mrlm.environments.programs.code.problems import CodeProblem, shown_call, shown_test
from mrlm.sandbox.grading import GradingVerdict

ALL_PASSED, RAISED = 1.0, -0.5
UNUSABLE = {"value": RAISED, "passed": 0.0, "all_passed": 0.0, "raised": 1.0}
"""Score of an answer that is never run."""
FAILURES = ("error", "timeout", "refused")
"""Verdicts that cost `RAISED`; a wrong result only fails its test."""
MAX_SHOWN = 500
"""Maximum number of characters of a test or a result in the feedback."""
_CLASS = re.compile(r"[A-Za-z_]\w{0,59}")
HIDDEN = {
    "wrong": "gives a wrong result",
    "error": "raises an error",
    "timeout": "takes too long",
    "refused": "cannot be run",
}


def worth(verdicts: Sequence[GradingVerdict]) -> dict[str, float]:
    """Score of an answer by name: `value` is the fraction of tests passed, plus 1 if all pass,
    minus 0.5 if any raised an error or timed out; from -0.5 to 2."""
    passed = sum(verdict.passed for verdict in verdicts) / len(verdicts)
    perfect = all(verdict.passed for verdict in verdicts)
    raised = any(verdict.kind in FAILURES for verdict in verdicts)
    return {
        "value": passed + ALL_PASSED * perfect + RAISED * raised,
        "passed": passed,
        "all_passed": float(perfect),
        "raised": float(raised),
    }


def feedback(problem: CodeProblem, verdicts: Sequence[GradingVerdict], offset: int = 0) -> str:
    """Feedback for a wrong answer.

    Args:
        problem: the problem; only its visible tests are quoted.
        verdicts: one per test, in their order.
        offset: number of lines of the program before the answer.
    """
    visible_tests = list(zip(problem.tests, verdicts, strict=False))[: problem.visible]
    failed = next(((test, verdict) for test, verdict in visible_tests if not verdict.passed), None)
    if failed is not None:
        test, verdict = failed
        shown_failure = _cut(shown_test(problem, test))
        return f"This test does not pass:\n{shown_failure}\n{_happened(verdict, offset)}"
    hidden = next(v for v in verdicts[problem.visible :] if not v.passed)
    tests = "All the tests shown pass, but" if visible_tests else "The tests are hidden, and"
    return f"{tests} the program {HIDDEN[hidden.kind]} in a test that is not shown."


def test_board(problem: CodeProblem, verdicts: Sequence[GradingVerdict]) -> Html:
    """The visible tests with what is expected and what an answer gives, and the number of hidden
    tests that pass."""
    rows = []
    for index, test in enumerate(problem.tests[: problem.visible]):
        verdict = verdicts[index] if index < len(verdicts) else None
        got = result = ""
        if verdict is not None:
            got = verdict.got or (verdict.error if _CLASS.fullmatch(verdict.error) else "")
            result = "passes" if verdict.passed else f"fails ({verdict.kind})"
        kind = "" if verdict is None else "good" if verdict.passed else "bad"
        calls = problem.kind == "calls"
        text = shown_call(problem.entry, test[0]) if calls else shown_test(problem, test)
        expected = repr(test[1]) if calls else ""
        rows.append((_cut(text), _cut(expected), _cut(got), (result, kind)))
    hidden = verdicts[problem.visible :]
    passed = sum(verdict.passed for verdict in hidden)
    count = f"hidden tests: {passed} of {len(hidden)} pass" if hidden else ""
    drawn = table(rows, ("test", "expected", "got", "")) if rows else ""
    return stacked(drawn, count if verdicts else "no program was run yet")


def _happened(verdict: GradingVerdict, offset: int) -> str:
    if verdict.kind == "wrong":
        return f"It gives {_cut(verdict.got)}." if verdict.got else "It gives another result."
    if verdict.kind == "timeout":
        return "It takes too long."
    name = verdict.error if _CLASS.fullmatch(verdict.error) else "an error"
    line = verdict.line - offset if verdict.line is not None else 0
    where = f" in line {line}" if line > 0 else ""
    what = "cannot be run:" if verdict.kind == "refused" else "raises"
    return f"It {what} {name}{where}."


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + " ..."
