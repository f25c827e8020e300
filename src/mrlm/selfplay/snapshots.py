"""Snapshots of a run's policies: one folder each, which this run and its checkpoints refer to by
name."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mrlm.core.errors import CheckpointError
from mrlm.core.process_group import Peers
from mrlm.learn.checkpoint import (
    MANIFEST,
    checkpoints,
    clear_temporaries,
    read_state,
    verify,
    write_folder,
)

FOLDER = "snapshots"


@dataclass(frozen=True, slots=True)
class PastPlayer:
    """A snapshot of a policy, called `<policy>@<step>` like its folder, `step` being the iterations
    completed when it was taken; of an external source `<policy>@<source>`, with step `None`."""

    name: str
    policy: str
    step: int | None


@dataclass(frozen=True, slots=True)
class SnapshotFolder:
    """The folders of the snapshots of a run, written by the main one of its processes."""

    run_folder: Path
    peers: Peers

    @property
    def folder(self) -> Path:
        return self.run_folder / FOLDER

    def add(self, name: str, fill: Callable[[Path], None]) -> None:
        """Write a snapshot with the function that fills its folder."""
        self.peers.first(lambda: write_folder(self.folder / name, fill))

    def tidy(self, needed_names: Collection[str]) -> None:
        """Remove snapshots that are neither kept nor needed by a checkpoint of the run."""
        self.peers.first(lambda: self._tidy(needed_names))

    def find(self, names: Collection[str], needed_names: Collection[str], run_folder: Path) -> None:
        """Verify snapshots, copying missing ones from another run's folder, and tidy up; a
        `CheckpointError` if one is damaged or missing."""
        self.peers.first(lambda: self._find(names, needed_names, run_folder))

    def _tidy(self, active: Collection[str]) -> None:
        needed = set(active)
        for checkpoint in checkpoints(self.run_folder):
            try:
                needed |= members_of(read_state(checkpoint)["parts"]["population"])
            except ValueError:  # the players of a damaged checkpoint are unknown: remove nothing
                return
        for folder in self.folder.glob("*@*"):
            if folder.name not in needed:
                shutil.rmtree(folder)

    def _find(self, names: Collection[str], active: Collection[str], run_folder: Path) -> None:
        clear_temporaries(self.folder)
        for name in sorted(names):
            if not (self.folder / name).is_dir():
                write_folder(self.folder / name, partial(_copy, run_folder / FOLDER / name))
            damage = verify(self.folder / name)
            if damage is not None:
                raise CheckpointError(
                    f"{self.folder / name}: this opponent snapshot is damaged ({damage}); restore "
                    "it from a copy, or start without --resume"
                )
        self._tidy(active)


def members_of(state: Mapping[str, Any]) -> set[str]:
    """Names of the past players in the saved state of a population."""
    return {row["name"] for rows in state["past"].values() for row in rows}


def thinned(past: Sequence[PastPlayer], keep: int) -> list[PastPlayer]:
    """Past players with at most `keep` snapshots of this run: each time the one whose neighbours
    are closest together is dropped, the older of ties; never the first or the newest."""
    left = list(past)
    while len(taken := [player for player in left if player.step is not None]) > keep:
        steps = [player.step or 0 for player in taken]
        index = min(range(1, len(taken) - 1), key=lambda i: steps[i + 1] - steps[i - 1])
        left.remove(taken[index])
    return left


def _copy(source: Path, folder: Path) -> None:
    """Fills a folder with the files of another one."""
    if not source.is_dir():
        raise CheckpointError(f"{source}: opponent snapshot is missing; restore it from a copy")
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
