"""The recorded episodes of a run folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mrlm.record.files import EpisodeFile, rows_of


def episodes(folder: Path | str) -> list[dict[str, Any]]:
    return list(rows_of(Path(folder)))


def write(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, each as a part of its own."""
    file = EpisodeFile(folder)
    for row in rows:
        rest = {key: value for key, value in row.items() if key != "step"}
        file.append(row["step"], [rest], evaluation=row["id"].startswith("eval/"))


def played(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what credit and update computed."""
    credited = ("advantage", "return", "columns", "why")
    agents = {
        name: agent
        | {"turns": [{k: v for k, v in t.items() if k not in credited} for t in agent["turns"]]}
        for name, agent in row["agents"].items()
    }
    return {key: value for key, value in row.items() if key != "group"} | {"agents": agents}
