"""The math environment: one agent, a question, several attempts, and a reward for the right
answer."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, get_args

from mrlm.core.board import Html
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.math import reading
from mrlm.environments.math.answers import number
from mrlm.environments.math.generator import MathProblemGenerator
from mrlm.environments.math.verifier import TIMEOUT, verify
from mrlm.environments.shared.questions import QuestionEnvironment, QuestionTable
from mrlm.environments.shared.rows import one_of, row_matters

CORRECT, WRONG, UNPARSEABLE, REASONED = 1.0, 0.0, -0.3, 0.2
INSTRUCTION = "Put the final answer in \\boxed{}."
SHOW = "Show your working first."
ANSWERS = ("answer", "final_answer", "solution")
"""Columns that may contain the answer, in order of precedence."""


class MathReasoningEnvironment(QuestionEnvironment):
    r"""An environment of questions with one right answer, checked as mathematics.

    The reward of an attempt is 1.0 if it is right, 0 if it is wrong and -0.3 if no answer can be
    parsed. With `require_solution` a right answer gets 0.2 more if working is shown before it.
    Feedback between attempts never reveals the answer.

    Args:
        generator: source of problems; built from `difficulty_range`, `seed` and `families` when
            `None`.
        dataset: rows instead of a generator: `prompt` (or `question`, `problem`) and `answer` (or
            `final_answer`, `solution`; GSM8K's `#### 72` and MATH's `\boxed{}` are supported);
            anything `read_rows` accepts.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        difficulty_range: difficulty of generated problems, 1 to 5.
        families: families of generated problems.
        seed: seed of the generator and of the split.
        require_solution: request working, and reward it.
        max_attempts: maximum number of answers.
        max_turns: alias of `max_attempts`.
        timeout: time limit of computer algebra for one answer, in seconds.
        instruction: text after the question; none if empty.
        answers: `boxed` (only an answer in a box counts) or `any` (also one in running text, and
            the last number of a completion that was cut off); by default `boxed` if the instruction
            names a box.
        agents: name of the agent.
    """

    title: str = "math"
    _table: QuestionTable | None = None
    reward_range: tuple[float, float] | None = (-0.3, 1.0)
    expert_return: float | None = CORRECT
    matters: ClassVar[Mapping[str, Matters]] = row_matters("dataset")

    def __init__(
        self,
        generator: MathProblemGenerator | None = None,
        *,
        dataset: Any = None,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        difficulty_range: Sequence[int] | None = None,
        families: Sequence[str] | None = None,
        seed: int | None = None,
        require_solution: bool = False,
        max_attempts: int | None = None,
        max_turns: int | None = None,
        timeout: float = TIMEOUT,
        instruction: str = INSTRUCTION,
        answers: reading.Answers | None = None,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        made = difficulty_range is not None or families is not None
        if dataset is not None and (generator is not None or made):
            raise ConfigError(
                "environment math: give either dataset or a generator (with difficulty_range and "
                "families), not both"
            )
        if generator is not None and (made or seed is not None):
            raise ConfigError(
                "environment math: set difficulty_range, families and seed in the generator, or "
                "remove generator"
            )
        if generator is not None and not isinstance(generator, MathProblemGenerator):
            raise ConfigError(
                f"generator must be a MathProblemGenerator, not {type(generator).__name__}"
            )
        super().__init__(agents, max_attempts, max_turns)
        if not timeout > 0:
            raise ConfigError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        seed = seed or 0
        self.generator: MathProblemGenerator = generator or MathProblemGenerator(
            difficulty_range or (1, 3), seed, families
        )
        if dataset is not None:
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            name = "math data set"
            self._table = QuestionTable(
                name, ANSWERS, dataset, *settings, problem=reading.problem_of
            )
        self.require_solution = require_solution
        best = CORRECT + REASONED * require_solution
        self.reward_range = (UNPARSEABLE * self.max_attempts, best)
        self.timeout = timeout
        self.instruction = instruction
        if answers is not None:
            one_of("answers", answers, get_args(reading.Answers))
        self.answers: reading.Answers = answers or ("boxed" if "boxed" in instruction else "any")

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is None:
            problem = self.generator.problem(seed, split)
            names = ("question", "difficulty", "family", "solution")
            info = {name: getattr(problem, name) for name in names}
            prompt = [Message(self._asked(problem.question))]
            name = f"math-{self.generator.seed}-{split}-{seed}"
            return Task(name, prompt, problem.answer, seed, info)
        row = self._table.question(seed, split)
        last_message = Message(self._asked(row.text), row.messages[-1].role)
        prompt = [*row.messages[:-1], last_message]
        golds = reading.golds_of(row.gold)
        answer = golds[0] if len(golds) == 1 else golds
        return Task(f"math-{split}-{row.index}", prompt, answer, seed, row.info)

    def _asked(self, question: str) -> str:
        suffix = f"{SHOW} {self.instruction}" if self.require_solution else self.instruction
        return f"{question}\n{suffix}".strip()

    def step(self, actions: dict[str, Message]) -> StepResult:
        text = stated_text(next(iter(actions.values())))
        self._attempts += 1
        answer, golds = reading.stated(text, self.answers), reading.golds_of(self._task.answer)
        if answer is None and self.answers == "any":
            answer = reading.stated_words(text, golds)
        verdicts = [
            verify(answer, gold, question=self.question, timeout=self.timeout) for gold in golds
        ]
        correct = None if not verdicts or set(verdicts) == {None} else True in verdicts
        self.note(None if correct is None else answer, bool(correct))
        reward, words = self._paid(text, correct)
        over = bool(correct) or self._attempts >= self.max_attempts
        if not over:
            words += f" {self.again}"
        return self.answered(words, reward, over)

    def _paid(self, text: str, correct: bool | None) -> tuple[Reward, str]:
        if correct is None:
            missing = Reward(UNPARSEABLE, {"correct": 0.0, "unparseable": 1.0})
            return missing, "No answer could be read."
        components = {"correct": float(correct), "unparseable": 0.0}
        value = CORRECT if correct else WRONG
        if self.require_solution:
            working = reading.before_answer(text, self.answers)
            has_working = correct and shows_working(working, self.question)
            components["reasoning"] = REASONED * has_working
            value += components["reasoning"]
        return Reward(value, components), "That is correct." if correct else "That is not correct."

    def render(self, agent: str | None = None) -> Html | None:
        """The answers as they were read, the reference answer and its steps; not for the agent."""
        if agent is not None:
            return None
        reference = " or ".join(reading.golds_of(self._task.answer))
        return self.attempts_board(reference, self._task.info.get("solution") or "")

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        gold = reading.golds_of(self._task.answer)[0]
        boxed = self.answers == "boxed" or "boxed" in self.instruction
        answer = f"\\boxed{{{gold}}}" if boxed else gold
        steps = self._task.info.get("solution")
        return f"{steps}\n{answer}" if self.require_solution and steps else answer


_SIDES = re.compile(r"[=<>]")
_CLAUSES = re.compile(r"[\n;,]")
_NUMBER = r"(-?\d{1,18}(?:\.\d{1,6}|/\d{1,18})?)"
_OPERATION = re.compile(rf"{_NUMBER}\s*([-+*/×÷])\s*{_NUMBER}\s*$")
_RESULT = re.compile(rf"\s*{_NUMBER}\s*(?![\s\w(])")


def shows_working(text: str, question: str) -> bool:
    """Whether a text contains working: an equation or inequality with an operation, about a number
    of the question, with no false plain equation; or a dozen different words without much
    repetition, some of them from the question."""
    numbers = set(re.findall(r"\d+", question))
    if numbers and not numbers & set(re.findall(r"\d+", text)):
        return False
    checked = [
        _holds(left[-80:], right[:80])
        for clause in _CLAUSES.split(text[-20_000:])
        for left, right in pairwise(_SIDES.split(clause))
        if any(map(str.isdigit, left)) and any(map(str.isdigit, right))
    ]
    if checked:
        return any(checked) and False not in checked
    words = re.findall(r"[a-z]{2,}", text[-20_000:].lower())
    distinct = set(words)
    question_words = set(re.findall(r"[a-z]{2,}", question.lower()))
    various = len(distinct) >= 12 and len(distinct) > len(words) / 3
    return various and len(distinct & question_words) >= 2


def _holds(left: str, right: str) -> bool | None:
    """Whether `left = right` is a true equation; `None` if undecided."""
    operation, outcome = _OPERATION.search(left), _RESULT.match(right)
    alone = operation is not None and not left[: operation.start()].strip()
    if operation is None or outcome is None or not alone:
        return True if re.search(r"\d\s*[a-z(]|[a-z)\d]\s*[-+*/×÷]\s*[a-z(\d]", left) else None
    first, second, result = (number(part) for part in (operation[1], operation[3], outcome[1]))
    if first is None or second is None or result is None:
        return None
    a, b = first.value, second.value
    if operation[2] in "/÷":
        return b != 0 and a / b == result.value
    return {"+": a + b, "-": a - b}.get(operation[2], a * b) == result.value
