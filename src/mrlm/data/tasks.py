"""Rows of data sets: reads lists, files, folders and hub ids into dictionaries, reports the exact
location of malformed rows, and splits off held-out rows without leakage."""

import hashlib
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mrlm.core.errors import DataError, well_formed
from mrlm.core.log import log
from mrlm.core.messages import read_message, short
from mrlm.core.types import Message, Role
from mrlm.data.presets import DatasetPreset
from mrlm.data.sources import DataSource, find

OnBadRow = Literal["raise", "skip"]
Row = dict[str, Any]
CONVERSATIONS = ("prompt", "messages", "completion", "chosen", "rejected")
"""Columns of text or messages, which are always checked."""
ANSWERS = ("completion", "chosen", "rejected")
"""Columns that may contain the answers of a team, as a mapping agent -> text."""
QUESTIONS = ("prompt", "question", "problem")
"""Columns that may contain the question, in order of precedence."""


@dataclass(slots=True)
class Reading:
    """A data set and the settings for reading it. Every iteration reads it row by row from the
    beginning.

    Args:
        source: a list of dictionaries; a `datasets.Dataset` or anything else with a length whose
            items are dictionaries; a path to a `.jsonl`, `.json` (a list of objects), `.csv` or
            `.parquet` file; a folder that was prepared or written by `save_to_disk`, with one file
            per split, or a snapshot of a repository; the name of a preset; or a hub id, with the
            configuration after a colon if it has one (`org/name:main`).
        split: the split, if the source has several; when `None`, the preset's, else `train`.
        columns: our name -> the source's name, such as `{"prompt": "question"}`.
        on_bad_row: `raise` stops at the first malformed row; `skip` drops such rows and logs their
            number.
        required: columns (by our names) that every row must have and that may not be `None`.
        max_rows: maximum number of rows; all of them when `None`.
        convert: converts a row, called with the row and its location; it raises `DataError` for a
            malformed row.
        streaming: load rows from the hub one by one, instead of the whole data set.

    Raises:
        DataError: the source cannot be read, has no rows, or a row is malformed (the message names
            file, line and column).
    """

    source: Any
    split: str | None = None
    columns: Mapping[str, str] | None = None
    on_bad_row: OnBadRow = "raise"
    required: Sequence[str] = ()
    max_rows: int | None = None
    convert: Callable[[Row, str], Row] | None = None
    streaming: bool = False
    found: DataSource = field(init=False)
    bad: list[DataError] = field(init=False, default_factory=list)
    """The malformed rows that were skipped, in the last reading."""

    def __post_init__(self) -> None:
        if self.on_bad_row not in ("raise", "skip"):
            raise DataError(f"on_bad_row must be 'raise' or 'skip', not {self.on_bad_row!r}")
        if self.max_rows is not None and self.max_rows < 1:
            raise DataError(f"max_rows must be at least 1, not {self.max_rows}")
        self.found = find(self.source)
        if self.found.preset is not None and self.found.note and self.split is None:
            log.info("%s: %s", self.found.preset.name, self.found.note)

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.pairs())

    def pairs(self) -> Iterator[tuple[Mapping[str, Any], Row]]:
        """Each original row with the converted row."""
        preset, count = self.found.preset, 0
        split = self.split or (preset and preset.train)
        self.bad = bad = []
        for where, value in self.found.rows(split, self.streaming):
            try:
                row = _checked(where, value, self.columns or {}, self.required, preset)
                row = row if self.convert is None else self.convert(row, where)
            except DataError as error:
                if self.on_bad_row == "raise":
                    raise
                bad.append(error)
                continue
            yield value, row
            count += 1
            if count == self.max_rows:
                break
        title = self.found.title
        if bad:
            text = "%s: %d malformed rows were skipped; the first: %s"
            log.warning(text, title, len(bad), bad[0])
        if not count:
            raise DataError(f"{title}: contains no {'valid ' if bad else ''}rows")


def read_rows(
    source: Any,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "raise",
    required: Sequence[str] = (),
    max_rows: int | None = None,
    convert: Callable[[Row, str], Row] | None = None,
    bad: list[DataError] | None = None,
) -> list[Row]:
    """The rows of a data set as a list of dictionaries; the arguments are those of `Reading`, and
    `bad` receives the malformed rows that were skipped."""
    reading = Reading(source, split, columns, on_bad_row, required, max_rows, convert)
    rows = list(reading)
    if bad is not None:
        bad += reading.bad
    return rows


def held_out_split(source: Any, split: str | None = None) -> str | None:
    """The held-out split of a preset, if `split` is its training split; `None` if rows have to be
    held out by their prompts."""
    preset = find(source).preset
    return preset.held_out if preset is not None and split in (None, preset.train) else None


def apart(rows: Sequence[Row], held: Sequence[Row]) -> list[Row]:
    """Those of `rows` whose prompts are not prompts of held-out rows."""
    places = {_place(row, 0) for row in held}
    return [row for row in rows if _place(row, 0) not in places]


def row_messages(value: Any, where: str = "row") -> list[Message]:
    """The conversation in a column: text (one user message), or a list of messages or `{"role",
    "content"}` objects.

    Args:
        value: the text or the list; an object may have all fields of `read_message`.

    Raises:
        DataError: it is neither, or no text.
    """
    if isinstance(value, str):
        return [Message(well_formed(value, where))]
    if not isinstance(value, Sequence) or not value:
        raise DataError(f"{where}: expected text or a list of messages, not {short(value)}")
    return [read_message(item, f"{where}, message {number}") for number, item in enumerate(value)]


def split_rows(
    rows: Sequence[Mapping[str, Any]], held_out: float = 0.1, seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """Training rows and held-out rows, in their original order. Rows with equal prompts belong to
    the same split, and a row keeps its split when other rows are added or removed, because the
    split depends only on a hash of its prompt.

    Args:
        rows: the rows; the prompt is `prompt`, else `question`, `problem`, the messages before the
            first answer, or the row.
        held_out: fraction of the prompts to hold out, between 0 and 1.
        seed: another seed gives another split.

    Returns:
        `(train, held_out)`. Both are non-empty if there are two different prompts and `held_out` is
        above 0.
    """
    if not 0.0 <= held_out < 1.0:
        raise DataError(f"held_out must be a fraction from 0 to below 1, not {held_out}")
    places = [_place(row, seed) for row in rows]
    distinct = sorted(set(places))
    if held_out == 0.0 or len(distinct) < 2:
        return list(rows), []
    bound = min(max(held_out, distinct[0]), distinct[-2])
    train = [row for row, position in zip(rows, places, strict=True) if position > bound]
    return train, [row for row, position in zip(rows, places, strict=True) if position <= bound]


def question_of(row: Mapping[str, Any]) -> Any:
    """The question of a row: its `prompt`, `question` or `problem`; `None` without any of them."""
    return next((row[name] for name in QUESTIONS if row.get(name) is not None), None)


def _checked(
    where: str,
    value: Any,
    columns: Mapping[str, str],
    required: Iterable[str],
    preset: DatasetPreset | None,
) -> Row:
    if isinstance(value, DataError):
        raise value
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected an object with named columns, not {short(value)}")
    value = {name: _plain(item) for name, item in value.items()}
    row = dict(value) if preset is None else preset.row(value, where)
    if preset is None:
        row = {name: item for name, item in row.items() if name not in columns.values()}
    for ours, theirs in columns.items():
        if theirs not in value:
            raise DataError(
                f"{where}, column {theirs!r}: missing, but columns renames it to {ours!r}; the row "
                f"has {', '.join(value)}"
            )
        row[ours] = value[theirs]
    for name in required:
        if row.get(name) is None:
            raise DataError(
                f"{where}, column {name!r}: missing; it has {', '.join(row) or 'none'} (rename "
                f"with columns: {{{name}: ...}})"
            )
    for name in CONVERSATIONS:
        if name in row:
            if name in ANSWERS and isinstance(row[name], Mapping):
                if row[name].keys() & {"role", "from"}:  # one message
                    row[name] = [row[name]]
                else:
                    row[name] = joint_answer(row[name], f"{where}, column {name!r}")
            if row.get("conversations") is None:  # in the form of another project
                row_messages(row[name], f"{where}, column {name!r}")
    return row


def _plain(value: Any) -> Any:
    """A value as a list instead of an array, in which pandas holds lists, and as text instead of
    bytes, in which Parquet may hold text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value  # no text: its reader refuses it by name
    if not getattr(value, "ndim", 0):
        return value
    return [  # also of objects, in which there may be further arrays
        {name: _plain(item) for name, item in each.items()} if isinstance(each, dict) else each
        for each in value.tolist()
    ]


def _place(row: Mapping[str, Any], seed: int) -> float:
    """A number in (0, 1) that depends only on the prompt and the seed."""
    value = question_of(row)
    if value is None and isinstance(row.get("messages"), Sequence):
        messages = row_messages(row["messages"])
        answers = [i for i, message in enumerate(messages) if message.role is Role.ASSISTANT]
        value = messages[: answers[0]] if answers else messages
    if value is None:
        text = json.dumps(dict(row), sort_keys=True, default=str)
    elif isinstance(value, Sequence):
        text = "\n".join(message.content for message in row_messages(value))
    else:
        text = str(value)
    key = f"{seed}\n{' '.join(text.split()).casefold()}"
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def joint_answer(answers: Mapping[str, Any], where: str = "row") -> str:
    """The answers of a team (agent -> text) as one text, the input of a reward model.

    Every line of an answer is indented, so that no answer can contain the heading of another.

    Raises:
        DataError: an answer is not a text.
    """
    if not answers or not all(isinstance(text, str) for text in answers.values()):
        raise DataError(f"{where}: expected agent -> text, not {short(answers)}")
    return "\n".join(
        f"{agent}:\n{textwrap.indent(text, '  ', lambda line: True)}"
        for agent, text in answers.items()
    )
