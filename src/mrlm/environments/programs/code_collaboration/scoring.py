"""Score of a program by several writers, at most 4.0, and feedback for them, in which hidden tests
contribute only numbers. Whether a function is called and its result
is used is decided by the syntax tree and by the test results when the function is replaced, since
code that runs together with the program could forge any other evidence."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mrlm.environments.programs.code.answers import refusal
from mrlm.environments.programs.code.problems import CodeProblem
from mrlm.environments.programs.code.scoring import feedback as first_failure
from mrlm.environments.programs.code_collaboration.structure import (
    binds,
    function,
    is_thin,
    parsed,
    reached,
)
from mrlm.environments.programs.writers import Mode, ProgramScore, grade_of
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
        of_aux: name of every function but the last -> its part of `aux`, `called` and `ignored`.
        verdicts: one per test, if it was run.
        offset: number of lines of the program before the last writer's code.
    """

    paid: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 0.0))
    of_aux: dict[str, dict[str, float]] = field(default_factory=dict)
    verdicts: list[GradingVerdict] = field(default_factory=list)
    offset: int = 0

    @property
    def solved(self) -> bool:
        """Whether all tests pass."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    def share(self, index: int) -> float:
        """The reward of one writer. An earlier one than the last gets the part of its own function
        instead of all functions."""
        if index == len(self.of_aux):
            return self.value - self.paid["aux"]
        common = self.paid["parses"] + self.paid["tests"]
        return common + len(self.of_aux) * sum(list(self.of_aux.values())[index].values())

    def feedback(self, mode: Mode, problem: CodeProblem) -> str:
        passed, number = sum(verdict.passed for verdict in self.verdicts), len(self.verdicts)
        lines: list[str] = []
        if mode == "count":
            count = f"{passed} of {number} tests pass."
            lines = [count if number else "The program could not be tested."]
        elif mode in ("graded", "tests"):
            lines = _structure(problem, self)
        if mode == "graded" and number:
            lines.append(grade_of(passed, number))
        if mode == "tests":
            lines += _tests(problem, self)
        return "\n".join(lines)


async def worth(
    problem: CodeProblem, names: Sequence[str], codes: Sequence[str], test: Tester
) -> CollaborationScore:
    """Score of the writers' codes together.

    Args:
        names: names of the functions of all writers but the last.
        test: runs a program, and returns a verdict for each test of the problem.
    """
    parts = ("aux", "called", "ignored")
    score = CollaborationScore(of_aux={name: dict.fromkeys(parts, 0.0) for name in names})
    main, before = problem.program(codes[-1]) if not refusal(codes[-1]) else ("", 0)
    texts = [*("" if refusal(code) else code for code in codes[:-1]), main]
    trees = [parsed(text) for text in texts]
    there = [name for tree, name in zip(trees, names, strict=False) if function(tree, name)]
    for name in there:
        score.of_aux[name]["aux"] = AUX / len(names)
    score.paid["aux"] = AUX * len(there) / len(names)
    entry = function(trees[-1], problem.entry)
    if entry is None:
        return score
    score.paid["main"] = MAIN
    whole = [tree for tree in trees if tree is not None]
    if len(whole) < len(trees):
        return score
    score.paid["parses"] = PARSES
    score.verdicts = await test("\n\n".join(texts))
    score.offset = before + sum(text.count("\n") + 2 for text in texts[:-1])
    passed = sum(verdict.passed for verdict in score.verdicts)
    score.paid["tests"] = TESTS * passed / len(score.verdicts)
    if not passed:
        return score
    callable_names = reached(whole, problem.entry)
    for index, name in enumerate(names):
        foreign = any(binds(tree, name) for n, tree in enumerate(whole) if n != index)
        if name in there and name in callable_names and not foreign:
            await _use(score, index, name, texts, test)
    for part in ("called", "ignored"):
        score.paid[part] = sum(stats[part] for stats in score.of_aux.values())
    if score.paid["called"] and not is_thin(entry, names):
        score.paid["whole"] = WHOLE * (not await _replaced(score, problem.entry, texts, test))
    return score


async def _use(
    score: CollaborationScore, index: int, name: str, texts: Sequence[str], test: Tester
) -> None:
    """Determine whether a function is called during the tests, and whether its result is used."""

    async def matters(body: str) -> bool:
        other = list(texts)
        other[index] += f"\n\n\ndef {name}(*args, **kwargs):\n    {body}\n"
        return _fewer(score.verdicts, await test("\n\n".join(other)))

    used = False
    for body in STAND_INS:
        used = used or await matters(body)
    if used or await matters(BROKEN):
        count = len(score.of_aux)
        ignored = 0.0 if used else IGNORED / count
        score.of_aux[name] |= {"called": CALLED / count, "ignored": ignored}


async def _replaced(
    score: CollaborationScore, entry: str, texts: Sequence[str], test: Tester
) -> bool:
    """Whether one of the other functions alone passes all tests that the whole program passes."""
    for name, stats in score.of_aux.items():
        if stats["called"]:
            alone = "\n\n".join([*texts, f"{entry} = {name}\n"])
            if not _fewer(score.verdicts, await test(alone)):
                return True
    return False


def _fewer(before: Sequence[GradingVerdict], after: Sequence[GradingVerdict]) -> bool:
    """Whether a test that passed before fails now."""
    return any(one.passed and not two.passed for one, two in zip(before, after, strict=True))


def _structure(problem: CodeProblem, score: CollaborationScore) -> list[str]:
    """Structural defects, as far as the structure was analysed."""
    lines = [
        f"There is no function {name} that returns a value."
        for name, stats in score.of_aux.items()
        if not stats["aux"]
    ]
    if not score.paid["main"]:
        return [*lines, f"There is no function {problem.entry} that returns a value."]
    if not score.paid["parses"]:
        return [*lines, "The program is not valid Python."]
    if score.paid["tests"]:
        for name, stats in score.of_aux.items():
            if stats["aux"] and not stats["called"]:
                lines.append(f"{problem.entry} does not need {name}.")
            if stats["ignored"]:
                lines.append(f"What {name} returns is not used.")
    return lines


def _tests(problem: CodeProblem, score: CollaborationScore) -> list[str]:
    if not score.verdicts:
        return []
    lines = []
    if problem.kind != "check":
        for number, verdict in enumerate(score.verdicts[: problem.visible], start=1):
            word = "passes" if verdict.passed else f"fails ({verdict.kind})"
            lines.append(f"Test {number} {word}.")
    return [*lines, first_failure(problem, score.verdicts, score.offset)]
