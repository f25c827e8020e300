"""Reference: prompts from preference or demonstration data, with answers scored by similarity to
the data set's."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from mrlm.core.environment import Split
from mrlm.core.errors import DataError
from mrlm.core.types import Message, Role, Task
from mrlm.data.tasks import OnBadRow, Row, question_of, row_messages
from mrlm.environments.shared.rows import RowTable, others
from mrlm.environments.shared.short_answers import f1
from mrlm.environments.texts.text_environment import COPIED, TextEnvironment
from mrlm.environments.texts.writing.presets import LengthSpan
from mrlm.environments.texts.writing.words import grams, tokens, words_of

_LENGTH = LengthSpan(0.0, 0.25, 2.0, 4.0)


class ReferenceEnvironment(TextEnvironment):
    """An environment of prompts from preference or demonstration data: one agent answers, and its
    reward is the similarity of its answer to the row's. This measures words instead of quality; for
    a trained reward model or a reward function use the environment `reward`, or a judge here.

    The reward is the weighted mean of the scores, from 0 to 1, times three gates that are 1 for
    genuine answers. `length`: ratio of characters to the reference, 1 from 0.25 to 2, and 0 from 4.
    `repetition`: no repeated pairs of words. `own_words`: no copies of the prompt.

    Args:
        dataset: rows with `prompt`, `chosen` and `rejected`; with `prompt` and `completion`; or
            with `messages`, the last of which is an assistant's. Prompts and answers are text or
            messages; `chosen` and `rejected` may be whole conversations without a `prompt`.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        weights: score -> weight: `f1` (of words, with the reference), `preferred` (relative
            closeness to the chosen answer: 1 if equal to it, 0 from half way to the rejected one),
            `exact`, `rouge1`, `rouge2`, `rougeL`, `bleu`, `chrf`, `chrf++`, `judge`; `None`:
            `preferred` for preference rows and `f1` for others.
        judge: a judging agent (its name, or `{agent: judge, retries: 1}`), or in Python a callable;
            it needs a weight.
        seed: seed of the split.
        agents: name of the writing agent.

    Raises:
        DataError: a row without a prompt or an answer, or without a required rejected one.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        weights: Mapping[str, float] | None = None,
        judge: Any = None,
        seed: int = 0,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        settings = (eval_dataset, split, columns, on_bad_row, seed)
        self._table: RowTable = RowTable(dataset, *settings, convert=_converted)
        table = self._table
        rows = [table.row(i, side) for side in get_args(Split) for i in range(table.count(side))]
        pairs = all(row["worse"] is not None for _, row in rows)
        default = {"preferred": 1.0} if pairs else {"f1": 1.0}
        chosen = default if weights is None else weights
        super().__init__(chosen, judge, agents, ("f1", "preferred"))
        if "preferred" in self.weights and not pairs:
            index = next(index for index, row in rows if row["worse"] is None)
            raise DataError(f"row {index}: rejected is missing, which weights.preferred requires")

    def task(self, seed: int, split: Split = "train") -> Task:
        index, row = self._table.row(seed, split)
        columns = {key: row[key] for key in others(row) if key not in ("prompt", "better")}
        prompt = row_messages(row["prompt"])
        info = {**columns, "source": "\n".join(message.content for message in prompt)}
        return Task(f"reference-{split}-{index}", prompt, [row["better"]], seed, info)

    def length(self, text: str) -> float:
        return self.ratio(text, _LENGTH)

    def foreign(self, words: Sequence[str]) -> float:
        right = {run for reference in self.references for run in grams(tokens(reference), COPIED)}
        source_runs = set(grams(tokens(self._task.info["source"]), COPIED)) - right
        runs = grams(words, COPIED)
        return sum(run in source_runs for run in runs) / len(runs)

    def known(self, text: str) -> dict[str, float]:
        text, references = _spaced(text), list(map(_spaced, self.references))
        near = f1(text, references)
        worse = self._task.info.get("worse")
        if worse is None:
            return {"f1": near}
        worse = _spaced(worse)
        apart = 1.0 - f1(worse, references)
        lead = near - f1(text, [worse])
        return {"f1": near, "preferred": max(0.0, min(1.0, lead / apart)) if apart else 0.0}


def _spaced(text: str) -> str:
    """A text with spaces between its words, also in scripts without them."""
    return " ".join(words_of(text))


def _converted(row: Row, where: str) -> Row:
    """A row with its prompt as messages, and its answers in `better` and `worse`."""
    question, worse = question_of(row), None
    given = [name for name in ("messages", "chosen", "completion") if row.get(name) is not None]
    before, better = _last(row[given[0]] if given else "", where)
    if given[:1] == ["chosen"] and row.get("rejected") is not None:
        worse = _last(row["rejected"], where)[1]
    prompt = before if question is None else row_messages(question, where)
    if not prompt or not better.strip():
        raise DataError(
            f"{where}: needs prompt and completion; prompt, chosen and rejected; or messages "
            f"that end with an assistant's; it has {', '.join(row)} (rename with columns)"
        )
    messages = [{"role": str(message.role), "content": message.content} for message in prompt]
    return {**row, "prompt": messages, "better": better, "worse": worse}


def _last(value: Any, where: str) -> tuple[list[Message], str]:
    if isinstance(value, str):
        return [], value
    messages = row_messages(value, where)
    last = messages[-1]
    return messages[:-1], last.content if last.role is Role.ASSISTANT else ""


PLUGIN = ReferenceEnvironment
