"""A programming problem: its text, its tests, and the number of visible ones. Runs no code."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from mrlm.core.errors import ConfigError

PROBLEM = "code_problem"
"""Column with the problem of a row."""
Kind = Literal["calls", "asserts", "check", "programs"]
"""Kind of tests: calls of a function with expected results; assert statements; one function
`check(candidate)`; whole programs that read standard input and print."""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A problem with its tests.

    Args:
        text: the question, without the visible tests.
        tests: `calls`: `[args, expected]` each, and further right values; `asserts`: source each;
            `check`: the source of the function, alone; `programs`: `[stdin, stdout]` each.
        entry: name of the function that is tested; empty for programs.
        visible: number of tests, the first ones, that appear in the question and the feedback. No
            other test is ever shown.
        examples: assert statements that are part of the question; they are run for the feedback
            only and do not count as tests.
        stub: the beginning of the program, which a solution completes or rewrites (HumanEval), or
            its imports (APPS).
        solution: the reference solution, if there is one.
        family, template, difficulty: origin of a generated problem.
    """

    text: str
    kind: Kind
    tests: Sequence[Any]
    entry: str = ""
    visible: int = 0
    examples: Sequence[str] = ()
    stub: str = ""
    solution: str | None = None
    family: str = ""
    template: str = ""
    difficulty: int = 0
    column: ClassVar[str] = PROBLEM

    def record(self) -> dict[str, Any]:
        """The problem as plain JSON values, for `Task.info`."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any, where: str) -> "CodeProblem":
        """The problem of a record. Raises `ConfigError`: the record is not a valid problem."""
        try:
            return cls(**record)
        except TypeError as error:
            raise ConfigError(f"{where} is not a programming problem: {error}") from error

    @property
    def of_examples(self) -> "CodeProblem":
        """The same problem with its examples as tests."""
        count = len(self.examples)
        return replace(self, kind="asserts", tests=self.examples, visible=count, examples=())

    @property
    def question(self) -> str:
        """The prompt: the text and the visible tests."""
        lines = [shown_test(self, test) for test in self.tests[: self.visible]]
        return "\n".join([self.text, *lines])

    def program(self, code: str) -> tuple[str, int]:
        """The program to run for an answer, and the number of its lines before the answer."""
        if not self.stub:
            return code, 0
        name = re.escape(self.entry)
        if re.search(rf"^(?:(?:async )?def|class) {name}\b|^{name} ?=", code, re.M):
            match = re.search(rf"^(?:async )?def {name}\b", self.stub, re.M)
            before = self.stub[: match.start()] if match else self.stub
        else:  # it continues the stub
            before = self.stub.rstrip("\n") + "\n"
        return before + code, before.count("\n")


def shown_test(problem: CodeProblem, test: Any) -> str:
    """A visible test in readable form."""
    if problem.kind == "calls":
        return f"{shown_call(problem.entry, test[0])} == {test[1]!r}"
    if problem.kind == "programs":
        return f"Input:\n{test[0].rstrip()}\nOutput:\n{test[1].rstrip()}"
    return str(test)


def shown_call(entry: str, args: Sequence[Any]) -> str:
    """A call in Python syntax."""
    return f"{entry}({', '.join(map(repr, args))})"
