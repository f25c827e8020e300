"""A programming problem: what is asked, the tests that decide, and how many of them may be seen. It
runs nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mrlm.core.errors import ConfigError

Kind = Literal["calls", "asserts", "check", "programs"]
"""How a solution is tested: calls of a function with expected results; assert statements; one
function `check(candidate)`; whole programs that read standard input and print."""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A problem with its tests.

    Args:
        text: what is asked, without the visible tests.
        kind: what the tests are.
        tests: `calls`: `[args, expected]` each; `asserts`: source each; `check`: the source of the
            function, alone; `programs`: `[stdin, stdout]` each.
        entry: name of the function that is tested; empty for programs.
        visible: how many tests, the first ones, are part of the question and of the feedback.
            Nothing else is ever shown.
        examples: assert statements that stand in the question already; they decide nothing, and
            are run for the feedback alone.
        stub: the beginning of the program, which a solution completes or writes anew (HumanEval).
        solution: an honest one, if there is one.
        family, template, difficulty: where a generated problem comes from.
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

    def record(self) -> dict[str, Any]:
        """The problem as plain JSON values, for `Task.info`."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any, where: str) -> CodeProblem:
        """The problem of a record.

        Raises:
            ConfigError: it is none.
        """
        try:
            return cls(**record)
        except TypeError as error:
            raise ConfigError(f"{where} is no programming problem: {error}") from error

    @property
    def of_examples(self) -> CodeProblem:
        """The same problem, tested by its examples."""
        shown = len(self.examples)
        return replace(self, kind="asserts", tests=self.examples, visible=shown, examples=())

    @property
    def question(self) -> str:
        """What the agent reads: the text and the visible tests."""
        shown = [shown_test(self, test) for test in self.tests[: self.visible]]
        return "\n".join([self.text, *shown])

    def program(self, code: str) -> tuple[str, int]:
        """What is run for an answer, and how many lines of it stand before the answer."""
        if not self.stub:
            return code, 0
        if not _defines(self.entry, code):
            before = self.stub.rstrip("\n") + "\n"
        else:
            match = re.search(rf"^(?:async )?def {re.escape(self.entry)}\b", self.stub, re.M)
            before = self.stub[: match.start()] if match else ""
        return before + code, before.count("\n")


def shown_test(problem: CodeProblem, test: Any) -> str:
    """A visible test as a person reads it."""
    if problem.kind == "calls":
        return f"{shown_call(problem.entry, test[0])} == {test[1]!r}"
    if problem.kind == "programs":
        return f"Input:\n{test[0].rstrip()}\nOutput:\n{test[1].rstrip()}"
    return str(test)


def shown_call(entry: str, args: Sequence[Any]) -> str:
    """A call as it is written in Python."""
    return f"{entry}({', '.join(map(repr, args))})"


def _defines(entry: str, code: str) -> bool:
    """Whether a text defines the function, rather than being the rest of one."""
    name = re.escape(entry)
    return bool(re.search(rf"^(?:(?:async )?def|class) {name}\b|^{name} ?=", code, re.M))
