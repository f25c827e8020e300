"""The ends of long files: read backwards, and cut, whatever is before."""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mrlm.record import files, tail
from mrlm.record.files import INDEX, EpisodeFile, last_parts, parts_of, rows_of
from mrlm.record.tail import lines_from_end, rewind


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 18])
def test_lines_are_read_backwards(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "BLOCK", block)
    path, rng = tmp_path / "lines", random.Random(block)
    for text in (b"", b"\n", b"a", b"a\n", b"\n\nb", *(rng.randbytes(40) for _ in range(30))):
        data = text.replace(b"\x00", b"\n").replace(b"\x80", b"\n")
        path.write_bytes(data)
        found = list(lines_from_end(path))[::-1]
        assert [line for _, line in found] == re.findall(rb"[^\n]*\n|[^\n]+", data)
        assert all(data[at:].startswith(line) for at, line in found)
        assert [at for at, _ in found] == [0, *(at + len(line) for at, line in found)][: len(found)]


def test_a_long_record_is_continued_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = EpisodeFile(tmp_path)
    for step in range(300):
        file.append(step, [{"id": f"train/{step}"}])
    index = (tmp_path / INDEX).read_bytes().splitlines(keepends=True)
    read, known = [0], files.indexed_part

    def counted(line: str | bytes) -> Any:
        read[0] += 1
        return known(line)

    monkeypatch.setattr(files, "indexed_part", counted)
    again = EpisodeFile(tmp_path, 295)
    assert [part.step for part in last_parts(tmp_path, 290)] == [290, 291, 292, 293, 294]
    assert read[0] < 20 and again.every == 1
    assert (tmp_path / INDEX).read_bytes() == b"".join(index[:295])
    assert again.path.stat().st_size == parts_of(tmp_path)[-1].end
    again.append(295, [{"id": "train/295"}])
    assert (tmp_path / INDEX).read_bytes() == b"".join(index[:296])


def test_rows_of_metrics_are_cut_without_being_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, parsed, loads = tmp_path / "metrics.jsonl", [0], json.loads
    lines = [json.dumps({"step": step, "time": 0.5, "loss": None}) + "\n" for step in range(300)]
    path.write_text("".join(lines))

    def counted(text: bytes) -> Any:
        parsed[0] += 1
        return loads(text)

    monkeypatch.setattr(json, "loads", counted)
    before = path.stat().st_ino
    rewind(path, 200)
    assert path.read_text() == "".join(lines[:200]) and path.stat().st_ino == before
    assert parsed[0] == 0


def metrics(steps: Iterable[int]) -> bytes:
    lines = [json.dumps({"step": step, "loss": 0.5, "turns": {}}) + "\n" for step in steps]
    return "".join(lines).encode()


def test_the_end_of_a_thinned_record_shows_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, known = EpisodeFile(tmp_path), [0], files.indexed_part
    for step in range(0, 1200, 4):
        file.append(step, [{"id": f"train/{step}"}])
        file.append(step, [{"id": f"eval/{step}"}], evaluation=True)

    def counted(line: str | bytes) -> Any:
        read[0] += 1
        return known(line)

    monkeypatch.setattr(files, "indexed_part", counted)
    assert EpisodeFile(tmp_path, 1200).every == 4
    assert read[0] <= 2 * files.LOOKED_BACK + 2


@pytest.mark.parametrize("compress", [True, False])
def test_the_first_rows_of_a_part_are_read_alone(compress: bool, tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path, compress=compress)
    for step in range(3):
        file.append(step, [{"id": f"train/{step}/{number}"} for number in range(9)])
    found = list(rows_of(tmp_path, last_parts(tmp_path, 1), most=2))
    assert [row["id"] for row in found] == [f"train/{s}/{n}" for s in (1, 2) for n in range(2)]
    assert len(list(rows_of(tmp_path, most=20))) == 27
