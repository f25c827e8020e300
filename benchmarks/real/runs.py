"""One run: an arm of a setting, trained in a process of its own with one thread."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.teams.runs import Job, Row, Stop, lines_of

ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "configs" / "real"
SETTINGS: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8")
)
"""Name -> setting, with what was predicted."""
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    f"{name}/{side}": (name, arm)
    for name, setting in SETTINGS.items()
    for side, arm in setting["arms"].items()
}
"""Setting and side -> setting, config, its changes and its budget of tokens."""


@dataclass(slots=True)
class Measured(Row):
    """What came of a run.

    Args:
        peak, planned: bytes of the process at its worst moment, and what `mrlm plan` says.
        alarms: rules of `mrlm doctor` that alarmed, with their first step.
        last: components of the reward at the last evaluation, and `ties`, the share of groups with
            equal rewards in the last five steps.
        device: of the model.
        clock: seconds from the beginning of the process's run to each evaluation, its model loaded.
    """

    peak: float = 0.0
    planned: float = 0.0
    alarms: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    clock: list[float] = field(default_factory=list)


def missing(rows: Sequence[Row], arms: Sequence[str], seeds: int) -> list[Job]:
    """The runs that are left: the seeds of an arm after the other."""
    done = {(row.arm, row.seed) for row in rows}
    jobs = [Job(arm, 0.0, seed) for arm in arms for seed in range(seeds)]
    return [job for job in jobs if (job.arm, job.seed) not in done]


def folder_of(arm: str, seed: object) -> str:
    """The name of a run's folder."""
    return f"{arm.replace('/', '-').replace(' ', '_')}-{seed}"


def changes_of(job: Job, model: str, folder: Path, device: str = "cpu") -> list[str]:
    """The settings of a run that differ from those of its config."""
    changes = [f"model.model_name_or_path={model}", f"output_dir={folder}"]
    changes += [f"training.seed={job.seed}", "training.report_to=none", "training.threads=1"]
    changes.append(f"model.device={device}")
    return [*changes, *ARMS[job.arm][1].get("changes", ())]


def train(job: Job, model: str, folder: Path, device: str = "cpu") -> Measured:
    """Trains in a process of its own, whose peak of memory is that of the run; on an accelerator it
    is that of the tensors there.

    Args:
        job: which arm and seed.
        model: name or folder of the pretrained model.
        folder: of the run.
        device: of the model.
    """
    command = ["-m", "benchmarks.real.runs", job.arm, str(job.seed), model, str(folder), device]
    row = Measured(**json.loads(_printed(command).splitlines()[-1]))
    config = CONFIGS / f"{ARMS[job.arm][1]['config']}.yaml"
    plan = ["-m", "mrlm", "plan", "--json", "--config", str(config)]
    stages = json.loads(_printed([*plan, *changes_of(job, model, folder, device)]))
    plans = stages if isinstance(stages, list) else [stages]
    row.planned = max(stage["chosen"]["needed"] for stage in plans)
    return row


def _printed(arguments: Sequence[str]) -> str:
    """The output of a Python process."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def here(job: Job, model: str, folder: Path, device: str = "cpu") -> Measured:
    """Trains in this process."""
    from mrlm import examine, load_config, run_experiment

    shutil.rmtree(folder, ignore_errors=True)
    name, arm = ARMS[job.arm]
    config = load_config(CONFIGS / f"{arm['config']}.yaml", changes_of(job, model, folder, device))
    stop = [Stop(arm["tokens"])] if "tokens" in arm else []
    began, started = time.process_time(), time.time()
    result = run_experiment(config, callbacks=stop)
    row = Measured(job.arm, config.stage_configs()[-1][1].training.learning_rate, job.seed)
    row.seconds = round(time.process_time() - began, 1)
    row.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device != "cpu":
        import torch

        row.peak, row.device = torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()
    read(result.history, row, SETTINGS[name]["measure"])
    for metrics in sorted(folder.rglob("metrics.jsonl")):
        times = [line["time"] for line in lines_of(metrics) if "eval/reward/mean" in line]
        row.clock += [round(moment - started, 2) for moment in times]
        for alarm in examine(metrics.parent):
            row.alarms.setdefault(alarm.rule, alarm.step)
        for weights in (*metrics.parent.glob("checkpoint-*"), metrics.parent / "final"):
            shutil.rmtree(weights, ignore_errors=True)
    return row


def read(history: Sequence[Mapping[str, Any]], row: Measured, measure: str) -> None:
    """Fills a row from the metrics of a run.

    Args:
        history: metrics of all steps.
        row: to be filled.
        measure: `reward`, a component of the reward, or the end of the name of another number of an
            evaluation.
    """
    total = 0
    for metrics in history:
        total = int(metrics.get("tokens/total") or total)
        steps = [metrics[name] for name in metrics if name.startswith("optimizer_steps/")]
        row.steps += round(sum(steps) if steps else metrics.get("optimizer_steps") or 0)
        row.episodes += round(metrics.get("episodes/count") or 0)
        if metrics.get("eval/reward/mean") is None:
            continue
        evaluated = {k: x for k, x in metrics.items() if k.startswith("eval/reward/")}
        name = "reward/mean" if measure == "reward" else f".+/{measure}"
        values = [x for k, x in metrics.items() if re.fullmatch(f"eval/{name}", k)]
        if not values:  # a start has not played against itself
            continue
        row.tokens.append(total)
        row.rewards.append(round(values[0], 4))
        row.last = {k.removeprefix("eval/reward/"): round(x, 4) for k, x in evaluated.items()}
    ties = [metrics["frac_zero_variance"] for metrics in history if "frac_zero_variance" in metrics]
    if ties:
        row.last["ties"] = round(fmean(ties[-5:]), 4)


def load(path: Path) -> list[Measured]:
    """The finished runs of a file."""
    return [Measured(**row) for row in lines_of(path)]


if __name__ == "__main__":
    arm, seed, model, place, device = sys.argv[1:]
    print(json.dumps(asdict(here(Job(arm, 0.0, int(seed)), model, Path(place), device))))
