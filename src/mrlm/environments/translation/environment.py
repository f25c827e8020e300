"""The translation environment: one agent, one sentence, one turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.data.tasks import OnBadRow, Row
from mrlm.environments.shared.rows import RowTable, row_matters
from mrlm.environments.shared.texts import TextEnvironment, plain, row_task, several, task_name
from mrlm.environments.translation.phrasebook import RULES, pair
from mrlm.environments.writing.presets import LengthSpan
from mrlm.environments.writing.words import tokens

SOURCES = ("source", "src", "sentence", "text", "prompt")
REFERENCES = (
    "references", "reference", "target", "tgt", "translation", "completion", "answer",
)  # fmt: skip
"""Columns that may contain a text and its translations, in order of precedence."""
Direction = Literal["to_english", "from_english"]
WEIGHTS = {"bleu": 1.0, "chrf": 1.0}
_LENGTH = LengthSpan(0.0, 0.5, 1.5, 2.5)
ASKED = "Translate from {source} into {target}. Give the translation and nothing else."


class TranslationEnvironment(TextEnvironment):
    """An environment in which one agent translates a text. Translations are compared with
    references (BLEU, chrF) and optionally graded by a judge.

    The reward is the weighted mean of the scores, from 0 to 1, times three gates that are 1 for
    genuine texts. `length`: ratio of characters to a reference, 1 from 0.5 to 1.5, and 0 from 2.5.
    `repetition`: no repeated pairs of words. `own_words`: no copies of the instruction, nor of
    words of the source that are in no reference.

    Args:
        dataset: rows with a text (`source`, `src`, ...) and one or several translations (`target`,
            `references`, ...), or with `translation: {de: ..., en: ...}`; when `None`, sentences of
            Norvi, a fictional language, with the dictionary entries that they need.
        eval_dataset: held-out rows; a tenth of the texts of `dataset` when `None`.
        split: split of the data set.
        columns: our column name -> the data set's.
        on_bad_row: `raise` or `skip`.
        languages: source and target language: their keys in `translation`, and their names in the
            instruction.
        direction: direction of the built-in sentences: `to_english` or `from_english`.
        dictionary: include the rules and the words of a built-in sentence in the prompt.
        weights: score -> weight: `bleu`, `chrf`, `chrf++`, `exact`, `rouge1`, `rouge2`, `rougeL`,
            `judge`; the mean of BLEU and chrF when `None`.
        judge: a judging agent (its name, or `{agent: judge, retries: 1}`), or in Python a callable;
            it needs a weight.
        instruction: text before the source; `{source}` and `{target}` are the languages.
        seed: seed of the built-in sentences and of the split.
        agents: name of the writing agent.

    Raises:
        ConfigError: impossible arguments, or a missing package.
        DataError: a row without a text or a translation.
    """

    reward_range: tuple[float, float] | None = (0.0, 1.0)
    matters: ClassVar[Mapping[str, Matters]] = row_matters(
        "dataset", generated=["direction", "dictionary"]
    )

    def __init__(
        self,
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        languages: Sequence[str] | None = None,
        direction: Direction = "to_english",
        dictionary: bool = True,
        weights: Mapping[str, float] | None = None,
        judge: Any = None,
        instruction: str = ASKED,
        seed: int = 0,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        super().__init__(WEIGHTS if weights is None else weights, judge, agents, ())
        if direction not in ("to_english", "from_english"):
            raise ConfigError(f"direction must be to_english or from_english, not {direction!r}")
        built_in = ("Norvi", "English") if direction == "to_english" else ("English", "Norvi")
        names = tuple(languages or (built_in if dataset is None else ("source", "target")))
        if len(names) != 2:
            raise ConfigError(f"languages must name two: from and into, not {languages!r}")
        self.languages: tuple[str, str] = (names[0], names[1])
        self.direction: Direction = direction
        self.dictionary: bool = dictionary
        wanted = instruction.replace("{source}", names[0]).replace("{target}", names[1])
        if dataset is not None and languages is None and instruction == ASKED:
            wanted = "Translate the text. Give the translation and nothing else."
        self.instruction: str = wanted
        self.seed: int = seed
        if dataset is not None:
            self._table = RowTable(
                dataset, eval_dataset, split, columns, on_bad_row, seed, convert=self._converted
            )

    def _converted(self, row: Row, where: str) -> Row:
        both = row.get("translation")
        if isinstance(both, Mapping):
            source, given = (both.get(name) for name in self.languages)
            if source is None or given is None:
                raise DataError(
                    f"{where}, column 'translation': it has {', '.join(map(str, both))}; set "
                    "languages: [from, into]"
                )
        else:
            source = next((row[name] for name in SOURCES if row.get(name)), None)
            given = next((row[name] for name in REFERENCES if row.get(name)), None)
        source = plain(source)
        texts = several(given)
        if source is None or (set(self.weights) - {"judge"} and not texts):
            raise DataError(
                f"{where}: needs a text ({', '.join(SOURCES)}) and a translation "
                f"({', '.join(REFERENCES)}); it has {', '.join(row)} (rename with columns)"
            )
        return row | {"source": source, "prompt": source, "references": texts}

    # -- tasks -------------------------------------------------------------------------------------

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            index, row = self._table.row(seed, split)
            prompt = f"{self.instruction}\n\n{row['source']}".strip()
            return row_task(f"translation-{split}-{index}", prompt, row["source"], row, seed)
        found = pair(f"{self.seed}/{seed}", split)
        sides = (found.norvi, found.english)
        source, target = sides if self.direction == "to_english" else sides[::-1]
        words = ", ".join(f"{norvi} = {english}" for english, norvi in found.entries)
        help_ = f"{RULES}\nWords: {words}" if self.dictionary else ""
        asked = "\n\n".join(part for part in (self.instruction, help_, source) if part)
        name = task_name("translation", self.seed, split, seed)
        return Task(name, [Message(asked)], [target], seed, {"source": source})

    # -- rewards -----------------------------------------------------------------------------------

    def length(self, text: str) -> float:
        long = len(text.strip())
        return max((_LENGTH(long / len(each)) for each in self.references), default=1.0)

    def foreign(self, said: Sequence[str]) -> float:
        right = {word for each in self.references for word in tokens(each)}
        source = set(tokens(self._task.info["source"])) - right
        return sum(word in source for word in said) / len(said) if right else 0.0
