"""Rows of data sets: reads lists, files, folders and hub ids into dictionaries, says exactly where
a row is malformed, and holds rows out without leaking. It knows nothing of agents, worlds or
tokens."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mrlm.core.errors import DataError
from mrlm.core.types import Message, Role

log: logging.Logger = logging.getLogger("mrlm")

OnBadRow = Literal["raise", "skip"]
Row = dict[str, Any]
Located = tuple[str, Any]
"""Where a row stands, in words, and the row; a row that could not be read is a `DataError`."""

FILE_TYPES = (".jsonl", ".json", ".csv", ".parquet")
CONVERSATIONS = ("prompt", "messages", "completion", "chosen", "rejected")
"""Columns that hold text or messages and are checked wherever they occur."""
QUESTIONS = ("prompt", "question", "problem")
"""Columns that may hold what is asked, in the order in which they are looked for."""
NEEDS_EXTRA = 'needs the packages datasets and pyarrow: pip install "mrlm[data]"'


def read_rows(
    source: Any,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "raise",
    required: Sequence[str] = (),
    max_rows: int | None = None,
    convert: Callable[[Row, str], Row] | None = None,
) -> list[Row]:
    """The rows of a data set as a list of dictionaries.

    Args:
        source: a list of dictionaries; a `datasets.Dataset` or anything else with a length whose
            items are dictionaries; a path to a `.jsonl`, `.json` (a list of objects), `.csv` or
            `.parquet` file; a `save_to_disk` folder; a folder with `train.jsonl` and the like; or a
            hub id, with the configuration after a colon if it has one (`org/name:main`).
        split: which split, where the source has several; `train` when `None`.
        columns: our name -> the source's name, such as `{"prompt": "question"}`.
        on_bad_row: `raise` stops at the first malformed row; `skip` drops such rows and logs how
            many.
        required: columns (by our names) that every row must have and that may not be `None`.
        max_rows: how many rows to read at most; all of them when `None`.
        convert: makes of a row, and of where it stands in words, the row that is wanted; it raises
            `DataError` for one that is malformed.

    Raises:
        DataError: the source cannot be read, has no rows, or a row is malformed (the message names
            file, line and column).
    """
    if on_bad_row not in ("raise", "skip"):
        raise DataError(f"on_bad_row must be 'raise' or 'skip', not {on_bad_row!r}")
    if max_rows is not None and max_rows < 1:
        raise DataError(f"max_rows must be at least 1, not {max_rows}")
    rows: list[Row] = []
    bad: list[DataError] = []
    for where, value in _located(source, split):
        try:
            row = _checked(where, value, columns or {}, required)
            rows.append(row if convert is None else convert(row, where))
        except DataError as error:
            if on_bad_row == "raise":
                raise
            bad.append(error)
        if len(rows) == max_rows:
            break
    if bad:
        log.warning(
            "%s: %d malformed rows were skipped; the first: %s", _title(source), len(bad), bad[0]
        )
    if not rows:
        raise DataError(f"{_title(source)}: there is no {'usable ' if bad else ''}row in it")
    return rows


def row_messages(value: Any, where: str = "row") -> list[Message]:
    """A conversation as a row holds it: text (one user message), or a list of messages or `{"role",
    "content"}` objects.

    Args:
        value: the text or the list; an object may also have `agent` and `tool_calls`.
        where: named in the error.

    Raises:
        DataError: it is neither.
    """
    if isinstance(value, str):
        return [Message(value)]
    if not isinstance(value, Sequence) or not value:
        raise DataError(f"{where}: expected text or a list of messages, not {_short(value)}")
    return [_message(item, f"{where}, message {number}") for number, item in enumerate(value)]


def split_rows(
    rows: Sequence[Mapping[str, Any]], held_out: float = 0.1, seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """Training rows and held-out rows, in their order. Rows with equal prompts fall on the same
    side, and a row keeps its side when other rows come or go, because only a hash of its prompt
    decides.

    Args:
        rows: the rows; the prompt is `prompt`, else `question`, `problem`, the messages before the
            first answer, or the row.
        held_out: share of the prompts to hold out, between 0 and 1.
        seed: another seed is another split.

    Returns:
        `(train, held_out)`. Both have rows if there are two different prompts and `held_out` is
        above 0.
    """
    if not 0.0 <= held_out < 1.0:
        raise DataError(f"held_out is a share of the prompts, from 0 to below 1, not {held_out}")
    places = [_place(row, seed) for row in rows]
    distinct = sorted(set(places))
    if held_out == 0.0 or len(distinct) < 2:
        return list(rows), []
    bound = min(max(held_out, distinct[0]), distinct[-2])
    train = [row for row, place in zip(rows, places, strict=True) if place > bound]
    return train, [row for row, place in zip(rows, places, strict=True) if place <= bound]


def question_of(row: Mapping[str, Any]) -> Any:
    """What a row asks: its `prompt`, `question` or `problem`; `None` if it has none of them."""
    return next((row[name] for name in QUESTIONS if row.get(name) is not None), None)


# -- sources ---------------------------------------------------------------------------------------


def _located(source: Any, split: str | None) -> Iterator[Located]:
    if isinstance(source, str) and not source.strip():
        raise DataError("the data set has no name: give a list, a path or a hub id")
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if path.is_dir():
            return _folder(path, split)
        if path.is_file():
            return _file(path)
        text = str(source)
        if path.suffix.lower() in FILE_TYPES or text.startswith(("/", ".", "~")):
            raise DataError(f"data set {text!r}: there is no such file or folder")
        return _hub(text, split)
    if isinstance(source, Mapping):
        return _items(_pick(source, split, "the data set"), "row")
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            f"a data set is a list of dictionaries, a Dataset, a path or a hub id, not "
            f"{type(source).__name__}"
        )
    return _items(source, "row")


def _items(source: Any, word: str) -> Iterator[Located]:
    return ((f"{word} {index}", source[index]) for index in range(len(source)))


def _pick(splits: Mapping[str, Any], split: str | None, title: str) -> Any:
    """One split of several."""
    name = split or "train"
    if name not in splits:
        raise DataError(
            f"{title}: there is no split {name!r} (there are: {', '.join(map(str, splits))})"
        )
    return splits[name]


def _folder(folder: Path, split: str | None) -> Iterator[Located]:
    if any((folder / marker).is_file() for marker in ("state.json", "dataset_dict.json")):
        loaded = _datasets(f"data set {str(folder)!r}").load_from_disk(str(folder))
        loaded = _pick(loaded, split, str(folder)) if isinstance(loaded, Mapping) else loaded
        return _items(loaded, f"{folder}, row")
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in FILE_TYPES]
    wanted = [path for path in files if path.stem == (split or "train")]
    if not wanted and split is None and len(files) == 1:
        wanted = files
    if len(wanted) != 1:
        found = ", ".join(path.name for path in files) or "no data file"
        raise DataError(
            f"data set folder {str(folder)!r}: expected one file {split or 'train'}.jsonl (or "
            f".json, .csv, .parquet), or a "
            f"save_to_disk folder; found {found}"
        )
    return _file(wanted[0])


def _file(path: Path) -> Iterator[Located]:
    readers: dict[str, Callable[[Path], Iterator[Located]]] = {
        ".jsonl": _jsonl,
        ".json": _json,
        ".csv": _csv,
        ".parquet": _parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"data set {str(path)!r}: a file must end in {', '.join(FILE_TYPES)}")
    return reader(path)


def _jsonl(path: Path) -> Iterator[Located]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield (
                    where,
                    _parsed(line, lambda error, where=where: f"{where}, column {error.colno}"),
                )


def _json(path: Path) -> Iterator[Located]:
    value = _parsed(
        path.read_bytes(), lambda error: f"{path}, line {error.lineno}, column {error.colno}"
    )
    if isinstance(value, DataError):
        raise value
    if not isinstance(value, list):
        raise DataError(
            f"{path}: expected a list of objects, not {type(value).__name__}; one object per line "
            f"is .jsonl"
        )
    yield from _items(value, f"{path}, item")


def _parsed(text: bytes, where: Callable[[json.JSONDecodeError], str]) -> Any:
    """The JSON value, or what is wrong with it."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return DataError(f"{where(error)}: not valid JSON ({error.msg})")
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        at = where(json.JSONDecodeError("", "", 0))
        return DataError(f"{at}: not valid JSON ({error})")


def _csv(path: Path) -> Iterator[Located]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            if not names or len(set(names)) != len(names):
                raise DataError(
                    f"{path}, line 1: the first line must name the columns, each once; it is "
                    f"{names}"
                )
            for values in reader:
                where = f"{path}, line {reader.line_num}"
                if len(values) == len(names):
                    yield where, dict(zip(names, values, strict=True))
                elif values:
                    problem = f"{len(values)} values for {len(names)} columns"
                    name = names[min(len(values), len(names) - 1)]
                    yield where, DataError(f"{where}, column {name!r}: {problem}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not readable as UTF-8 CSV ({error})") from error


def _parquet(path: Path) -> Iterator[Located]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: reading parquet {NEEDS_EXTRA}") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from error
    return _items(table.to_pylist(), f"{path}, row")


def _hub(name: str, split: str | None) -> Iterator[Located]:
    datasets = _datasets(f"data set {name!r}")
    identifier, _, configuration = name.partition(":")
    try:
        loaded = datasets.load_dataset(identifier, configuration or None, split=split or "train")
    except (
        Exception
    ) as error:  # whatever the hub client raises, the user needs the id and the way out
        local = identifier.rsplit("/", 1)[-1]
        reason = str(error).split("\n")[0] or type(error).__name__
        raise DataError(
            f"data set {name!r} is no local path and could not be loaded from the hub ({reason}); "
            f"without a network give a "
            f"local file instead, for example {local}.jsonl with one row per line, or a "
            f"save_to_disk folder"
        ) from error
    return _items(loaded, f"{name}, row")


def _datasets(title: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{title} {NEEDS_EXTRA}") from error
    return datasets


# -- rows ------------------------------------------------------------------------------------------


def _checked(where: str, value: Any, columns: Mapping[str, str], required: Iterable[str]) -> Row:
    if isinstance(value, DataError):
        raise value
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected an object with named columns, not {_short(value)}")
    row = dict(value)
    for ours, theirs in columns.items():
        if theirs not in value:
            raise DataError(
                f"{where}, column {theirs!r}: missing (it was to become {ours!r}); it has "
                f"{', '.join(value)}"
            )
    moved = {ours: value[theirs] for ours, theirs in columns.items()}
    row = {name: item for name, item in row.items() if name not in set(columns.values())} | moved
    for name in required:
        if row.get(name) is None:
            raise DataError(
                f"{where}, column {name!r}: missing; it has {', '.join(row) or 'none'} (rename "
                f"with columns: {{{name}: ...}})"
            )
    for name in CONVERSATIONS:
        if name in row:
            row_messages(row[name], f"{where}, column {name!r}")
    return row


def _message(item: Any, where: str) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or "role" not in item:
        raise DataError(
            f"{where}: expected an object with 'role' and 'content', not {_short(item)}"
        )
    content = "" if item.get("content") is None and item.get("tool_calls") else item.get("content")
    if not isinstance(content, str):
        raise DataError(f"{where}: 'content' must be text, not {_short(content)}")
    if item["role"] not in set(Role):
        raise DataError(
            f"{where}: there is no role {item['role']!r} (there are: {', '.join(Role)})"
        )
    return Message(
        content, Role(item["role"]), item.get("agent"), tuple(item.get("tool_calls") or ())
    )


def _place(row: Mapping[str, Any], seed: int) -> float:
    """A number in (0, 1) that depends on the prompt and the seed alone."""
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


def _title(source: Any) -> str:
    return f"data set {str(source)!r}" if isinstance(source, str | Path) else "the data set"


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'...' if len(text) > 60 else ''}"
