"""Questions with known answers: the rows that contain them, and the base class of environments in
which one agent answers them, in one or several attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mrlm.core.board import Html, shortened, stacked, table
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import QUESTIONS, Row, question_of, row_messages
from mrlm.environments.shared.generators import attempts
from mrlm.environments.shared.rows import RowTable, RowTasks, agent_names, others

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
    errors. `golds(value, where)` reads the right answers, and raises if none can be reached. A row
    with `choices` is a multiple choice: the prompt shows them, and its right answers are the
    letter with the text, and the text."""

    def __init__(
        self,
        title: str,
        answers: tuple[str, ...],
        golds: Callable[[Any, str], list[str]],
        *dataset: Any,
    ) -> None:
        self.title, self.answers, self.golds = title, answers, golds
        super().__init__(*dataset, convert=self._checked)

    def question(self, seed: int, split: Split) -> QuestionRow:
        index, row = self.row(seed, split)
        where = f"{self.title}, {split} row {index}"
        gold, messages = self._gold(row, where), row_messages(question_of(row), where)
        if choices := choices_of(row):
            shown = "\n".join([messages[-1].content, *choices])
            messages = [*messages[:-1], Message(shown, messages[-1].role)]
        text = messages[-1].content
        return QuestionRow(index, where, messages, text, gold, others(row) | {"question": text})

    def _gold(self, row: Row, where: str) -> Any:
        name = next(name for name in self.answers if row.get(name) is not None)
        gold, choices = row[name], choices_of(row)
        if not choices:
            return gold
        texts = [choice[3:] for choice in choices]
        letter = str(gold).strip().strip("().").upper()
        place = ord(letter) - ord("A") if len(letter) == 1 and letter.isalpha() else -1
        if isinstance(gold, int) and not isinstance(gold, bool):
            place = gold
        elif gold in texts:
            place = texts.index(gold)
        if not 0 <= place < len(choices):
            raise DataError(
                f"{where}: its {name} {gold!r} names none of its {len(choices)} choices; give the "
                "index from 0, the letter, or the text"
            )
        return [choices[place], texts[place]]

    def _checked(self, row: Row, where: str) -> Row:
        if question_of(row) is None:
            raise DataError(
                f"{where}: needs a question ({', '.join(QUESTIONS)}); it has {', '.join(row)} "
                "(rename with columns)"
            )
        if all(row.get(name) is None for name in self.answers):
            null = [name for name in self.answers if name in row]
            raise DataError(
                f"{where}: column {null[0]!r} is null; give every row an answer, or skip such rows "
                "with on_bad_row: skip"
                if null
                else f"{where}: needs an answer ({', '.join(self.answers)}); it has "
                f"{', '.join(row)} (rename with columns)"
            )
        self.golds(self._gold(row, where), where)
        return row


def choices_of(row: Mapping[str, Any]) -> list[str]:
    """The choices of a row with letters, `A. Paris`; empty for a row without the column `choices`
    (a list of texts, or a mapping with them as `text`)."""
    listed = row.get("choices")
    if isinstance(listed, Mapping):
        listed = listed.get("text")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not 2 <= len(listed) <= 10:
        return []
    return [f"{chr(ord('A') + i)}. {text}" for i, text in enumerate(listed)]


class QuestionEnvironment(RowTasks):
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
        shown = "none could be read" if answer is None else answer.strip()
        self._tried = (*self._tried, (shortened(shown, MOST_SHOWN), right))

    def attempts_board(self, reference: str, *more: str) -> Html:
        """The answers so far, the reference answer, and further texts."""
        rows = [
            (number, answer, ("right", "good") if right else ("wrong", "bad"))
            for number, (answer, right) in enumerate(self._tried, 1)
        ]
        drawn = table(rows, ("attempt", "answer", "")) if rows else ""
        known = shortened(f"reference: {reference}", MOST_SHOWN) if reference else ""
        return stacked(drawn, known, *more)

    @property
    def question(self) -> str:
        prompt = "\n".join(message.content for message in self._task.prompt)
        return str(self._task.info.get("question") or prompt)

    @property
    def again(self) -> str:
        return f"Try again (attempt {self._attempts + 1} of {self.max_attempts})."

    def state(self) -> str:
        return f"{self.question}\nattempt {self._attempts + 1} of {self.max_attempts}"
