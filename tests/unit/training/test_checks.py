"""The checks of the first step: what would be silently wrong becomes an error with a name."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from mrlm.build.run import build
from mrlm.config import parse_config
from mrlm.core.errors import CheckError
from mrlm.core.sync_async import run_async
from mrlm.training.checks import check_first_step, check_weights
from mrlm.training.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Any:
    torch.set_num_threads(1)
    config = {
        "environments": [{"env_type": "length"}],
        "training": {"algorithm": "magrpo", "batch_size": 4, "report_to": "none"},
        "magrpo": {"group_size": 4},
        "generation": {"max_new_tokens": 4},
        "output_dir": str(tmp_path / "run"),
    }
    built = build(parse_config(config, (), "test"))
    yield built
    built.log.close()


def played(run: Run) -> Any:
    return run_async(run.source.take(4))


def test_a_sound_run_passes(run: Run) -> None:
    check_first_step(run, played(run))
    check_weights(run)


def test_an_engine_with_other_log_probs_is_found(run: Run) -> None:
    groups = played(run)
    for group in groups:
        for episode in group:
            for turn in episode.turns:
                turn.logprobs = [value - 0.2 for value in turn.logprobs or []]
    with pytest.raises(CheckError, match=r"mismatch_kl.*'short'.*differ by 0\.2000"):
        check_first_step(run, groups)


def test_a_wrong_temperature_is_found(run: Run) -> None:
    """An engine that samples at another temperature than it says."""
    groups = played(run)
    for turn in (t for group in groups for e in group for t in e.turns):
        turn.sampling = type(turn.sampling)(max_new_tokens=4, temperature=0.5)
    with pytest.raises(CheckError, match="mismatch_kl"):
        check_first_step(run, groups)


def test_warn_goes_on(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.config.training.checks = "warn"
    groups = played(run)
    for turn in (t for group in groups for e in group for t in e.turns):
        turn.logprobs = [0.0] * len(turn)
    with caplog.at_level(logging.WARNING, "mrlm"):
        check_first_step(run, groups)
    assert "check mismatch_kl" in caplog.text


def test_groups_without_variance_are_said(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    groups = played(run)
    for group in groups:
        for episode in group:
            episode.reward = 1.0
    with caplog.at_level(logging.WARNING, "mrlm"):
        check_first_step(run, groups)
    assert "check variance: none of the 4 groups" in caplog.text
