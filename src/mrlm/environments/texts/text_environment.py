"""Base class of environments in which one agent writes a text that is compared with references, and
optionally graded by a judge. Gates for length, repetition and copying prevent reward hacking."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.board import Html, shortened, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import Row
from mrlm.environments.shared.rows import RowTable, RowTasks, agent_names, penalty
from mrlm.environments.shared.text_judge import ASKED, UNREAD, TextJudge, judge_of, read
from mrlm.environments.texts.overlap import KINDS, check_installed, overlap
from mrlm.environments.texts.writing.presets import LengthSpan
from mrlm.environments.texts.writing.words import grams, tokens

MAX_TEXT = 20_000
"""Maximum number of characters of a text; a longer one counts as empty."""
MOST_DRAWN = 800
"""Characters of a reference on the board."""
COPIED = 5
"""Number of consecutive words that count as copied from the instruction."""
GENERAL = (*KINDS, "exact", "judge")
"""Scores of every environment of texts."""
GATES = ("length", "repetition", "own_words")
_DIFFERENT = LengthSpan(0.5, 0.85)
_OWN = LengthSpan(0.2, 0.6)


class TextEnvironment(RowTasks, Environment):
    """An environment in which one agent writes a text. Its reward is the weighted mean of the
    text's scores, times three gates from 0 to 1 that are 1 for genuine texts: `length`,
    `repetition` and `own_words`.

    A subclass implements `task`, or `generated` for a table of rows with one of the columns
    `sources` and one of `targets`, in order of precedence; it may override `length`, `foreign` and
    `known`.

    Args:
        weights: score -> its weight: `rouge1`, `rouge2`, `rougeL`, `bleu`, `chrf`, `chrf++`,
            `exact`, `judge`, and the scores of the subclass.
        judge: the judge; see `judge_of`. A judging agent belongs to the environment, and acts
            second.

    Raises:
        ConfigError: an unknown score, weights that are not numbers above 0, a judge without a
            weight or vice versa, or a missing package.
    """

    label: str
    """First part of the names of tasks."""
    wanted: str
    """Name of a target in errors."""
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    instruction: str
    """Text before a row's source."""
    reward_range: tuple[float, float] | None = (0.0, 1.0)

    def __init__(
        self,
        weights: Mapping[str, float],
        judge: Any,
        agents: str | Sequence[str],
        extra: Sequence[str],
    ) -> None:
        self.judge: TextJudge | None = judge_of(judge)
        self.weights: dict[str, float] = _weights(weights, self.judge is not None, extra)
        self.writer: str = agent_names(agents, 1)[0]
        judge_agent = self.judge.agent if self.judge else None
        self.agents: tuple[str, ...] = agent_names(
            [self.writer, *([judge_agent] if judge_agent else [])]
        )
        without = {name: self.weights[name] for name in self.weights if name != "judge"}
        self.alone: Mapping[str, Any] = {"judge": None, "weights": without}
        self.expert_return: float | None = 1.0 if without else None
        judge_turns = 1 + self.judge.retries if self.judge and judge_agent else 0
        self.max_turns: int | None = 1 + judge_turns
        self._task = Task("none")
        self._text = ""
        self._tries = -1
        self._components: dict[str, float] = {}

    # -- implemented by a subclass -----------------------------------------------------------------

    def length(self, text: str) -> float:
        """Length gate from 0 to 1: whether the text has the required length."""
        return 1.0

    def foreign(self, words: Sequence[str]) -> float:
        """Fraction of disallowed words, in addition to the instruction's."""
        return 0.0

    def known(self, text: str) -> dict[str, float]:
        """The subclass's own scores, from 0 to 1."""
        return {}

    def generated(self, seed: int, split: Split) -> Task:
        """The task of a seed, without rows."""
        raise NotImplementedError

    # -- rows --------------------------------------------------------------------------------------

    def _read(self, dataset: Any, *settings: Any) -> None:
        if dataset is not None:
            self._table = RowTable(dataset, *settings, convert=self.converted)

    def columns_of(self, row: Row, where: str) -> tuple[Any, Any]:
        """The source of a row, and its target or targets."""
        source = next((text for name in self.sources if (text := plain(row.get(name)))), None)
        return source, next((row[name] for name in self.targets if row.get(name)), None)

    def converted(self, row: Row, where: str) -> Row:
        """A row with its `source` and its `references`."""
        source, target = self.columns_of(row, where)
        source, texts = plain(source), several(target)
        if source is None or (set(self.weights) - {"judge"} and not texts):
            raise DataError(
                f"{where}: needs a text ({', '.join(self.sources)}) and {self.wanted} "
                f"({', '.join(self.targets)}); it has {', '.join(row)} (rename with columns)"
            )
        return row | {"source": source, "prompt": source, "references": texts}

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is None:
            return self.generated(seed, split)
        index, row = self._table.row(seed, split)
        prompt = [Message(f"{self.instruction}\n\n{row['source']}".strip())]
        columns = {name: row[name] for name in row if name not in ("references", "source")}
        info = {**columns, "source": row["source"]}
        return Task(f"{self.label}-{split}-{index}", prompt, row["references"], seed, info)

    def ratio(self, text: str, span: LengthSpan) -> float:
        """The best score of the ratio of a text's number of characters to a reference's."""
        long = len(text.strip())
        return max((span(long / len(reference)) for reference in self.references), default=1.0)

    # -- play --------------------------------------------------------------------------------------

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task or self.task(seed or 0)
        if not isinstance(self._task.info.get("source"), str):
            raise ConfigError(f"task {self._task.id!r} has no 'source' in its info")
        self._text, self._tries, self._components = "", -1, {}
        return StepResult({self.writer: Observation(list(self._task.prompt))})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        judge = self.judge
        if self._tries < 0:
            text = stated_by(actions, self.writer)
            self._text, self._tries = text if len(text) <= MAX_TEXT else "", 0
            if judge is None:
                return self._paid(None)
            if judge.agent is None:
                return self._paid(await judge.grade(self._shown, self._text))
            question = judge.question(self._shown, self._text)
            return StepResult({judge.agent: Observation([Message(question)])})
        assert judge is not None and judge.agent is not None
        grade = read(stated_by(actions, judge.agent))
        self._tries += 1
        if grade is None and self._tries <= judge.retries:
            return StepResult({judge.agent: Observation([Message(UNREAD + ASKED)])})
        return self._paid(grade)

    def _paid(self, grade: float | None) -> StepResult:
        """The writer's reward. A grade that could not be parsed is 0, and logged as void."""
        gates = self._gates()
        factor = math.prod(gates.values())
        scores = dict.fromkeys(self.weights, 0.0)
        if factor:
            scores |= self._scores()
        if self.judge is not None:
            scores["judge"] = grade or 0.0
            gates["void"] = float(grade is None)
        total = sum(self.weights.values())
        value = sum(self.weights[name] * score for name, score in scores.items()) / total
        self._components = {**scores, **gates}
        reward = Reward(value * factor, dict(self._components))
        return StepResult(rewards={self.writer: reward}, done=True)

    def _scores(self) -> dict[str, float]:
        references, text = self.references, self._text
        values = self.known(text) if set(self.weights) - set(GENERAL) else {}
        scores = {name: values[name] for name in self.weights if name in values}
        if "exact" in self.weights:
            words = tokens(text)
            scores["exact"] = float(any(words == tokens(reference) for reference in references))
        return scores | overlap(self.weights, text, references)

    def _gates(self) -> dict[str, float]:
        words = tokens(self._text)
        if not words:
            return dict.fromkeys(GATES, 0.0)
        usual = max((_varied(tokens(reference)) for reference in self.references), default=1.0)
        varied = _DIFFERENT(_varied(words) / (usual or 1.0))
        prompt = self._shown.replace(self._task.info["source"], "\n")
        prompt_runs = {run for run in grams(tokens(prompt), COPIED) if len(run) == COPIED}
        runs = grams(words, COPIED)
        copied = sum(run in prompt_runs for run in runs) / len(runs)
        own_words = _OWN(1.0 - max(copied, self.foreign(words)))
        return {"length": self.length(self._text), "repetition": varied, "own_words": own_words}

    @property
    def references(self) -> list[str]:
        """The reference texts; the first is the answer of `expert`."""
        answer = self._task.answer
        return [answer] if isinstance(answer, str) else list(answer or [])

    @property
    def _shown(self) -> str:
        return "\n".join(message.content for message in self._task.prompt)

    def state(self) -> str:
        return f"{self._shown}\n{self._text}".strip()

    def render(self, agent: str | None = None) -> Html | None:
        """The scores and gates of the text, and the references; not for the agents."""
        if agent is not None:
            return None
        rows = list(self._components.items())
        lines = (shortened(f"reference: {text}", MOST_DRAWN) for text in self.references[:4])
        return stacked(table(rows, ("score or gate", "value")) if rows else "", *lines)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """The reference; for a judge the full grade for it and 0 for anything else."""
        if self.judge is not None and agent == self.judge.agent:
            right = tokens(self._text) in [tokens(reference) for reference in self.references]
            return f"Score: {10 if right else 0}"
        return self.references[0] if self.references else None


def _weights(setting: Mapping[str, float], judged: bool, extra: Sequence[str]) -> dict[str, float]:
    names = [*GENERAL, *extra]
    weights = {str(name): value for name, value in setting.items() if value != 0}
    for name, value in weights.items():
        if name not in names:
            raise ConfigError(f"weights.{name}: the scores are {', '.join(names)}")
        penalty(f"weights.{name}", value)
    if judged != ("judge" in weights):
        raise ConfigError("judge and its weight (weights: {judge: 1.0}) require each other")
    if not weights:
        raise ConfigError(f"weights must name at least one of {', '.join(names)}")
    check_installed(weights)
    return weights


def _varied(words: Sequence[str]) -> float:
    """Fraction of distinct pairs of words; 1 for a few words."""
    pairs = grams(words, 2)
    return 1.0 if len(words) < COPIED else len(set(pairs)) / len(pairs)


def several(value: Any) -> list[str]:
    """The texts of a column with one or several; empty if it contains anything else."""
    listed = [value] if isinstance(value, str) else value
    texts = [plain(text) for text in listed] if isinstance(listed, list | tuple) else []
    return [] if None in texts else [text for text in texts if text is not None]


def plain(value: Any) -> str | None:
    """The text of a column, or the lines of a list of texts; `None` if it is neither."""
    if isinstance(value, str):
        return value.strip() or None
    lines = list(value) if isinstance(value, list | tuple) else []
    if lines and all(isinstance(line, str) for line in lines):
        return "\n".join(lines).strip() or None
    return None
