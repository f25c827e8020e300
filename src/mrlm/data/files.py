"""Files of rows: JSONL, JSON, CSV and parquet, read row by row, each row with its location."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from mrlm.core.errors import DataError

Located = tuple[str, Any]
"""The location of a row as text, and the row; a row that could not be read is a `DataError`."""

CELL = 1 << 30
"""Characters of a cell of a CSV file; the reader's own limit is 131,072."""
FILE_TYPES = (".jsonl", ".json", ".csv", ".parquet")
NEEDS_EXTRA = 'needs the packages datasets and pyarrow: pip install "mrlm[data]"'


def items(source: Any, word: str) -> Iterator[Located]:
    """The items of a list or a similar sequence."""
    return ((f"{word} {index}", source[index]) for index in range(len(source)))


def read_file(path: Path) -> Iterator[Located]:
    """The rows of a file, one by one; only `.json` is read as a whole. Raises `DataError`: the file
    type is unknown, or the file cannot be read."""
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"data set {str(path)!r}: a file must end in {', '.join(FILE_TYPES)}")
    return reader(path)


def _jsonl(path: Path) -> Iterator[Located]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}, line {number}", _parsed(line.rstrip(), path, number)


def _json(path: Path) -> Iterator[Located]:
    value = _parsed(path.read_bytes(), path)
    if isinstance(value, DataError):
        raise value
    if not isinstance(value, list):
        raise DataError(
            f"{path}: expected a list of objects, not {type(value).__name__}; one object per line "
            "is .jsonl"
        )
    yield from items(value, f"{path}, item")


def _parsed(text: bytes, path: Path, first: int = 1) -> Any:
    """The JSON value of a text that begins in line `first` of a file, or a `DataError`."""
    line, column, problem = 1, 1, ""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        line, column, problem = error.lineno, error.colno, error.msg
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        problem = str(error)
    location = f"{path}, line {first + line - 1}, column {column}"
    return DataError(f"{location}: not valid JSON ({problem})")


def _csv(path: Path) -> Iterator[Located]:
    try:
        csv.field_size_limit(CELL)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            if not names or len(set(names)) != len(names):
                raise DataError(
                    f"{path}, line 1: expected the names of the columns, each once, not {names}"
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
        with pyarrow.parquet.ParquetFile(path) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
            for index, row in enumerate(chain.from_iterable(batches)):
                yield f"{path}, row {index}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from error


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows one by one, one per line; returns their number."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return count


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as a parquet file; returns their number. All of them are held in memory. Raises
    `DataError`: the packages are missing, or a column contains values of different types."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: writing parquet {NEEDS_EXTRA}") from error
    try:
        table = pyarrow.Table.from_pylist([dict(row) for row in rows])
        pyarrow.parquet.write_table(table, path)
    except pyarrow.ArrowException as error:
        reason = f"cannot be written as parquet; use jsonl ({error})"
        raise DataError(f"{path.name}: {reason}") from error
    return table.num_rows
