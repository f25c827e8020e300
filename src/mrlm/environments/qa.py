"""QA: questions from a data set with short answers, scored by exact match or F1 after SQuAD
normalisation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mrlm.core.board import Html
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Message, Reward, Role, StepResult, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.shared.questions import QuestionEnvironment, QuestionTable
from mrlm.environments.shared.short_answers import exact_match, f1, tagged

SYSTEM_PROMPT = "Answer the question in as few words as possible."
ANSWERS = ("answer", "answers", "golden_answers")
LONGEST = 40
"""Words of an answer that can be matched exactly."""
MAX_TEXT = 20_000
"""Number of characters at the end of a message that are searched for the answer."""
_ANCHORED = re.compile(r"\banswer(?:\s{1,5}is)?\s{0,5}:\s{0,5}(.+)", re.IGNORECASE)


class QASolverEnv(QuestionEnvironment):
    """An environment of questions with short answers. The answer is the text of the last `<answer>`
    tag, else after the last `answer:`, else the whole message.

    Args:
        custom_sys_prompt: system prompt instead of the built-in one; an empty one is left out.
        dataset: rows with `question` (or `prompt`) and `answer` (or `answers`, `golden_answers`;
            text, a list, or SQuAD's `{"text": [...]}`); anything `read_rows` accepts. `None` if
            only `setup` is used.
        eval_dataset: held-out rows; a tenth of the questions of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        reward: `em` (exact match) or `f1`; the other one is logged.
        seed: seed of the split into training and held-out rows.
        agents: name of the agent.

    Raises:
        ConfigError: impossible arguments, or a row without an answer.
    """

    title: str = "qa"
    _table: QuestionTable | None = None
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    expert_return: float | None = 1.0
    blocking: bool = False

    def __init__(
        self,
        custom_sys_prompt: str | None = None,
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        reward: Literal["em", "f1"] = "em",
        seed: int = 0,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        super().__init__(agents)
        self.system_prompt: str = SYSTEM_PROMPT if custom_sys_prompt is None else custom_sys_prompt
        self.reward = reward
        if dataset is not None:
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            self._table = QuestionTable(
                "QA data set", ANSWERS, dataset, *settings, problem=problem_of
            )
        self._accepted: list[str] = []

    def setup(self, question: str, answer: Any) -> tuple[list[Message], dict[str, Any]]:
        """The opening of one question: `(messages, state)`, the state with `question` and the list
        of accepted answers as `answer`."""
        system = [Message(self.system_prompt, Role.SYSTEM)] if self.system_prompt else []
        state = {"question": question, "answer": accepted_answers(answer)}
        return [*system, Message(question)], state

    def num_tasks(self, split: Split = "train") -> int | None:
        return self._questions().count(split)

    def task(self, seed: int, split: Split = "train") -> Task:
        row = self._questions().question(seed, split)
        opening, state = self.setup(row.text, row.gold)
        prompt = opening if len(row.messages) == 1 else row.messages
        info = row.info | {"question": state["question"]}
        return Task(f"qa-{split}-{row.index}", prompt, state["answer"], seed, info)

    def begin(self, task: Task) -> None:
        self._accepted = accepted_answers(task.answer)
        if not self._accepted:
            raise ConfigError(f"environment qa: task {task.id!r} has no answer")

    def step(self, actions: dict[str, Message]) -> StepResult:
        answer = _stated(stated_text(next(iter(actions.values()))))
        scores = {"em": exact_match(answer, self._accepted), "f1": f1(answer, self._accepted)}
        self.note(answer, bool(scores["em"]))
        return StepResult(rewards={self.agents[0]: Reward(scores[self.reward], scores)}, done=True)

    def state(self) -> str:
        return self._task.prompt[-1].content if self._task.prompt else ""

    def render(self, agent: str | None = None) -> Html | None:
        """The answer as it was read, and the accepted ones; not for the agent."""
        return None if agent is not None else self.attempts_board(" or ".join(self._accepted))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return self._accepted[0]

    def _questions(self) -> QuestionTable:
        if self._table is None:
            raise ConfigError("environment qa: dataset is missing; give a list, a file or a hub id")
        return self._table


def problem_of(gold: Any) -> str:
    """The problem of an answer column: no answer, or one that no short answer can equal."""
    accepted = accepted_answers(gold)
    if not accepted:
        return "its answer is empty"
    if all(len(answer.split()) > LONGEST for answer in accepted):
        return (
            f"its answer has {len(accepted[0].split())} words, which no short answer equals; give "
            "a short one, or grade with env_type: reference or a judge"
        )
    return ""


def accepted_answers(value: Any) -> list[str]:
    """The answers in an answer column: text, a number, a list of them, or SQuAD's `{"text":
    [...]}`."""
    if isinstance(value, Mapping):
        value = value.get("text")
    if value is None:
        return []
    many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    texts = [str(one) for one in many if str(one).strip()]
    whole = [one for one in many if isinstance(one, float) and one.is_integer()]
    return [*texts, *(str(int(one)) for one in whole)]  # 3 for 3.0


def _stated(text: str) -> str:
    text = text[-MAX_TEXT:]
    if (inside := tagged(text)) is not None:
        return inside
    anchored = _ANCHORED.findall(text)
    return anchored[-1].strip() if anchored else text.strip()


PLUGIN = QASolverEnv
