"""Score of a program by several writers, at most 4.0, and feedback for them, in which hidden tests
contribute only numbers. Whether a function is called and its result
is used is decided by the syntax tree and by the test results when the function is replaced, since
code that runs together with the program could forge any other evidence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mrlm.environments.code.answers import refusal
from mrlm.environments.code.problems import CodeProblem
from mrlm.environments.code.scoring import feedback as first_failure
from mrlm.environments.code_collaboration.structure import binds, function, is_thin, parsed, reached
from mrlm.environments.shared.program import Mode, ProgramScore, grade_of
from mrlm.sandbox.grading import GradingVerdict

AUX, MAIN, PARSES, TESTS = 0.4, 0.6, 0.5, 1.0
CALLED, WHOLE, IGNORED = 0.5, 1.0, -0.5
COMPONENTS = ("aux", "main", "parses", "tests", "called", "whole", "ignored")
STAND_INS = ("return object()", "return None")
"""Replacement bodies of a function: if neither changes the test results, its result is unused."""
BROKEN = "raise RuntimeError"
Tester = Callable[[str], Awaitable[list[GradingVerdict]]]


@dataclass(slots=True)
class CollaborationScore(ProgramScore):
    """The score of a program by several writers.

    Args:
        of_aux: contribution of every function but the last to `aux`, `called` and `ignored`.
        verdicts: one per test, if it was run.
        offset: number of lines of the program before the last writer's code.
    """

    paid: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 0.0))
    of_aux: list[dict[str, float]] = field(default_factory=list)
    verdicts: list[GradingVerdict] = field(default_factory=list)
    offset: int = 0

    @property
    def solved(self) -> bool:
        """Whether all tests pass."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    def share(self, place: int | None) -> float:
        """The reward of one writer: the last one if `place` is `None`, else an earlier one, which
        gets the part of its own function instead of all functions."""
        if place is None:
            return self.value - self.paid["aux"]
        common = self.paid["parses"] + self.paid["tests"]
        return common + len(self.of_aux) * sum(self.of_aux[place].values())


async def worth(
    problem: CodeProblem, names: Sequence[str], codes: Sequence[str], test: Tester
) -> CollaborationScore:
    """Score of the writers' codes together.

    Args:
        names: names of the functions of all writers but the last.
        test: runs a program, and returns a verdict for each test of the problem.
    """
    found = CollaborationScore(
        of_aux=[dict.fromkeys(("aux", "called", "ignored"), 0.0) for _ in names]
    )
    main, before = problem.program(codes[-1]) if not refusal(codes[-1]) else ("", 0)
    texts = [*("" if refusal(code) else code for code in codes[:-1]), main]
    trees = [parsed(text) for text in texts]
    there = [function(tree, name) is not None for tree, name in zip(trees, names, strict=False)]
    for place in (place for place, exists in enumerate(there) if exists):
        found.of_aux[place]["aux"] = AUX / len(names)
    found.paid["aux"] = AUX * sum(there) / len(names)
    entry = function(trees[-1], problem.entry)
    if entry is None:
        return found
    found.paid["main"] = MAIN
    whole = [tree for tree in trees if tree is not None]
    if len(whole) < len(trees):
        return found
    found.paid["parses"] = PARSES
    found.verdicts = await test("\n\n".join(texts))
    found.offset = before + sum(text.count("\n") + 2 for text in texts[:-1])
    passed = sum(verdict.passed for verdict in found.verdicts)
    found.paid["tests"] = TESTS * passed / len(found.verdicts)
    if not passed:
        return found
    callable_names = reached(whole, problem.entry)
    for place, name in enumerate(names):
        foreign = any(binds(tree, name) for n, tree in enumerate(whole) if n != place)
        if there[place] and name in callable_names and not foreign:
            await _use(found, place, names, texts, test)
    found.paid["called"] = sum(each["called"] for each in found.of_aux)
    found.paid["ignored"] = sum(each["ignored"] for each in found.of_aux)
    if found.paid["called"] and not is_thin(entry, names):
        found.paid["whole"] = WHOLE * (
            not await _replaced(found, problem.entry, names, texts, test)
        )
    return found


async def _use(
    found: CollaborationScore, place: int, names: Sequence[str], texts: Sequence[str], test: Tester
) -> None:
    """Determine whether a function is called during the tests, and whether its result is used."""

    async def matters(body: str) -> bool:
        other = list(texts)
        other[place] += f"\n\n\ndef {names[place]}(*args, **kwargs):\n    {body}\n"
        return _fewer(found.verdicts, await test("\n\n".join(other)))

    used = False
    for body in STAND_INS:
        used = used or await matters(body)
    if used or await matters(BROKEN):
        found.of_aux[place]["called"] = CALLED / len(names)
        found.of_aux[place]["ignored"] = 0.0 if used else IGNORED / len(names)


async def _replaced(
    found: CollaborationScore, entry: str, names: Sequence[str], texts: Sequence[str], test: Tester
) -> bool:
    """Whether one of the other functions alone passes all tests that the whole program passes."""
    for place, name in enumerate(names):
        if found.of_aux[place]["called"]:
            alone = "\n\n".join([*texts, f"{entry} = {name}\n"])
            if not _fewer(found.verdicts, await test(alone)):
                return True
    return False


def _fewer(before: Sequence[GradingVerdict], after: Sequence[GradingVerdict]) -> bool:
    """Whether a test that passed before fails now."""
    return any(one.passed and not two.passed for one, two in zip(before, after, strict=True))


def feedback_text(
    mode: Mode, problem: CodeProblem, names: Sequence[str], found: CollaborationScore
) -> str:
    """Feedback of a mode on a program that does not pass all tests; empty for `expert`."""
    passed, number = sum(verdict.passed for verdict in found.verdicts), len(found.verdicts)
    lines: list[str] = []
    if mode == "count":
        count = f"{passed} of {number} tests pass."
        lines = [count if number else "The program could not be tested."]
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
