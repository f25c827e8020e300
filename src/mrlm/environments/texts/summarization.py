"""Summarisation: summaries of one text, compared with references and with known facts, and
optionally graded by a judge."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.core.errors import DataError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.data.tasks import OnBadRow, Row
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import ABOVE_NOTHING, row_matters, whole_number
from mrlm.environments.texts.text_environment import TextEnvironment, plain
from mrlm.environments.texts.writing.presets import LengthSpan
from mrlm.environments.texts.writing.words import FUNCTION_WORDS, tokens, words_of

_WORDS = content(__file__)
ASKED = "Summarise the text in at most {words} words."
_SHORTER = LengthSpan(-1.0, 0.0, 0.6, 0.9)
_JOINED = LengthSpan(0.05, 0.2)
FROM_ROWS = {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
GENERATED = {**FROM_ROWS, "facts": 3.0}


class SummarizationEnvironment(TextEnvironment):
    """An environment in which one agent summarises a text. Summaries are compared with references
    (ROUGE) and with known facts, and optionally graded by a judge.

    The reward is the weighted mean of the scores, from 0 to 1, times three gates that are 1 for
    genuine texts. `length`: 1 up to `max_words`, decreasing to 0 at twice as many, and from 60 to
    90 per cent of the source's words. `repetition`: no repeated pairs of words. `own_words`: no
    copies of the instruction.

    Args:
        dataset: rows with a text (`document`, `article`, `text`, `dialogue`, ...) and one or
            several summaries (`summary`, `highlights`, `references`, ...), optionally with `facts`
            (required in a summary) and `others` (unwanted in it); generated texts about fictional
            places when `None`.
        eval_dataset: held-out rows; a tenth of the texts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        max_words: maximum length of a summary.
        weights: score -> weight: `rouge1`, `rouge2`, `rougeL`, `bleu`, `chrf`, `chrf++`, `exact`,
            `judge`, `facts` (fraction of the facts it contains, minus that of the others; for
            generated texts scaled by the use of function words, as in a sentence). `None`: the mean
            of the three ROUGEs, for generated texts with `facts` as half of all weights.
        judge: a judging agent (its name, or `{agent: judge, retries: 1}`), or in Python a callable;
            it needs a weight.
        instruction: text before the source; `{words}` is `max_words`.
        seed: seed of the generated texts and of the split.
        agents: name of the writing agent.

    Raises:
        ConfigError: impossible arguments, or a missing package.
        DataError: a row without a text or a summary.
    """

    label = "summarization"
    wanted = "a summary"
    sources = ("source", "document", "article", "text", "dialogue", "post", "prompt")
    targets = ("references", "summaries", "summary", "highlights", "target", "completion", "answer")
    matters: ClassVar[Mapping[str, Matters]] = row_matters("dataset")

    def __init__(
        self,
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        max_words: int | None = None,
        weights: Mapping[str, float] | None = None,
        judge: Any = None,
        instruction: str = ASKED,
        seed: int = 0,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        default = GENERATED if dataset is None else FROM_ROWS
        super().__init__(default if weights is None else weights, judge, agents, ("facts",))
        self.max_words: int = max_words or (24 if dataset is None else 80)
        whole_number(1, max_words=self.max_words)
        self.instruction: str = instruction.replace("{words}", str(self.max_words))
        self.seed: int = seed
        if self.expert_return is not None:
            self.expert_return = ABOVE_NOTHING  # a reference may be long, and miss facts
        self._read(dataset, eval_dataset, split, columns, on_bad_row, seed)

    def converted(self, row: Row, where: str) -> Row:
        result = super().converted(row, where)
        if "facts" in self.weights and not plain(row.get("facts")):
            raise DataError(f"{where}: column 'facts' is missing; weights.facts requires it")
        return result

    def generated(self, seed: int, split: Split) -> Task:
        entry = notice(f"{self.seed}/{seed}", split)
        prompt = f"{self.instruction} Say {entry['question']}.\n\n{entry['source']}".strip()
        info = {name: entry[name] for name in ("source", "facts", "others")}
        name = f"summarization-{self.seed}-{split}-{seed}"
        return Task(name, [Message(prompt)], [entry["summary"]], seed, info)

    def length(self, text: str) -> float:
        words, source = len(words_of(text)), len(words_of(self._task.info["source"]))
        allowed = LengthSpan(-1.0, 0.0, self.max_words, 2 * self.max_words)
        return min(allowed(words), _SHORTER(words / max(1, source)))

    def known(self, text: str) -> dict[str, float]:
        info = self._task.info
        facts, others = (_named(text, info.get(name) or []) for name in ("facts", "others"))
        words = tokens(text)
        joined = sum(word in FUNCTION_WORDS for word in words) / max(1, len(words))
        factor = 1.0 if self._table is not None else _JOINED(joined)
        return {"facts": max(0.0, facts - others) * factor}


def _named(text: str, facts: Sequence[str]) -> float:
    """Fraction of the facts contained in a text, as whole words, ignoring case."""
    if not facts:
        return 0.0
    matches = [re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", text, re.IGNORECASE) for fact in facts]
    return sum(match is not None for match in matches) / len(facts)


def notice(seed: str, split: Split) -> dict[str, Any]:
    """A generated text about a fictional place: its `source`, the `question` that a summary must
    answer, a reference `summary`, the `facts` that belong into it, and `others` that do not.
    Held-out texts never occur in training, for any seed."""
    rng = random.Random(f"summarization/{split}/{seed}")
    return first_of(split, lambda: _drawn(rng), lambda entry: entry["summary"])


def _drawn(rng: random.Random) -> dict[str, Any]:
    person, other_person = rng.sample(_WORDS["people"], 2)
    town, other_town = rng.sample(_WORDS["towns"], 2)
    purpose, other_purpose = rng.sample(_WORDS["purposes"], 2)
    year, other_year = map(str, rng.sample(range(1810, 1990), 2))
    words = {
        "person": person, "town": town, "purpose": purpose, "year": year,
        "other_person": other_person, "other_town": other_town, "other_year": other_year,
        "other_purpose": other_purpose, "kind": rng.choice(_WORDS["kinds"]),
        "name": rng.choice(_WORDS["names"]),
    }  # fmt: skip
    first, *key = _WORDS["key"]
    lines = [rng.choice(_WORDS["openings"]), first, *_mixed(rng, key, list(_WORDS["asides"]))]
    return {
        "source": " ".join(lines).format(**words),
        "question": f"who built the {words['kind']}, where, when, and what for",
        "summary": _WORDS["summary"].format(**words),
        "facts": [words["name"], town, person, year, purpose],
        "others": [other_person, other_town, other_year, other_purpose],
    }


def _mixed(rng: random.Random, key: list[str], asides: list[str]) -> list[str]:
    """The key sentences in their order, with asides between them."""
    rng.shuffle(asides)
    places = sorted(rng.sample(range(len(key) + len(asides)), len(key)))
    return [key.pop(0) if i in places else asides.pop() for i in range(len(places) + len(asides))]


PLUGIN = SummarizationEnvironment
