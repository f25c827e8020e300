"""The rows behind a question world: a training side and a held-out side that every copy of the
world shares."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.matters import Matters
from mrlm.data.tasks import (
    QUESTIONS,
    OnBadRow,
    Row,
    apart,
    held_out_split,
    question_of,
    read_rows,
    split_rows,
)

log = logging.getLogger("mrlm")

FEW = 10
"""Below this many rows nothing is held out: evaluation sees the training rows, and the log says
so."""

ROW_SETTINGS = ("eval_dataset", "split", "columns", "on_bad_row")
"""Arguments that say how rows are read."""


def row_matters(
    *sources: str,
    rows: Sequence[str] = (),
    generated: Sequence[str] = (),
    kinds: Collection[str] = (),
) -> dict[str, Matters]:
    """Conditions of the arguments of an environment that takes rows or generates its tasks.

    Args:
        sources: arguments that may hold the rows.
        rows: further arguments that matter only where there are rows.
        generated: arguments that matter only where there are none.
        kinds: names of what is generated, as values of `sources`.
    """

    def has_rows(settings: Any) -> bool:
        given = [getattr(settings, name) for name in sources]
        found = [each for each in given if each is not None and not isinstance(each, Mapping)]
        return any(not isinstance(each, str) or each not in kinds for each in found)

    read = Matters(
        lambda s, run: has_rows(s),
        f"tasks are generated here, and it is about rows; set {sources[0]}, or remove it",
    )
    drawn = Matters(
        lambda s, run: not has_rows(s),
        f"it is about generated tasks, and {sources[0]} holds rows; remove one of the two",
    )
    return dict.fromkeys((*ROW_SETTINGS, *rows), read) | dict.fromkeys(generated, drawn)


class Table:
    """Rows by split; never copied with the world that reads it.

    Args:
        dataset: anything `read_rows` takes.
        eval_dataset: held-out rows (of a preset, those it holds out); when `None`, the split that a
            preset holds out, else a tenth of the prompts of `dataset`.
        split: which split of `dataset`, where it has several.
        columns: our name -> the source's name.
        on_bad_row: `raise` or `skip`.
        required: columns that every row must have.
        held_out: share of the prompts that is held out.
        seed: of the split.
        convert: makes of every row, and of where it stands, the row that is wanted.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        required: Sequence[str] = (),
        held_out: float = 0.1,
        seed: int = 0,
        convert: Callable[[Row, str], Row] | None = None,
    ) -> None:
        read = partial(
            read_rows, columns=columns, on_bad_row=on_bad_row, required=required, convert=convert
        )
        rows = read(dataset, split=split)
        own = held_out_split(dataset, split)
        if eval_dataset is not None:
            held = read(eval_dataset, split=held_out_split(eval_dataset))
        elif own is not None:
            held = read(dataset, split=own)
            kept = apart(rows, held)
            if len(kept) < len(rows):
                log.warning(
                    "%s: %d training rows have the prompt of a held-out row and are left out",
                    dataset,
                    len(rows) - len(kept),
                )
            rows = kept
        elif len(rows) < FEW:
            log.warning(
                "%d rows are too few to hold some out: evaluation uses the training rows", len(rows)
            )
            held = rows
        else:
            rows, held = split_rows(rows, held_out, seed)
            held = held or rows
        self._rows: dict[str, list[Row]] = {"train": rows, "eval": held}

    def __len__(self) -> int:
        return len(self._rows["train"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        return self

    def count(self, split: Split) -> int:
        """How many rows a split has."""
        return len(self._rows[split])

    def row(self, seed: int, split: Split) -> tuple[int, Row]:
        """The index of a seed in its split, and the row."""
        index = seed % len(self._rows[split])
        return index, self._rows[split][index]


def answered(answers: Sequence[str], row: Row, where: str) -> Row:
    """A row, checked to have a question and an answer.

    Args:
        answers: columns that may hold the answer, in the order in which they are looked for.
        row, where: the row and its place.

    Raises:
        DataError: one of them is missing or null.
    """
    if question_of(row) is None:
        raise DataError(
            f"{where}: it needs a question ({', '.join(QUESTIONS)}); it has {', '.join(row)} "
            "(rename with columns)"
        )
    if all(row.get(name) is None for name in answers):
        null = [name for name in answers if name in row]
        raise DataError(
            f"{where}: its {null[0]!r} is null; give every row an answer, or leave such rows out "
            "with on_bad_row: skip"
            if null
            else f"{where}: it needs an answer ({', '.join(answers)}); it has {', '.join(row)} "
            "(rename with columns)"
        )
    return row


def others(row: Row) -> Row:
    """The columns that travel in `Task.info`: all but `answer`, which the task holds in its own
    field."""
    return {name: value for name, value in row.items() if name != "answer"}


def is_held_out(key: str) -> bool:
    """Whether a generated problem belongs to the held-out tenth: decided by the problem, so that
    no seed can leak it."""
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] < 26


def at_least(name: str, value: Any, least: float, whole: bool = False) -> None:
    """Check a numeric argument.

    Raises:
        ConfigError: it is no number, below `least`, or not whole where that is wanted.
    """
    numeric = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not numeric or not value >= least:
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name} must be {kind} of at least {least:g}, not {value!r}")


def seats(agents: Any, count: int | None = None) -> tuple[str, ...]:
    """Names of seats from what a user wrote.

    Raises:
        ConfigError: no names, a name twice, or not `count` of them.
    """
    names = (agents,) if isinstance(agents, str) else tuple(agents)
    if (
        not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise ConfigError(f"agents must be different names, not {agents!r}")
    if count is not None and len(names) != count:
        raise ConfigError(
            f"this world has {count} seats; agents names {len(names)}: {', '.join(names)}"
        )
    return names
