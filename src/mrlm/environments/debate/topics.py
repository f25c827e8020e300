"""Topics of debates: built-in motions, generated arithmetic claims, or rows of a data set."""

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.types import JSON
from mrlm.data.tasks import Row
from mrlm.environments.shared.generators import chosen
from mrlm.environments.shared.rows import RowTable, built, is_held_out, whole_number
from mrlm.environments.shared.short_answers import exact_match

Side = Literal["pro", "con"]
SIDES: tuple[Side, Side] = ("pro", "con")
OPERATIONS = "+-*"
LONGEST_ANSWER = 40
_NUMBER = re.compile(r"-?\d+(?:[.,/]\d+)*%?")


@dataclass(frozen=True, slots=True)
class Topic:
    r"""The topic of a debate.

    Args:
        claim: the claim that PRO supports and CON opposes, or a question with an `answer`.
        points: side -> its key points, which debaters are not shown.
        truth: whether the claim is true, if known.
        answer: the right answer, if the topic is a question.

    Examples:
        >>> Topic("2+2=5", truth=False).says("Let me add.\nAnswer: false")
        True
    """

    claim: str
    points: Mapping[str, Sequence[str]] = field(default_factory=dict)
    truth: bool | None = None
    answer: str | None = None

    @property
    def known(self) -> bool:
        """Whether the right answer is known."""
        return self.truth is not None or self.answer is not None

    @property
    def solution(self) -> str:
        """The right answer, as a debater should state it."""
        return str(self.answer) if self.truth is None else str(self.truth).lower()

    def says(self, text: str) -> bool:
        """Whether a message states only the right answer: after `Answer:`, or as the whole message.
        A list of guesses, or two different answers, is wrong."""
        answer = only_answer(text)
        if answer is None:
            return False
        same = _NUMBER.findall(answer) == _NUMBER.findall(self.solution)
        return same and exact_match(answer, [self.solution]) > 0

    def admits(self, answer: str) -> bool:
        """Whether an answer has the form of the right one: true or false for a claim, a number for
        a number, otherwise any text of at most 40 characters."""
        if self.truth is not None:
            return answer in ("true", "false")
        if _NUMBER.fullmatch(self.solution):
            return _NUMBER.fullmatch(answer) is not None and len(answer) <= LONGEST_ANSWER
        return 0 < len(answer) <= LONGEST_ANSWER

    def info(self) -> JSON:
        """The topic as columns of a task."""
        return asdict(self) | {"points": {side: list(texts) for side, texts in self.points.items()}}


def only_answer(text: str) -> str | None:
    """The only answer that a message states, in lower case; `None` if it states two different
    ones."""
    answers = {" ".join(answer.split()).strip(" .!*").casefold() for answer in _stated(text)}
    return answers.pop() if len(answers) == 1 else None


def _stated(text: str) -> list[str]:
    """The texts after each `Answer:` at the beginning of a line, else the whole message."""
    lines = [line.strip() for line in text[-20_000:].splitlines()]
    after = [line[7:] for line in lines if line[:7].casefold() == "answer:"]
    return after or [text[:20_000]]


@runtime_checkable
class Topics(Protocol):
    """A source of topics."""

    def count(self, split: Split) -> int | None:
        """Number of topics; `None` if unlimited."""
        ...

    def topic(self, seed: int, split: Split) -> Topic:
        """The topic of a seed (of an index, if their number is finite)."""
        ...


class Arithmetic:
    """Generated claims such as `12+7=18`, half of which are true. A false claim states a number
    near the right one.

    Args:
        max_number: largest operand; the smallest is 0.
        operations: some of `+`, `-` and `*`.
        seed: another seed gives other claims for the same task seed.

    Raises:
        ConfigError: an unknown operation, or too few claims for a held-out split.
    """

    def __init__(self, max_number: int = 20, operations: str = "+-*", seed: int = 0) -> None:
        whole_number(3, max_number=max_number)
        self.max_number = max_number
        self.operations: tuple[str, ...] = chosen(list(operations), OPERATIONS, "operations")
        self.seed = seed
        small = range(min(max_number, 9) + 1)
        sides = {
            is_held_out(self._key(a, b, op)) for a in small for b in small for op in self.operations
        }
        if len(sides) < 2:
            raise ConfigError(f"topics: max_number={max_number} leaves no held-out claim; raise it")

    def count(self, split: Split) -> int | None:
        return None

    def topic(self, seed: int, split: Split) -> Topic:
        rng = random.Random(f"debate/{self.seed}/{split}/{seed}")
        while True:
            a, b = (rng.randint(0, self.max_number) for _ in range(2))
            op = rng.choice(self.operations)
            if is_held_out(self._key(a, b, op)) == (split == "eval"):
                break
        right = {"+": a + b, "-": a - b, "*": a * b}[op]
        truth = rng.random() < 0.5
        wrong = right + rng.choice((-10, -2, -1, 1, 2, 10))
        return Topic(f"{a}{op}{b}={right if truth else wrong}", truth=truth)

    @staticmethod
    def _key(a: int, b: int, op: str) -> str:
        return f"debate {min(a, b)} {op} {max(a, b)}"


class RowTopics(RowTable):
    """Topics from rows of a data set.

    A row has `claim` (or `topic`, `motion`), optionally `pro` and `con` (lists of key points) and
    `truth` (true or false). Or it has `question` (or `prompt`) and `answer`; with `wrong` (a wrong
    answer, or a list of them) the claim is one of the answers, the right one in half of the rows.

    Args:
        dataset: anything `read_rows` accepts.
        *rows: further settings of rows, see `RowTable`.
        seed: seed of the split and of the choice of claimed answers.
        **settings: the same by name.
    """

    def __init__(self, dataset: Any, *rows: Any, seed: int = 0, **settings: Any) -> None:
        convert = partial(_converted, seed=seed)
        super().__init__(dataset, *rows, **settings, seed=seed, convert=convert)

    def topic(self, seed: int, split: Split) -> Topic:
        """The topic of a row."""
        return self.row(seed, split)[1]["topic"]


def motions() -> list[Row]:
    """The built-in motions as rows, each with key points for and against, without a truth. Key
    points are clauses without a full stop."""
    text = Path(__file__).with_name("motions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def topics_of(topics: Any, truth: bool, seed: int, *rows: Any) -> Topics:
    """Topics from a user's setting.

    Args:
        topics: `None` (arithmetic claims if `truth` is required, else the built-in motions),
            `motions`, `arithmetic`, a mapping with `kind: arithmetic` and its arguments, an object
            with `count` and `topic`, a list of claims as plain strings, or rows.
        truth: whether a known truth is required.
        seed: seed of generated claims, or of the split.

    Raises:
        ConfigError: unknown arguments.
    """
    if topics is None:
        topics = "arithmetic" if truth else "motions"
    if topics == "motions":
        return RowTopics(motions(), seed=seed)
    if topics == "arithmetic":
        return Arithmetic(seed=seed)
    if isinstance(topics, Mapping):
        arguments = dict(topics)
        if arguments.pop("kind", None) != "arithmetic":
            raise ConfigError(
                f"topics={dict(topics)!r}: a mapping needs kind: arithmetic (with max_number, "
                "operations, seed)"
            )
        return built(Arithmetic, {"seed": seed, **arguments}, "topics: arithmetic")
    if isinstance(topics, Topics):
        return topics
    listed = topics if isinstance(topics, list | tuple) else ()
    if listed and all(isinstance(text, str) for text in listed):
        topics = [{"claim": claim} for claim in listed]
    return RowTopics(topics, *rows, seed=seed)


def _converted(row: Row, where: str, seed: int) -> Row:
    topic = _topic(row, where, seed)
    return row | {"prompt": topic.claim, "topic": topic}


def _topic(row: Row, where: str, seed: int) -> Topic:
    claim = next((row[name] for name in ("claim", "topic", "motion") if row.get(name)), None)
    question = next((row[name] for name in ("question", "prompt") if row.get(name)), None)
    points = {side: _listed(row.get(side), f"{where}, column {side!r}") for side in SIDES}
    if isinstance(claim, str):
        return Topic(claim.strip(), points, _truth(row.get("truth"), where))
    answer = row.get("answer")
    if not isinstance(question, str) or answer is None or not str(answer).strip():
        raise DataError(f"{where}: a topic needs a column claim, or question and answer")
    right = str(answer).strip()
    wrong = _listed(row.get("wrong"), f"{where}, column 'wrong'")
    if not wrong:
        return Topic(question.strip(), points, answer=right)
    drawn = hashlib.blake2b(f"{seed}/{question}".encode(), digest_size=4).digest()
    truth = drawn[0] < 128
    stated = right if truth else wrong[drawn[1] % len(wrong)]
    return Topic(f"{question.strip()} The answer is: {stated}", points, truth)


def _listed(value: Any, where: str) -> tuple[str, ...]:
    values = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) and text.strip() for text in values):
        raise DataError(f"{where}: expected a text or a list of texts, not {value!r}")
    return values


def _truth(value: Any, where: str) -> bool | None:
    values = {"true": True, "false": False, "none": None}
    if str(value).casefold() not in values:
        raise DataError(f"{where}, column 'truth': expected true or false, not {value!r}")
    return values[str(value).casefold()]
