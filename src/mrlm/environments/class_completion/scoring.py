"""Score of a class by several writers, at most 6, and feedback for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mrlm.environments.class_completion.merging import is_valid, merged, overlaps, read
from mrlm.environments.class_completion.problems import ClassProblem
from mrlm.environments.shared.program import Mode, ProgramScore, grade_of
from mrlm.sandbox.grading import GradingVerdict

VALID, TESTS = 2.0, 4.0
COMPONENTS = ("valid", "tests", "overlap")
Judged = list[tuple[list[str], GradingVerdict]]


@dataclass(slots=True)
class CompletionScore(ProgramScore):
    """The score of a class.

    Args:
        own: reward of every writer for its own part (`valid` and `overlap`).
        missing: methods that are missing, or do not match the requirements.
        foreign: methods written by a writer to whom they are not assigned.
        judged: the cases and their verdicts, if they were run.
        parses: whether all code is valid Python.
    """

    paid: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 0.0))
    own: list[float] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    judged: Judged = field(default_factory=list)
    parses: bool = False

    @property
    def passed(self) -> int:
        """Number of cases that pass."""
        return sum(verdict.passed for _, verdict in self.judged)

    @property
    def solved(self) -> bool:
        """Whether the score is the maximum."""
        whole = bool(self.judged) and self.passed == len(self.judged)
        return whole and not self.missing and not self.foreign

    def share(self, place: int) -> float:
        """The reward of one writer: for the tests, and for its own methods."""
        return self.paid["tests"] + self.own[place] if self.parses else 0.0


async def worth(
    problem: ClassProblem,
    division: Sequence[Sequence[str]],
    codes: Sequence[str],
    judge: Callable[[str], Awaitable[Judged]],
) -> CompletionScore:
    """Score of the writers' codes: 2 x the fraction of valid methods + 4 x the fraction of passed
    tests - the fraction of methods written by a writer to whom they are not assigned; 0 if the
    whole is not valid Python.

    Args:
        judge: runs a class, and returns a verdict for each usable test case.
    """
    found = CompletionScore(own=[0.0] * len(division))
    parts = [part for part in (read(code, problem) for code in codes) if part is not None]
    text = merged(problem, parts, division) if len(parts) == len(codes) else None
    if text is None:
        return found
    found.parses = True
    total = len(problem.methods)
    foreign = overlaps(parts, division)
    asked = {method.name: method for method in problem.methods}
    for place, (part, names) in enumerate(zip(parts, division, strict=True)):
        missing = [n for n in names if not is_valid(asked[n], part.methods.get(n))]
        found.missing += missing
        own = VALID * (len(names) - len(missing)) / len(names)
        found.own[place] = own - len(foreign[place]) / total
    found.foreign = sorted(set().union(*foreign))
    found.paid["valid"] = VALID * (total - len(found.missing)) / total
    found.paid["overlap"] = 0.0 - len(found.foreign) / total
    if len(found.missing) < total:
        found.judged = await judge(text)
        found.paid["tests"] = TESTS * found.passed / len(found.judged)
    return found


def feedback_text(mode: Mode, problem: ClassProblem, found: CompletionScore) -> str:
    """Feedback of a mode on an unfinished class; empty for `expert`. Hidden tests contribute only a
    number."""
    number = len(found.judged)
    count = f"{found.passed} of {number} tests pass." if number else "The class was not tested."
    if mode == "count":
        return count
    if mode == "graded":
        return "\n".join([*_structure(found), grade_of(found.passed, number)])
    if mode == "tests":
        return "\n".join([*_structure(found), *_visible(problem, found), count])
    return ""


def _structure(found: CompletionScore) -> list[str]:
    if not found.parses:
        return ["The class is not valid Python."]
    lines = []
    if found.missing:
        names = ", ".join(found.missing)
        lines.append(f"Not there, empty, or with other parameters than asked for: {names}.")
    if found.foreign:
        lines.append(f"Written by somebody who should not: {', '.join(found.foreign)}.")
    return lines


def _visible(problem: ClassProblem, found: CompletionScore) -> list[str]:
    lines = []
    verdicts = {tuple(case): verdict for case, verdict in found.judged}
    for case, sample in zip(problem.cases, problem.samples, strict=False):
        verdict = verdicts.get(tuple(case))
        if verdict is not None and not verdict.passed:
            name = verdict.error if verdict.error.isidentifier() else ""
            why = f"{verdict.kind} {name}".strip() if name != "AssertionError" else verdict.kind
            lines.append(f"This does not hold ({why}):\n{sample}")
    return lines
