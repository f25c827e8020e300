r"""Data sets with short names: their hub ids, the meaning of their columns, their training and
held-out splits. The table is `presets.yaml`; rows are read in `data/sources.py`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mrlm.core.content import content
from mrlm.core.errors import DataError
from mrlm.data.final_answer import after_hashes, boxed

Extract = Callable[[Any], Any]
"""Function that extracts a value from a column; `None` leaves the column out."""


@dataclass(frozen=True, slots=True)
class DatasetPreset:
    r"""A data set with a short name.

    Args:
        hub: its id on the hub.
        about: a short description.
        columns: our name -> its name, of the columns that every row has.
        keep: further optional columns, under their own names.
        extract: our name -> function that extracts its value, such as the `42` of `... #### 42`.
        config: its configuration on the hub, also the folder in a snapshot of it.
        train: the training split.
        held_out: the held-out split; `None`: a tenth of the prompts of `train`.
        environment: the environment of its rows, by name, if there is one in which an expert can
            play them.
        revision, files: revision and files (split -> files) on the hub, if the data are not in the
            main branch.
    """

    name: str
    hub: str
    about: str
    columns: Mapping[str, str]
    keep: tuple[str, ...] = ()
    extract: Mapping[str, Extract] = field(default_factory=dict)
    config: str | None = None
    train: str = "train"
    held_out: str | None = None
    environment: str | None = None
    revision: str | None = None
    files: Mapping[str, str] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits in use: training, and held out."""
        return (self.train, self.held_out) if self.held_out else (self.train,)

    def row(self, value: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A row under our names; `where` is its location, for errors. Raises `DataError`: a column
        is missing, or contains no answer."""
        row: dict[str, Any] = {}
        for ours, theirs in self.columns.items():
            if value.get(theirs) is None:
                raise DataError(
                    f"{where}, column {theirs!r}: missing; the preset {self.name!r} needs it, and "
                    f"the row has {', '.join(map(str, value)) or 'none'}"
                )
            read = self.extract.get(ours)
            if read is None:
                row[ours] = value[theirs]
                continue
            try:
                extracted = read(value[theirs])
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise DataError(f"{where}, column {theirs!r}: {error}") from error
            if extracted is not None:
                row[ours] = extracted
        return row | {name: value[name] for name in self.keep if value.get(name) is not None}


def _found(search: Callable[[str], str | None], where: str, text: str) -> str:
    answer = search(text)
    if not answer:
        raise ValueError(f"no answer {where}")
    return answer


def _answers(value: Any) -> list[str]:
    answers = [value] if isinstance(value, str) else [str(answer) for answer in value]
    if not any(answer.strip() for answer in answers):
        raise ValueError("no answer")
    return answers


def _first_program(value: str) -> str | None:
    """The first solution of a JSON list in a text; `None` for rows without one."""
    programs = json.loads(value) if value.strip() else []
    return programs[0] if programs else None


EXTRACTS: dict[str, Extract] = {
    "after_hashes": partial(_found, after_hashes, "after '####'"),
    "boxed": partial(_found, boxed, "in a \\boxed{}"),
    "answers": _answers,
    "number": "{:.12g}".format,
    "first_program": _first_program,
}
"""The names of functions in the table."""


def _preset(name: str, row: dict[str, Any]) -> DatasetPreset:
    extract = {ours: EXTRACTS[how] for ours, how in row.get("extract", {}).items()}
    return DatasetPreset(name, **{**row, "extract": extract, "keep": tuple(row.get("keep", ()))})


PRESETS: dict[str, DatasetPreset] = {
    name: _preset(name, row) for name, row in content(__file__).items()
}
"""Name -> data set (`presets.yaml`)."""
