"""What is read when a run continues does not depend on the length of its log: bytes are counted."""

import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrlm.core.episodes import Episode
from mrlm.core.types import Message, Rollout, Task
from mrlm.doctor import column
from mrlm.doctor.examination import make_rules
from mrlm.doctor.rule import Rule
from mrlm.record import tail
from mrlm.tracking.run_log import PROFILE, RunLog

RULES = make_rules()
SHORT, LONG = 120, 480
"""Steps of two logs."""


def open_log(folder: Path, rules: Mapping[str, Rule] = RULES, **more: Any) -> RunLog:
    folder.mkdir(exist_ok=True)
    return RunLog(folder, "run", {}, 10_000, rules=rules, **more)


def write(log: RunLog, steps: range) -> None:
    for step in steps:
        rng = random.Random(step)
        rollout = Rollout("a", messages=[Message(f"{rng.random()}"), Message("hi")])
        made = [Episode(f"train/x/{step}/{n}", Task("t"), {"a": rollout}) for n in range(40)]
        log.episodes(step, [made])
        log.profile({"step": step, "seconds": {"play": {"": rng.random()}}})
        agents = {f"reward/a{n}/mean": rng.random() for n in range(40)}
        log.log(step, {"reward/mean": rng.random()} | agents)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are read of files; blocks are small, as the logs are."""
    count = [0]

    class Raw(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            size = super().readinto(buffer)
            count[0] += size
            return size

        def readall(self) -> bytes:
            data = super().readall()
            count[0] += len(data)
            return data

    known = Path.open

    def opened(self: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        if mode not in ("r", "rb"):
            return known(self, mode, *args, **more)
        file = io.BufferedReader(Raw(self), 512)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding="utf-8")

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(tail, "BLOCK", 512)
    for name in ("HEAD", "MIDDLE", "TAIL"):
        monkeypatch.setattr(column, name, 16)
    return count


def stopped(folder: Path, steps: int) -> str:
    """The state of a log after some steps; it was written for three more, and the last line is
    torn."""
    log = open_log(folder)
    write(log, range(1, steps + 1))
    state = json.dumps(log.state())
    write(log, range(steps + 1, steps + 4))
    log.close()
    for name in ("metrics.jsonl", PROFILE):
        with (folder / name).open("a") as file:
            file.write('{"step": ')
    return state


def test_a_run_continues_without_reading_its_log(tmp_path: Path, read: list[int]) -> None:
    found = []
    for steps in (SHORT, LONG):
        folder = tmp_path / f"{steps}"
        state = stopped(folder, steps)
        size = sum(path.stat().st_size for path in folder.iterdir())
        read[0] = 0
        open_log(folder, resume_step=steps + 1, state=json.loads(state)).close()
        found.append((read[0], len(state), size))
    (little, state, short), (much, later, long) = found
    assert long > 3 * short
    assert 0 < much < 1.1 * little, "bytes of files"
    assert later < 1.1 * state, "characters of the checkpoint"


@pytest.mark.parametrize("steps", [30, SHORT])
def test_rules_see_the_same_as_without_a_pause(steps: int, tmp_path: Path) -> None:
    state = stopped(tmp_path, steps)
    histories = []
    for known in (json.loads(state), {}):
        log = open_log(tmp_path, resume_step=steps + 1, state=known)
        write(log, range(steps + 1, steps + 4))
        histories.append(log._examination)
        log.close()
    ours, whole = histories
    assert ours.history.step == whole.history.step == steps + 3
    assert list(ours._episodes) == list(whole._episodes)
    for name in ("reward/mean", "reward/a7/mean"):
        assert np.array_equal(ours.history.known(name), whole.history.known(name))


@pytest.mark.parametrize("rules", [{}, RULES])
def test_a_doctor_that_was_off_or_has_another_log_reads_it(
    rules: Mapping[str, Rule], tmp_path: Path
) -> None:
    log = open_log(tmp_path, rules)
    write(log, range(1, 9))
    state = log.state()
    if rules:  # of an earlier step than the last that is kept
        write(log, range(9, 13))
    log.close()
    log = open_log(tmp_path, resume_step=13, state=state)
    assert log._examination.history.step == (12 if rules else 8)
    log.close()
