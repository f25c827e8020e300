"""The writing environment: two or more agents, one text, one turn; and its rewards: four gates in
sequence, of which a gate at zero stops; at most 3.0."""

import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

from mrlm.core.board import Cell, Html, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.matters import Matters
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import OnBadRow, Row, question_of, row_messages
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import (
    ABOVE_NOTHING,
    RowTable,
    RowTasks,
    agent_names,
    others,
    row_matters,
)
from mrlm.environments.texts.writing.pieces import sampled
from mrlm.environments.texts.writing.presets import PRESETS, WritingPreset, WritingRules
from mrlm.environments.texts.writing.quality import MEASURES, quality
from mrlm.environments.texts.writing.words import (
    categories,
    content_words,
    jaccard,
    unique_words,
    words_of,
)

LENGTH, RATIO, VARIETY, STYLE = 0.5, 1.0, 0.5, 1.0
"""Maximum reward of each gate."""
GATES = ("length", "ratio", "variety", "style")
_TRANSITIONS, _OVERLAP = 0.4, 0.6

MAX_TEXT = 20_000
"""Maximum number of characters of an answer; a longer one counts as empty."""
_POST = re.compile(r"\bPOST:\s*(.*?)\s*(?:\bTL;DR:?\s*)?\Z", re.DOTALL)


class WritingEnvironment(RowTasks, Environment):
    """An environment in which several agents write one text each, at once, and are rewarded for how
    their texts fit together.

    Four gates are applied in sequence, up to the first with reward 0: the number of words of every
    text (0.5), the ratio of characters of a text to the previous one (1.0), the ratio of different
    words (0.5), and transitions with common content words (1.0). Their sum, at most 3, is
    multiplied by a quality from 0 to 1, which is 1 for any genuine text and lower for repetition,
    for implausible language, for lack of relevance to the source, and for copies of the source, the
    instruction or another writer. The quality of the worst text counts for all.

    Args:
        preset: `tldr` (a concise and a detailed summary), `arxiv` (background and method of a
            paper), `short` (summaries of 8 to 32 words, for small models).
        dataset: rows with a text (`document`, `post`, `abstract`, ... or a `prompt`; TL;DR's
            `prompt` and arXiv's `abstract` unchanged), optionally with `texts`, the reference texts
            of the writers; unlimited built-in texts when `None`.
        eval_dataset: held-out rows; a tenth of the texts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        agents: names of the writers, two or more, in the order of increasing length of their texts;
            those of the preset when `None`.
        instructions: prompts of the writers, before the text, instead of the preset's.
        rewards: `team`: every writer is rewarded for all texts; `individual`: for its own text and
            the pairs that it belongs to.
        quality: whether the quality counts; it is always logged.
        rules: parameters of the preset to change, such as `{words: [8, 64]}`.
        seed: seed of the built-in texts and of the split.

    Raises:
        DataError: a row without a text.
    """

    reward_range: tuple[float, float] | None = (0.0, 3.0)
    expert_return: float | None = ABOVE_NOTHING  # rows' own texts are no models of quality
    max_turns: int | None = 1

    matters: ClassVar[Mapping[str, Matters]] = row_matters("dataset")

    def __init__(
        self,
        preset: Literal["tldr", "arxiv", "short"] = "tldr",
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        agents: Sequence[str] | None = None,
        instructions: Sequence[str] | None = None,
        rewards: Literal["team", "individual"] = "team",
        quality: bool = True,
        rules: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.preset: WritingPreset = PRESETS[preset]
        self.agents: tuple[str, ...] = agent_names(self.preset.agents if agents is None else agents)
        if len(self.agents) < 2:
            raise ConfigError("agents: writing needs at least two writers, but got one")
        self.instructions: tuple[str, ...] = self._asked(instructions)
        self.rules: WritingRules = self.preset.rules.changed(rules or {})
        self.rewards = rewards
        self.quality = quality
        self.seed = seed
        self._label = f"writing-{preset}"
        if dataset is not None:
            convert = partial(_with_text, names=self.preset.columns, count=len(self.agents))
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            self._table = RowTable(dataset, *settings, convert=convert)
        self._task = Task("none")
        self._results: tuple[tuple[int, Mapping[str, float]], ...] = ()
        """Words of each text, and its measures."""

    def _asked(self, instructions: Sequence[str] | None) -> tuple[str, ...]:
        if instructions is not None:
            texts = (instructions,) if isinstance(instructions, str) else tuple(instructions)
            if len(texts) != len(self.agents):
                raise ConfigError(
                    f"instructions: {len(texts)} texts for {len(self.agents)} writers; give one "
                    "per writer"
                )
            return texts
        more = (self.preset.more.format(before=name) for name in self.agents[1:-1])
        return (*self.preset.asked, *more)

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            index, row = self._table.row(seed, split)
            name, prompt = f"{self._label}-{split}-{index}", [Message(row["prompt"])]
            return Task(name, prompt, row.get("texts"), seed, others(row))
        rng = random.Random(f"writing/{self.seed}/{split}/{seed}")
        piece = first_of(split, lambda: sampled(self.preset.piece, rng), lambda parts: parts[0])
        document, *texts = piece
        answer = texts if len(self.agents) == len(texts) else None
        name = f"{self._label}-{self.seed}-{split}-{seed}"
        return Task(name, [Message(document)], answer, seed, {"document": document})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task, self._results = task or self.task(seed or 0), ()
        if not isinstance(self._task.info.get("document"), str):
            raise ConfigError(f"writing: task {self._task.id!r} has no 'document' in its info")
        pairs = zip(self.agents, self.instructions, strict=True)
        prompts = {agent: Message(f"{words}\n\n{self._shown}".strip()) for agent, words in pairs}
        return StepResult({agent: Observation([message]) for agent, message in prompts.items()})

    def step(self, actions: dict[str, Message]) -> StepResult:
        completions = [stated_by(actions, agent) for agent in self.agents]
        texts = [text if len(text) <= MAX_TEXT else "" for text in completions]
        measured = [self._measured(texts, index) for index in range(len(texts))]
        if self.rewards == "individual":
            gate_rows = [gates(texts, self.rules, index) for index in range(len(texts))]
            agent_rewards = [
                self._reward(scores, [one]) for scores, one in zip(gate_rows, measured, strict=True)
            ]
        else:
            together = gates(texts, self.rules)
            agent_rewards = [self._reward(together, measured) for _ in texts]
        self._results = tuple(
            (len(words_of(text)), {**reward.info["gates"], **scores})
            for text, reward, scores in zip(texts, agent_rewards, measured, strict=True)
        )
        return StepResult(rewards=dict(zip(self.agents, agent_rewards, strict=True)), done=True)

    def _measured(self, texts: Sequence[str], index: int) -> dict[str, float]:
        """The quality measures of one text; empty if its length is out of range."""
        text = texts[index]
        if not 0 < len(words_of(text)) <= self.rules.words[1]:
            return dict.fromkeys((*MEASURES, "quality"), 0.0)
        rest = [other for number, other in enumerate(texts) if number != index]
        around = [self._shown, *self.instructions]
        return quality(text, self._document, around, self.rules, rest)

    def _reward(
        self, gate_rewards: Mapping[str, float], measured: Sequence[Mapping[str, float]]
    ) -> Reward:
        """The gates' rewards times the quality of the worst text; the components sum to it."""
        worst = {name: min(one[name] for one in measured) for name in (*MEASURES, "quality")}
        factor = worst["quality"] if self.quality else 1.0
        components = {name: gate_rewards[name] * factor for name in GATES} | worst
        value = sum(gate_rewards.values()) * factor
        return Reward(value, components, {"gates": dict(gate_rewards)})

    @property
    def _document(self) -> str:
        return self._task.info["document"]

    @property
    def _shown(self) -> str:
        return self._task.prompt[-1].content if self._task.prompt else self._document

    def state(self) -> str:
        return f"{len(self.agents)} writers: {', '.join(self.agents)}\n{self._document}"

    def render(self, agent: str | None = None) -> Html | None:
        """The gates and measures of the texts; not for the agents."""
        if agent is not None or not self._results:
            return None
        low, high = self.rules.words
        counts = (count for count, _ in self._results)
        rows: list[Sequence[Cell]] = [(f"words ({low} to {high})", *counts)]
        for name in (*GATES, *MEASURES, "quality"):
            rows.append((name, *((float(scores[name]), "num") for _, scores in self._results)))
        return table(rows, ("", *self.agents))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        texts = self._task.answer
        return None if texts is None else texts[self.agents.index(agent)]


def _with_text(row: Row, where: str, names: Sequence[str], count: int) -> Row:
    """A row with its prompt in `prompt` and its source in `document`. Raises `DataError`: the row
    has no text, or `texts` is not one text per writer."""
    question = question_of(row)
    value = next((row[name] for name in names if row.get(name) is not None), question)
    if value is None:
        raise DataError(
            f"{where}: needs a text ({', '.join(names)} or prompt); it has {', '.join(row)} "
            "(rename with columns)"
        )
    document = _plain(value, where)
    prompt = document if question is None else _plain(question, where)
    if value is question and (match := _POST.search(document)):
        document = match.group(1)
    if not document.strip():
        raise DataError(f"{where}: its text is empty")
    texts = row.get("texts")
    if texts is not None and (
        isinstance(texts, str) or len(texts) != count or not all(isinstance(t, str) for t in texts)
    ):
        raise DataError(f"{where}, column 'texts': expected {count} texts, one per writer")
    return row | {"prompt": prompt, "document": document}


def _plain(value: Any, where: str) -> str:
    return "\n".join(message.content for message in row_messages(value, where)).strip()


def transition_score(count: int, rules: WritingRules) -> float:
    """Score of a number of categories of transitions, from 0 to 1."""
    return min(1.0, rules.first + rules.step * (count - 1)) if count else 0.0


def gates(texts: Sequence[str], rules: WritingRules, own: int | None = None) -> dict[str, float]:
    """Reward of each gate by name.

    Length: every text has its number of words. Ratio: characters of a text over those of the one
    before it. Variety: the same of different words. Style: transitions, and content words that two
    texts have in common. With more than two texts, the worst pair counts.

    Args:
        own: score only this writer: its own length and transitions, and the pairs that it belongs
            to; all writers together when `None`.
    """
    rewards: dict[str, float] = dict.fromkeys(GATES, 0.0)
    mine = list(texts) if own is None else [texts[own]]
    low, high = rules.words
    if not all(low <= len(words_of(text)) <= high for text in mine):
        return rewards
    rewards["length"] = LENGTH
    pairs = [
        (before, after)
        for index, (before, after) in enumerate(pairwise(texts))
        if own is None or own in (index, index + 1)
    ]
    fit = min(rules.characters(_over(len(after), len(before))) for before, after in pairs)
    rewards["ratio"] = RATIO * fit
    if not fit:
        return rewards
    counted = [(unique_words(before), unique_words(after)) for before, after in pairs]
    varied = min(rules.unique(_over(after, before)) for before, after in counted)
    rewards["variety"] = VARIETY * varied
    if not varied:
        return rewards
    common = min(jaccard(content_words(one), content_words(two)) for one, two in pairs)
    kinds = len(set().union(*map(categories, mine)))
    joined = _TRANSITIONS * transition_score(kinds, rules)
    rewards["style"] = STYLE * (joined + _OVERLAP * min(common, rules.overlap) / rules.overlap)
    return rewards


def _over(after: float, before: float) -> float:
    return after / before if before else 0.0
