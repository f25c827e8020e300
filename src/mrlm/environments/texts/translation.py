"""Translation: translations of one text, compared with references and optionally graded by a
judge."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.data.tasks import OnBadRow, Row
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import row_matters
from mrlm.environments.texts.text_environment import TextEnvironment
from mrlm.environments.texts.writing.presets import LengthSpan
from mrlm.environments.texts.writing.words import tokens

_NORVI = content(__file__)
"""A fictional language with a dictionary and a few rules, for practice and tests: a model trains to
look up words and to order them."""
NOUNS, ADJECTIVES, VERBS = _NORVI["nouns"], _NORVI["adjectives"], _NORVI["verbs"]
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
        split, columns, on_bad_row: settings of rows, see `RowTable`.
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

    label = "translation"
    wanted = "a translation"
    sources = ("source", "src", "sentence", "text", "prompt")
    targets = ("references", "reference", "target", "tgt", "translation", "completion", "answer")
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
        built_in = ("Norvi", "English") if direction == "to_english" else ("English", "Norvi")
        names = tuple(languages or (built_in if dataset is None else ("source", "target")))
        if len(names) != 2:
            raise ConfigError(f"languages must name two: from and into, not {languages!r}")
        self.languages: tuple[str, str] = (names[0], names[1])
        self.direction: Direction = direction
        self.dictionary: bool = dictionary
        text = instruction.replace("{source}", names[0]).replace("{target}", names[1])
        if dataset is not None and languages is None and instruction == ASKED:
            text = "Translate the text. Give the translation and nothing else."
        self.instruction: str = text
        self.seed: int = seed
        self._read(dataset, eval_dataset, split, columns, on_bad_row, seed)

    def columns_of(self, row: Row, where: str) -> tuple[Any, Any]:
        both = row.get("translation")
        if not isinstance(both, Mapping):
            return super().columns_of(row, where)
        source, target = (both.get(name) for name in self.languages)
        if source is None or target is None:
            raise DataError(
                f"{where}, column 'translation': it has {', '.join(map(str, both))}; set "
                "languages: [from, into]"
            )
        return source, target

    def generated(self, seed: int, split: Split) -> Task:
        norvi, english, entries = pair(f"{self.seed}/{seed}", split)
        to_english = self.direction == "to_english"
        source, target = (norvi, english) if to_english else (english, norvi)
        words = ", ".join(f"{there} = {here}" for here, there in sorted(entries.items()))
        help_ = f"{_NORVI['rules']}\nWords: {words}" if self.dictionary else ""
        prompt = "\n\n".join(part for part in (self.instruction, help_, source) if part)
        name = f"translation-{self.seed}-{split}-{seed}"
        return Task(name, [Message(prompt)], [target], seed, {"source": source})

    def length(self, text: str) -> float:
        return self.ratio(text, _LENGTH)

    def foreign(self, words: Sequence[str]) -> float:
        right = {word for reference in self.references for word in tokens(reference)}
        source = set(tokens(self._task.info["source"])) - right
        return sum(word in source for word in words) / len(words) if right else 0.0


def pair(seed: str, split: Split) -> tuple[str, str, dict[str, str]]:
    """A sentence in Norvi and its only translation into English, and the dictionary entries of its
    words. Held-out sentences never occur in training, for any seed."""
    rng = random.Random(f"translation/{split}/{seed}")
    return first_of(split, lambda: _drawn(rng), lambda sample: sample[0])


def _drawn(rng: random.Random) -> tuple[str, str, dict[str, str]]:
    entries: dict[str, str] = {}
    groups = [_group(rng, noun, entries) for noun in rng.sample(list(NOUNS), 2)]
    (subject, subject_norvi, several), (thing, thing_norvi, _) = groups
    verb = rng.choice(list(VERBS))
    singular, past, stem = VERBS[verb]
    entries[verb] = stem
    before = rng.random() < 0.5
    verb_form = past if before else verb if several else singular
    norvi = f"{subject_norvi} {thing_norvi} {stem}{'it' if before else ''}."
    return norvi[0].upper() + norvi[1:], f"The {subject} {verb_form} the {thing}.", entries


def _group(rng: random.Random, noun: str, entries: dict[str, str]) -> tuple[str, str, bool]:
    """A noun, possibly in the plural and with an adjective, in both languages."""
    several = rng.random() < 0.4
    entries[noun] = NOUNS[noun]
    english, norvi = noun, NOUNS[noun]
    if several:
        english, norvi = _NORVI["irregular"].get(noun, f"{noun}s"), f"{norvi}ra"
    if rng.random() < 0.6:
        adjective = rng.choice(list(ADJECTIVES))
        entries[adjective] = ADJECTIVES[adjective]
        english, norvi = f"{adjective} {english}", f"{norvi} {ADJECTIVES[adjective]}"
    return english, norvi, several


PLUGIN = TranslationEnvironment
