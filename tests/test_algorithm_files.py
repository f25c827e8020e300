"""Every algorithm comes with a config that runs, a section in the docs, and a line of the script
that trains it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mrlm.config import load_config
from mrlm.core import registry
from mrlm.runs import dry_run, run_experiment

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
ALGORITHMS = registry.names("algorithms")
MARL = ROOT / "scripts" / "marl.sh"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_has_a_config_that_dry_runs(algorithm: str) -> None:
    config = load_config(CONFIGS / f"{algorithm}.yaml")
    stages = [stage.training.algorithm for _, stage in config.stage_configs()]
    assert algorithm in stages
    text, problems = dry_run(config)
    assert not problems and "optimizer step" in text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_config_trains(algorithm: str, tmp_path: Path) -> None:
    """Its first step, on next to no data."""
    changes = ["training.num_iterations=1", "evaluation.episodes=2", "training.report_to=none"]
    config = load_config(CONFIGS / f"{algorithm}.yaml", [*changes, f"output_dir={tmp_path / 'o'}"])
    changes = [f"stages.{i}.training.num_iterations=1" for i in range(len(config.stages))]
    if changes:
        config = config.merged(dict(change.split("=") for change in changes))  # type: ignore[arg-type]
    result = run_experiment(config)
    assert result.history and (result.run_folder / "final").exists()
