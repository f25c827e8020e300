"""A page that follows a run gets what is new, and not all of it again at every step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrlm.viewer.following import RunFollower


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
