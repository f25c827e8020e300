"""A page that follows a run gets what is new, and not all of it again at every step."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mrlm.record.files import Part
from mrlm.tracking.run_log import RunLog
from mrlm.viewer.following import RunFollower, Thinning
from record_maker import RunMaker


@pytest.mark.parametrize("steps", [100, 400])
def test_the_profile_of_a_long_run_is_not_sent_again_at_every_step(
    steps: int, tmp_path: Path
) -> None:
    profile, metrics = tmp_path / "profile.jsonl", tmp_path / "metrics.jsonl"
    metrics.write_text("")
    profile.write_text("")
    (tmp_path / "config.yaml").write_text("{}")
    follower = RunFollower(tmp_path, tmp_path)
    sent, last = 0, 0
    for step in range(1, steps + 1):
        with profile.open("a") as file:
            file.write(json.dumps({"step": step, "seconds": {"play": {"a": 0.1}}}) + "\n")
        for name, piece in follower.pieces():
            assert name == "piece"
            for stage in piece.get("stages", ()):
                if "phases" in stage:
                    last = len(stage["phases"]["steps"])
                    sent += last
    assert last > steps / 1.2  # what the page shows is at most a tenth behind
    assert (
        sent < 13 * steps
    )  # a geometric series; all at every step would be steps / 2 times as many


def test_a_new_step_costs_the_same_however_many_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts are counted that are chosen from, and the episodes that a page gets."""
    looked, known = [0], Thinning.of

    def counted(self: Thinning, parts: Sequence[Part], *more: Any) -> list[Part]:
        looked[0] += len(parts)
        return known(self, parts, *more)

    monkeypatch.setattr(Thinning, "of", counted)
    (tmp_path / "config.yaml").write_text("{}")
    log, maker, steps = RunLog(tmp_path, "run", {}, 200), RunMaker(turns=1), 120
    follower, listed, last = RunFollower(tmp_path, tmp_path), 0, {}
    for step in range(1, steps + 1):
        log._episodes.append(step, [maker.row(step, f"train/x/{step}/0", 0, "t", 0.5)])
        for _, piece in follower.pieces():
            listed += sum(count for count, _ in piece.get("chunks", ()))
            last = piece.get("meta", last)
    log.close()
    assert (listed, last["total"], looked[0]) == (steps, steps, steps)
    assert all(part.ids is None for each in follower._stages.values() for part in each.parts.known)
