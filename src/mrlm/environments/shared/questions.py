"""Questions with known answers: the rows that contain them, and the base class of environments in
which one agent answers them, in one or several attempts."""

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mrlm.core.board import Html, shortened, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import QUESTIONS, Row, question_of, row_messages
from mrlm.environments.shared.generators import attempts
from mrlm.environments.shared.rows import RowTable, RowTasks, agent_names, others

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_SHOWN = 1_000
"""Characters of an answer on the board."""


class QuestionRow(NamedTuple):
    """A row with a question, the last of its messages, and the value of its answer column."""

    index: int
    where: str
    messages: list[Message]
    text: str
    gold: Any
    info: Row


class QuestionTable(RowTable):
    """Rows with a question and an answer, in one of the columns `answers`; `title` is its name in
    errors. A row with `choices` is a question of multiple choice: they follow the question, by
    letter, and the letter or the text of the right one is the answer.

    Args:
        answers: columns that may contain the answer, in order of precedence.
        problem: what is wrong with the value of an answer column; empty for nothing.
    """

    def __init__(
        self,
        title: str,
        answers: tuple[str, ...],
        *dataset: Any,
        problem: Callable[[Any], str] = lambda gold: "",
    ) -> None:
        self.title, self.answers, self.problem = title, answers, problem
        super().__init__(*dataset, convert=self._checked)

    def question(self, seed: int, split: Split) -> QuestionRow:
        index, row = self.row(seed, split)
        where = f"{self.title}, {split} row {index}"
        gold = self._gold(row)
        messages = row_messages(question_of(row), where)
        text = messages[-1].content
        if row.get("choices"):
            text, gold = multiple_choice(text, row["choices"], gold, where)
            messages = [*messages[:-1], Message(text, messages[-1].role)]
        return QuestionRow(index, where, messages, text, gold, others(row) | {"question": text})

    def _gold(self, row: Row) -> Any:
        return next((row[name] for name in self.answers if row.get(name) is not None), None)

    def _checked(self, row: Row, where: str) -> Row:
        row = _of_verl(row)
        if question_of(row) is None:
            raise DataError(
                f"{where}: needs a question ({', '.join(QUESTIONS)}); it has {', '.join(row)} "
                "(rename with columns)"
            )
        gold = self._gold(row)
        if gold is None:
            null = [name for name in self.answers if name in row]
            raise DataError(
                f"{where}: column {null[0]!r} is null; give every row an answer, or skip such rows "
                "with on_bad_row: skip"
                if null
                else f"{where}: needs an answer ({', '.join(self.answers)}); it has "
                f"{', '.join(row)} (rename with columns)"
            )
        if row.get("choices"):
            gold = multiple_choice("", row["choices"], gold, where)[1]
        if problem := self.problem(gold):
            raise DataError(f"{where}: {problem}")
        return row


def multiple_choice(
    question: str, choices: Any, gold: Any, where: str
) -> tuple[str, tuple[str, str]]:
    """A question with its choices by letter, and the accepted answers: the letter of the right
    choice and its text.

    Args:
        choices: the texts (MMLU), or `{"text": [...], "label": [...]}` (ARC).
        gold: the index of the right one, its letter or label, or its text.

    Raises:
        DataError: there are no choices, or the answer is none of them.
    """
    texts = choices.get("text") if isinstance(choices, Mapping) else choices
    labels = [*choices.get("label", ())] if isinstance(choices, Mapping) else []
    if not isinstance(texts, Sequence) or isinstance(texts, str) or len(texts) < 2:
        raise DataError(f"{where}, column 'choices': needs a list of at least two texts")
    letters = string.ascii_uppercase[: len(texts)]
    options = [str(text).strip() for text in texts]
    index = gold if isinstance(gold, int) and not isinstance(gold, bool) else None
    if index is None:
        text = str(gold).strip()
        ways = (labels, [*letters], options, [str(number) for number in range(len(options))])
        index = next((way.index(text) for way in ways if text in way), None)
    if index is None or not 0 <= index < len(options):
        raise DataError(f"{where}: the answer {gold!r} is none of its {len(options)} choices")
    lines = [f"({letter}) {text}" for letter, text in zip(letters, options, strict=True)]
    return "\n".join([question, *lines]), (letters[index], options[index])


def _of_verl(row: Row) -> Row:
    """A row whose answer is the `ground_truth` of a column `reward_model`, as in verl."""
    truth = row.get("reward_model")
    if row.get("answer") is not None or not isinstance(truth, Mapping):
        return row
    return row | {"answer": truth.get("ground_truth")}


class QuestionEnvironment(RowTasks, Environment):
    """An environment in which one agent answers a question, in one or several attempts. A subclass
    implements `task` and `step`, and may check its tasks in `begin`."""

    title: str
    blocking: bool = True  # checking an answer may take long

    def __init__(
        self,
        agents: str | Sequence[str],
        max_attempts: int | None = None,
        max_turns: int | None = None,
    ) -> None:
        self.max_attempts: int = attempts(max_attempts, max_turns)
        self.max_turns: int | None = self.max_attempts
        self.agents: tuple[str, ...] = agent_names(agents, 1)
        self._task = Task("none")
        self._attempts = 0
        self._tried: tuple[tuple[str, bool], ...] = ()
        """The answers that were read, and whether they are right."""

    def begin(self, task: Task) -> None:
        """Prepare an episode. Raises `ConfigError`: the task has no answer."""
        if task.answer is None:
            raise ConfigError(f"environment {self.title}: task {task.id!r} has no answer")

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task, self._attempts, self._tried = task or self.task(seed or 0), 0, ()
        self.begin(self._task)
        return StepResult({self.agents[0]: Observation(list(self._task.prompt))})

    def answered(self, words: str, reward: Reward, over: bool) -> StepResult:
        """The result of an attempt: a message and a reward."""
        (agent,) = self.agents
        return StepResult({agent: Observation([Message(words)], done=over)}, {agent: reward}, over)

    def note(self, answer: str | None, right: bool) -> None:
        """Add an answer to the board of attempts; `None`: none could be read."""
        text = "none could be read" if answer is None else answer.strip()
        self._tried = (*self._tried, (shortened(text, MOST_SHOWN), right))

    def attempts_board(self, reference: str, *more: str) -> Html:
        """The answers so far, the reference answer, and further texts."""
        rows = [
            (number, answer, ("right", "good") if right else ("wrong", "bad"))
            for number, (answer, right) in enumerate(self._tried, 1)
        ]
        drawn = table(rows, ("attempt", "answer", "")) if rows else ""
        line = shortened(f"reference: {reference}", MOST_SHOWN) if reference else ""
        return stacked(drawn, line, *more)

    @property
    def question(self) -> str:
        prompt = "\n".join(message.content for message in self._task.prompt)
        return str(self._task.info.get("question") or prompt)

    @property
    def again(self) -> str:
        return f"Try again (attempt {self._attempts + 1} of {self.max_attempts})."

    def state(self) -> str:
        return f"{self.question}\nattempt {self._attempts + 1} of {self.max_attempts}"
