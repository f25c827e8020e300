"""Checkpoints appear whole or not at all, and damage is found."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from mrlm.core.errors import CheckpointError
from mrlm.learn.checkpoint import (
    checkpoints,
    newest_verified,
    verify,
    write_folder,
    write_json,
)


def make(folder: Path, step: int, text: str = "x" * 1000) -> Path:
    target = folder / f"checkpoint-{step}"

    def fill(temporary: Path) -> None:
        (temporary / "deep").mkdir()
        (temporary / "deep" / "weights").write_text(text)
        (temporary / "state.json").write_text(json.dumps({"step": step}))

    write_folder(target, fill)
    return target


def test_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        make(tmp_path, step)
    assert [path.name for path in checkpoints(tmp_path)] == [
        "checkpoint-10",
        "checkpoint-2",
        "checkpoint-1",
    ]
    assert newest_verified(tmp_path).name == "checkpoint-10"
    (tmp_path / "checkpoint-10" / "deep" / "weights").write_text("y")
    assert newest_verified(tmp_path).name == "checkpoint-2"
    (tmp_path / "checkpoint-2" / "state.json").unlink()
    assert newest_verified(tmp_path).name == "checkpoint-1"


def test_everything_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    rename, before = Path.rename, []

    def noted(path: Path, target: Path) -> Path:
        before.extend(flushed)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noted)
    target = make(tmp_path, 1)
    inside = {path.stat().st_ino for path in (target, *target.rglob("*"))}
    assert inside == set(before) and len(inside) == 5
    assert flushed[-1] == tmp_path.stat().st_ino, "the name, too"


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    target, rng = make(tmp_path, 1), random.Random(0)
    files = [path for path in target.rglob("*") if path.is_file()]
    for _ in range(100):
        path = rng.choice(files)
        whole = path.read_bytes()
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        assert verify(target) is not None, (path, at)
        path.write_bytes(whole)
    assert verify(target) is None


def test_a_write_that_fails_leaves_the_old_one_and_no_litter_after_the_next_look(
    tmp_path: Path,
) -> None:
    make(tmp_path, 1)

    def fill(temporary: Path) -> None:
        (temporary / "half").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "checkpoint-2", fill)
    assert newest_verified(tmp_path).name == "checkpoint-1"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_nothing_to_resume_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        newest_verified(tmp_path)


def test_what_is_written_is_on_the_disk_before_it_has_its_name_and_its_name_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []  # what was flushed, and whether the target was there
    target = tmp_path / "state.json"

    def note(handle: int) -> None:
        seen.append((os.fstat(handle).st_ino, target.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_json(target, {"a": 1})
    assert seen == [(target.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    seen.clear()
    target = tmp_path / "checkpoint-1"
    make(tmp_path, 1)
    before = {inode for inode, there in seen if not there}
    files = [path for path in target.rglob("*") if path.is_file()]
    assert {path.stat().st_ino for path in files} <= before and len(files) == 3
    assert (target / "deep").stat().st_ino in before and target.stat().st_ino in before
    assert seen[-1] == (tmp_path.stat().st_ino, True)
