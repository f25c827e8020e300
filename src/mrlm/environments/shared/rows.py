"""Rows of an environment: a training and a held-out split shared by all its copies."""

import difflib
import hashlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.log import log
from mrlm.core.matters import Matters
from mrlm.data.tasks import OnBadRow, Row, apart, held_out_split, read_rows, split_rows

T = TypeVar("T")

FEW = 10
"""Below this many rows none are held out: evaluation uses the training rows, with a log message."""

ABOVE_NOTHING = 0.001
"""Least return of the expert where the own answers of rows need not get the full reward."""

ROW_SETTINGS = ("eval_dataset", "split", "columns", "on_bad_row")
"""Arguments for reading rows."""


def row_matters(
    *sources: str,
    rows: Sequence[str] = (),
    generated: Sequence[str] = (),
    kinds: Collection[str] = (),
) -> dict[str, Matters]:
    """Conditions on the arguments of an environment that reads rows or generates its tasks.

    Args:
        sources: arguments that may contain the rows.
        rows: further arguments that matter only with rows.
        generated: arguments that matter only without rows.
        kinds: values of `sources` that name generated tasks.
    """

    def has_rows(settings: Any) -> bool:
        values = [getattr(settings, name) for name in sources]
        datasets = [
            value for value in values if value is not None and not isinstance(value, Mapping)
        ]
        return any(not isinstance(value, str) or value not in kinds for value in datasets)

    read = Matters(
        lambda s, run: has_rows(s),
        f"it applies to rows, and tasks are generated here; set {sources[0]}, or remove it",
    )
    drawn = Matters(
        lambda s, run: not has_rows(s),
        f"it applies to generated tasks, and {sources[0]} contains rows; remove one of the two",
    )
    return dict.fromkeys((*ROW_SETTINGS, *rows), read) | dict.fromkeys(generated, drawn)


class SharedByCopies:
    """An object that all copies of an environment share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class RowTable(SharedByCopies):
    """Rows by split.

    Args:
        dataset: anything `read_rows` accepts.
        eval_dataset: held-out rows (of a preset, its held-out split); when `None`, the held-out
            split of a preset, else a tenth of the prompts of `dataset`.
        split: split of `dataset`, if it has several.
        columns: our name -> the source's name.
        on_bad_row: `raise` or `skip`.
        seed: seed of the split into training and held-out rows.
        required: columns that every row must have.
        convert: converts a row; it is called with the row and its location.
    """

    def __init__(
        self,
        dataset: Any,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        seed: int = 0,
        *,
        required: Sequence[str] = (),
        convert: Callable[[Row, str], Row] | None = None,
    ) -> None:
        self.on_bad_row = on_bad_row
        self.proved = False
        """Whether the expert is known to be rewarded for its rows (`play.proof`)."""
        self.bad: list[DataError] = []
        """Malformed rows that were skipped."""
        read = partial(
            read_rows,
            columns=columns,
            on_bad_row=on_bad_row,
            required=required,
            convert=convert,
            bad=self.bad,
        )
        rows = read(dataset, split=split)
        eval_split = held_out_split(dataset, split)
        if eval_dataset is False:
            held = rows
        elif eval_dataset is not None:
            held = read(eval_dataset, split=held_out_split(eval_dataset))
        elif eval_split is not None:
            held = read(dataset, split=eval_split)
            train_rows = apart(rows, held)
            if count := len(rows) - len(train_rows):
                words = "%s: %d training rows have the prompt of a held-out row and are left out"
                log.warning(words, dataset, count)
            rows = train_rows
        elif len(rows) < FEW:
            log.warning(
                "too few rows to hold some out (%d): evaluation uses the training rows unless "
                "eval_dataset is given",
                len(rows),
            )
            held = rows
        else:
            rows, held = split_rows(rows, seed=seed)
            held = held or rows
        self._rows: dict[str, list[Row]] = {"train": rows, "eval": held}

    def count(self, split: Split) -> int:
        """Number of rows of a split."""
        return len(self._rows[split])

    def drop(self, split: Split, places: Collection[int]) -> None:
        """Leave rows of a split out."""
        rows = enumerate(self._rows[split])
        self._rows[split] = [row for index, row in rows if index not in places]

    def row(self, seed: int, split: Split) -> tuple[int, Row]:
        """The row of a seed, preceded by its index in the split."""
        index = seed % len(self._rows[split])
        return index, self._rows[split][index]


class RowTasks:
    """The part of an environment whose tasks are the rows of a data set, where it has one; a base
    before `Environment`. Copies share the settings; everything else is set by `reset`."""

    blocking: bool = False
    expert_return: float | None = None
    """Least return of every agent in an episode that the expert plays; it is proved for each row
    when a run starts. `None`: it is not known."""
    slow_proof: bool = False
    """Whether the proof takes so long that it is cached."""
    alone: Mapping[str, Any] = MappingProxyType({})
    """Attributes of a copy in which the expert plays a row, where they differ: no judge, tool or
    other service is called."""
    _table: RowTable | None = None

    @property
    def row_table(self) -> RowTable | None:
        """The rows, if it has any."""
        return self._table

    def prover(self) -> Self:
        """A copy in which the expert plays a row: alone, and patient, so that none fails by
        chance."""
        twin = self.spawn()
        twin.__dict__.update(self.alone)
        return twin

    def __new__(cls, *args: Any, **named: Any) -> Any:
        choices = _choices(cls)
        for name, value in {**dict(zip(choices, args, strict=False)), **named}.items():
            if choices.get(name):
                one_of(name, value, choices[name])
        return super().__new__(cls, *args, **named)

    def num_tasks(self, split: Split = "train") -> int | None:
        return None if self._table is None else self._table.count(split)

    def spawn(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)  # `copy.copy` takes five times as long
        return twin


@cache
def _choices(cls: type[Any]) -> dict[str, tuple[str, ...]]:
    """The arguments of a constructor in order, each with the words that it may be, if it is of a
    type `Literal`."""
    try:
        hints = get_type_hints(cls.__init__)
    except NameError:  # a user's class may import types for type checkers only
        return {}
    names = [*inspect.signature(cls.__init__).parameters][1:]
    literals = (name for name in names if get_origin(hints.get(name)) is Literal)
    return dict.fromkeys(names, ()) | {name: get_args(hints[name]) for name in literals}


def others(row: Row) -> Row:
    """The columns for `Task.info`: all but `answer`, which has its own field in the task."""
    return {name: value for name, value in row.items() if name != "answer"}


def is_held_out(key: str) -> bool:
    """Whether a generated problem belongs to the held-out tenth: decided by its text, so that no
    seed can leak it."""
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] < 26


def at_least(least: float, most: float = math.inf, /, **settings: Any) -> None:
    """Raise a `ConfigError` unless all settings are numbers in this range."""
    _in_range("a number", int | float, least, most, settings)


def whole_number(least: int, most: float = math.inf, /, **settings: Any) -> None:
    """Raise a `ConfigError` unless all settings are whole numbers in this range."""
    _in_range("a whole number", int, least, most, settings)


def _in_range(
    kind: str, types: Any, least: float, most: float, settings: Mapping[str, Any]
) -> None:
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, types) or not value >= least:
            raise ConfigError(f"{name} must be {kind} of at least {least:g}, not {value!r}")
        if value > most:
            raise ConfigError(f"{name} must be at most {most:g}, not {value!r}")


def level_settings(
    levels: Mapping[int, Mapping[str, int]], level: Any, **settings: int | None
) -> dict[str, int]:
    """The settings of a level of difficulty, some of them replaced.

    Args:
        levels: level -> its settings.
        level: the user's choice.
        **given: the user's own settings; `None` is that of the level.

    Raises:
        ConfigError: the level is not one of `levels`.
    """
    if isinstance(level, bool) or level not in levels:
        names = ", ".join(map(str, levels))
        raise ConfigError(f"level must be one of {names}, not {level!r}")
    overrides = {name: value for name, value in settings.items() if value is not None}
    return {**levels[level], **overrides}


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise a `ConfigError` unless a setting is one of the known words."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}{hint}")


def penalty(name: str, value: Any) -> float:
    """A penalty from a user's setting, or a `ConfigError` unless it is a finite number above 0."""
    if not is_number(value) or not value > 0:
        raise ConfigError(f"{name} must be a finite number above 0, not {value!r}")
    return float(value)


def is_number(value: Any) -> bool:
    """Whether a user's setting is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def built(plugin: Callable[..., T], arguments: Mapping[str, Any], where: str) -> T:
    """The object that a class or function makes from settings, or a `ConfigError` if it does not
    accept them."""
    try:
        inspect.signature(plugin).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error
    return plugin(**arguments)


def agent_names(agents: Any, count: int | None = None) -> tuple[str, ...]:
    """Names of agents from a user's setting, or a `ConfigError` if there are none, two are equal,
    or they are not `count`."""
    names = (agents,) if isinstance(agents, str) else tuple(agents)
    plain = all(isinstance(name, str) and name for name in names)
    if not names or not plain or len(set(names)) < len(names):
        raise ConfigError(f"agents must be different names, not {agents!r}")
    if count is not None and len(names) != count:
        raise ConfigError(
            f"agents: this environment has {count}, but {len(names)} are named: {', '.join(names)}"
        )
    return names
