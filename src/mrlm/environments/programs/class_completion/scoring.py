"""Score of a class by several writers, at most 6, and feedback for them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mrlm.environments.programs.class_completion.merging import is_valid, merged, overlaps, read
from mrlm.environments.programs.class_completion.problems import ClassProblem
from mrlm.environments.programs.writers import Mode, ProgramScore, grade_of
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

    def share(self, index: int) -> float:
        """The reward of one writer: for the tests, and for its own methods."""
        return self.paid["tests"] + self.own[index] if self.parses else 0.0

    def feedback(self, mode: Mode, problem: ClassProblem) -> str:
        number = len(self.judged)
        count = f"{self.passed} of {number} tests pass." if number else "The class was not tested."
        if mode == "count":
            return count
        if mode == "graded":
            return "\n".join([*_structure(self), grade_of(self.passed, number)])
        if mode == "tests":
            return "\n".join([*_structure(self), *_visible(problem, self), count])
        return ""


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
    score = CompletionScore(own=[0.0] * len(division))
    parts = [part for part in (read(code, problem) for code in codes) if part is not None]
    text = merged(problem, parts, division) if len(parts) == len(codes) else None
    if text is None:
        return score
    score.parses = True
    total = len(problem.methods)
    foreign = overlaps(parts, division)
    method_of = {method.name: method for method in problem.methods}
    for index, (part, names) in enumerate(zip(parts, division, strict=True)):
        missing = [n for n in names if not is_valid(method_of[n], part.methods.get(n))]
        score.missing += missing
        validity = VALID * (len(names) - len(missing)) / len(names)
        score.own[index] = validity - len(foreign[index]) / total
    score.foreign = sorted(set().union(*foreign))
    score.paid["valid"] = VALID * (total - len(score.missing)) / total
    score.paid["overlap"] = 0.0 - len(score.foreign) / total
    if len(score.missing) < total:
        score.judged = await judge(text)
        score.paid["tests"] = TESTS * score.passed / len(score.judged)
    return score


def _structure(score: CompletionScore) -> list[str]:
    if not score.parses:
        return ["The class is not valid Python."]
    lines = []
    if score.missing:
        names = ", ".join(score.missing)
        lines.append(f"Not there, empty, or with other parameters than asked for: {names}.")
    if score.foreign:
        lines.append(f"Written by somebody who should not: {', '.join(score.foreign)}.")
    return lines


def _visible(problem: ClassProblem, score: CompletionScore) -> list[str]:
    lines = []
    verdicts = {tuple(case): verdict for case, verdict in score.judged}
    for case, sample in zip(problem.cases, problem.samples, strict=False):
        verdict = verdicts.get(tuple(case))
        if verdict is not None and not verdict.passed:
            name = verdict.error if verdict.error.isidentifier() else ""
            why = f"{verdict.kind} {name}".strip() if name != "AssertionError" else verdict.kind
            lines.append(f"This does not hold ({why}):\n{sample}")
    return lines
