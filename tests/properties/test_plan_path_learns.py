"""The smallest planning puzzle is learned: trees of scored answers improve a small model."""

from pathlib import Path

import pytest

from logged_rows import lower_bound
from mrlm import load_config, run_experiment
from places import ROOT

ALONE = [
    "environments=[{env_type: plan_path, level: 1, style: short, num_agents: 1}]",
    "training.report_to=none",
    "stages.0.evaluation.every=null",
    "stages.1.policies={player: {}}",
    "stages.1.training.num_iterations=40",
    "stages.1.training.batch_size=12",
    "stages.1.evaluation.every=40",
]


@pytest.mark.slow
def test_an_agent_learns_to_find_ways(tmp_path: Path) -> None:
    """Lower 95 % bound of what AT-GRPO gains on held-out grids over six seeds is above 0."""
    gains: list[float] = []
    for seed in range(6):
        settings = [*ALONE, f"training.seed={seed}", f"output_dir={tmp_path / str(seed)}"]
        config = load_config(ROOT / "configs" / "plan_path.yaml", settings)
        rows = [row for row in run_experiment(config).history if row["stage"] == 1]
        before, after = (row["eval/reward/mean"] for row in rows if "eval/reward/mean" in row)
        gains.append(after - before)
    assert lower_bound(gains) > 0, gains
