"""The size of a record before a run is a bound of what the run writes, and not a far one."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Mrlm
from mrlm import run_experiment
from mrlm.build.policies import LiveObjects
from mrlm.build.run import arithmetic_of, plan_of
from mrlm.config import ExperimentConfig, parse_config
from mrlm.planning.record_size import RecordSize
from mrlm.record.files import parts_of

TIMES = 5
"""A bound is at most so many times what is written. Texts of the tiny model compress better than
those that the bound is for, and not every completion is as long as it may be."""
CASES: dict[str, dict[str, Any]] = {
    "short": {"algorithm": "grpo", "tokens": 4},
    "long": {"algorithm": "grpo", "tokens": 96},
    "all": {"algorithm": "grpo", "tokens": 64, "record": {"tokens": "all"}},
    "none": {"algorithm": "grpo", "tokens": 64, "record": {"tokens": "none"}},
    "plain": {"algorithm": "grpo", "tokens": 32, "record": {"compress": False, "tokens": "all"}},
    "one group": {"algorithm": "magrpo", "tokens": 32, "record": {"keep": 1}},
    "critic": {"algorithm": "ippo", "tokens": 48, "record": {"tokens": "all"}},
    "evaluations": {
        "algorithm": "grpo",
        "tokens": 48,
        "record": {"keep": "evaluations"},
        "evaluation": {"episodes": 12, "every": 2, "samples": 2, "greedy": False},
    },
}


def config(folder: Path, algorithm: str, tokens: int, **more: Any) -> ExperimentConfig:
    data = {
        "output_dir": str(folder),
        "environments": [{"env_type": "relay"}],
        "training": {
            "algorithm": algorithm,
            "num_iterations": 2,
            "batch_size": 4,
            "report_to": "none",
            "checks": "off",
        },
        "generation": {"max_new_tokens": tokens},
        **more,
    }
    return parse_config(data, [], "the test")


def bound(config: ExperimentConfig) -> RecordSize:
    found = arithmetic_of(plan_of(config, LiveObjects())).record
    assert found is not None
    return found


SLOW = {"short", "long", "all", "none", "one group", "critic"}
"""Like the others."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CASES]
)
def test_a_run_writes_less_than_its_bound(name: str, tmp_path: Path) -> None:
    chosen = config(tmp_path / "run", **CASES[name])
    size = bound(chosen)
    run_experiment(chosen)
    parts = parts_of(tmp_path / "run")
    assert size.total is not None
    written = sum(part.size for part in parts)
    assert written <= size.total <= TIMES * written, (written, size.total)
    for part in parts:
        most = size.evaluation if part.evaluation else size.step
        assert part.size <= most <= TIMES * part.size, part
    assert sum(part.evaluation for part in parts) == size.evaluations + size.first


def test_a_dry_run_names_the_size_and_where_it_is_thinned(run: Mrlm, tmp_path: Path) -> None:
    chosen = config(tmp_path / "run", "grpo", 512, record={"max_gb": 0.001})
    chosen = chosen.merged({"training": {"num_iterations": 1000}})
    chosen.save(tmp_path / "c.yaml")
    shown = run("train", "--config", tmp_path / "c.yaml", "--dry-run")
    (line,) = (line for line in shown.out.splitlines() if line.startswith("record: at most"))
    size = bound(chosen)
    assert size.thinned_from is not None and 1 < size.thinned_from < 10
    assert size.thinned_from == int(1e6 / size.step)
    assert f"record.max_gb (0.001) may be reached at step {size.thinned_from}" in line
    large = chosen.merged({"record": {"max_gb": 4.0}})
    assert bound(large).thinned_from is None and "max_gb" not in str(bound(large))
    planned = run("plan", "--config", tmp_path / "c.yaml", "--params", "15M", "--json")
    report = json.loads(planned.out)
    assert report["record"]["step"] > 0 and report["record"]["total"] > 1e6, planned.err


def test_rows_have_no_bound(tmp_path: Path) -> None:
    data = {"dataset": [{"prompt": "a?", "completion": "b"}]}
    chosen = config(tmp_path / "run", "sft", 4, data=data, environments=[])
    assert arithmetic_of(plan_of(chosen, LiveObjects())).record is None
