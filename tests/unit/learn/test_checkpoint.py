"""Checkpoints appear whole or not at all, and damage is found."""

import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrlm.core.errors import CheckpointError, TrainingError
from mrlm.learn.checkpoint import (
    checkpoints,
    clear_temporaries,
    newest_verified,
    verify,
    write_folder,
    write_json,
    writing,
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


def test_what_a_killed_process_of_the_same_number_left_is_replaced(tmp_path: Path) -> None:
    """In a container every process may have the same number."""
    litter = tmp_path / f".checkpoint-3.tmp-{os.getpid()}"
    litter.mkdir()
    (litter / "half.bin").write_text("half")
    target = make(tmp_path, 3)
    assert verify(target) is None and not (target / "half.bin").exists()


def test_a_folder_that_is_there_is_replaced(tmp_path: Path) -> None:
    make(tmp_path / "new", 1, "old")
    target = make(tmp_path / "new", 1, "other")
    assert (target / "deep" / "weights").read_text() == "other" and verify(target) is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["checkpoint-1"]
    text = (target / "manifest.json").read_text()
    assert list(json.loads(text)) == ["deep/weights", "state.json"] and text.startswith('{\n "')
    assert newest_verified(target) == target, "a checkpoint may be named itself"


def test_a_write_that_fails_says_why(tmp_path: Path) -> None:
    """Also where nothing is left to be cleared."""

    def fill(temporary: Path) -> None:
        temporary.rmdir()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "checkpoint-2", fill)
    (tmp_path / "state.json" / "in the way").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_json(tmp_path / "state.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    write_json(tmp_path / "other.json", {"a": [1]})
    assert (tmp_path / "other.json").read_text() == '{\n "a": [\n  1\n ]\n}\n'


def test_damage_is_named(tmp_path: Path) -> None:
    target = make(tmp_path, 1)
    (target / "deep" / "weights").write_text("y")
    assert verify(target) == "deep/weights has changed"
    with pytest.raises(CheckpointError, match="has no undamaged checkpoint to resume from"):
        newest_verified(tmp_path)
    (target / "deep" / "weights").unlink()
    assert verify(target) == "deep/weights is missing"
    (target / "manifest.json").write_text("{")
    assert (verify(target) or "").startswith("manifest.json: Expecting")
    assert (verify(tmp_path) or "").startswith("manifest.json: [Errno 2]")


def test_what_interrupted_writes_left_is_cleared_or_put_back(tmp_path: Path) -> None:
    """What was set aside and not replaced is put back; a link is removed, not what it leads to."""
    for name in (".a.old-1", ".b.old-1", ".c.old-2.old-1", ".d.tmp-1", "b", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    (tmp_path / ".e.tmp-1").write_text("e")
    (tmp_path / ".f.old-1").symlink_to(tmp_path / "kept")
    clear_temporaries(tmp_path)
    found = {path.name: (path / "x").read_text() for path in tmp_path.iterdir()}
    assert found == {"a": ".a.old-1", "b": "b", "c.old-2": ".c.old-2.old-1", "kept": "kept"}


class Vanished(type(Path())):
    """A folder that another process removes after it was looked for."""

    def is_dir(self) -> bool:
        return True


def test_another_process_may_clear_at_the_same_time(tmp_path: Path) -> None:
    left = {".*.old-*": [], ".*.tmp-*": [tmp_path / ".a.tmp-1"]}
    clear_temporaries(SimpleNamespace(glob=left.get))  # type: ignore[arg-type]
    left[".*.tmp-*"] = [Vanished(tmp_path / ".b.tmp-1")]
    clear_temporaries(SimpleNamespace(glob=left.get))  # type: ignore[arg-type]


def test_no_file_stays_open(tmp_path: Path) -> None:
    make(tmp_path, 1)
    handles = Path("/proc/self/fd")
    before = len(list(handles.iterdir())) if handles.is_dir() else 0
    for _ in range(3):
        make(tmp_path, 1)
    assert before == 0 or len(list(handles.iterdir())) <= before


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("of a library"), "of a library"),
        (RuntimeError("I/O error: File too large (os error 27)"), "File too large"),
        (RuntimeError("Read-only (os error 30)"), "Read-only"),
    ],
)
def test_a_disk_that_refuses_is_told_from_mistakes(
    error: Exception, reason: str, tmp_path: Path
) -> None:
    place = tmp_path / "final"
    said = re.escape(
        f"{place} cannot be written: {reason}; free disk space, then start the run again"
    )
    with pytest.raises(TrainingError, match=f"^{said}$"), writing(place):
        raise error
    make(tmp_path, 1)
    for where in (place, tmp_path):
        with pytest.raises(TrainingError, match=r"then continue with --resume$"), writing(where):
            raise error
    with pytest.raises(ValueError, match="mistake"), writing(place):
        raise ValueError("a mistake (error 3)")
    with writing(place):
        pass
