"""Feedback for writers between turns. Hidden tests contribute only numbers."""

from __future__ import annotations

from collections.abc import Sequence

from mrlm.environments.code.problems import CodeProblem
from mrlm.environments.code.scoring import feedback as first_failure
from mrlm.environments.code_collaboration.scoring import CollaborationScore
from mrlm.environments.shared.program import Mode, grade_of


def feedback_text(
    mode: Mode, problem: CodeProblem, names: Sequence[str], found: CollaborationScore
) -> str:
    """Feedback of a mode on a program that does not pass all tests; empty for `expert`."""
    passed, number = sum(verdict.passed for verdict in found.verdicts), len(found.verdicts)
    lines: list[str] = []
    if mode == "count":
        lines = [
            f"{passed} of {number} tests pass." if number else "The program could not be tested."
        ]
    elif mode in ("graded", "tests"):
        lines = _structure(problem, names, found)
    if mode == "graded" and number:
        lines.append(grade_of(passed, number))
    if mode == "tests":
        lines += _tests(problem, found)
    return "\n".join(lines)


def _structure(problem: CodeProblem, names: Sequence[str], found: CollaborationScore) -> list[str]:
    """Structural defects, as far as the structure was analysed."""
    lines = [
        f"There is no function {name} that returns a value."
        for name, each in zip(names, found.of_aux, strict=True)
        if not each["aux"]
    ]
    if not found.paid["main"]:
        return [*lines, f"There is no function {problem.entry} that returns a value."]
    if not found.paid["parses"]:
        return [*lines, "The program is not valid Python."]
    if found.paid["tests"]:
        for name, each in zip(names, found.of_aux, strict=True):
            if each["aux"] and not each["called"]:
                lines.append(f"{problem.entry} does not need {name}.")
            if each["ignored"]:
                lines.append(f"What {name} returns is not used.")
    return lines


def _tests(problem: CodeProblem, found: CollaborationScore) -> list[str]:
    if not found.verdicts:
        return []
    lines = []
    if problem.kind != "check":
        for number, verdict in enumerate(found.verdicts[: problem.visible], start=1):
            word = "passes" if verdict.passed else f"fails ({verdict.kind})"
            lines.append(f"Test {number} {word}.")
    return [*lines, first_failure(problem, found.verdicts, found.offset)]
