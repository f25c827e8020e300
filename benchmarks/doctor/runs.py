"""The runs: real training with a record, in folders that are kept without weights."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.doctor.engines import SNAPSHOTS
from benchmarks.doctor.onset import Clock
from benchmarks.doctor.table import (
    CONTROLS,
    DISEASES,
    EPISODES,
    GAMES,
    HERE,
    STEPS,
    Base,
    Disease,
)
from benchmarks.learning import runs as learning
from benchmarks.learning.table import TABLE

ROOT = Path(__file__).parent.parent.parent
DONE = "done.json"
ASSISTANT = "{%- if add_generation_prompt -%}"
"""The part of the chat template that the disease `wrong template` removes."""
QUICK = ("grpo-xor", "constant reward")
"""Runs of `--quick`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the benchmark.

    Args:
        kind: `healthy` or `disease`.
        name: a disease, a control, `quickstart`, or an algorithm and a game, joined by a hyphen.
        seed: of the model and of all random numbers.
        folder: where models and runs are.
        quick: few steps with a model that was taught nothing.
    """

    kind: str
    name: str
    seed: int
    folder: str
    quick: bool = False

    @property
    def disease(self) -> Disease | None:
        return DISEASES.get(self.name) if self.kind == "disease" else None

    @property
    def onset(self) -> int:
        """First step of the disease; of a healthy run, a step that never comes."""
        first = self.disease.onset if self.disease else 10**9
        return min(first, 3) if self.quick else first

    @property
    def place(self) -> Path:
        """The folder of the run."""
        name = self.name.replace(" ", "_")
        return Path(self.folder) / "runs" / self.kind / f"{name}-{self.seed}"

    @property
    def taught(self) -> learning.Job:
        """The run of the learning benchmark whose model, and mostly config, it uses."""
        folder, disease = self.folder, self.disease
        if self.name in ("quickstart", *CONTROLS) or (disease and disease.base != "circle"):
            critic = "critic" in (self.name, disease and disease.base)
            return learning.Job("ppo" if critic else "grpo", "relay", self.seed, folder)
        algorithm, _, game = (
            self.name.partition("-") if disease is None else ("grpo", "", "climbing")
        )
        return learning.Job(algorithm, game, self.seed, folder)


@dataclass(frozen=True, slots=True)
class Done:
    """A run that has ended.

    Args:
        folders: its run folders, one per stage, relative to that of the job.
        seconds: processor time.
        error: how it failed.
    """

    folders: list[str]
    seconds: float
    error: str = ""


def jobs_of(folder: Path, seeds: int, quick: bool = False, first: int = 0) -> list[Job]:
    """All runs.

    Args:
        folder: where models and runs are.
        seeds: number of seeds of every disease and control.
        quick: one healthy run and one with a disease.
        first: the first seed.
    """

    def of(count: int) -> range:
        return range(first, first + count)

    many = [("disease", name, seed) for seed in of(seeds) for name in DISEASES]
    many += [("healthy", name, seed) for name in CONTROLS for seed in of(seeds)]
    for name, entry in TABLE.items():
        games = (*entry.games, *(("relay",) if entry.relay is not None else ()))
        many += [("healthy", f"{name}-{g}", s) for g in games for s in of(GAMES.get(g, 1))]
    many += [("healthy", "quickstart", seed) for seed in of(2)]
    if quick:
        many = [row for row in many if row[1] in QUICK and row[2] == first]
    return [Job(kind, name, seed, str(folder), quick) for kind, name, seed in many]


def bases_of(jobs: Iterable[Job]) -> list[Job]:
    """One job for every model that is taught; the quickstart teaches its own."""
    return [*{job.taught.base: job for job in jobs if job.name != "quickstart"}.values()]


def prepare(job: Job) -> None:
    """Makes the model that a job starts from, unless it is there."""
    from benchmarks.learning.models import fresh

    if (job.taught.base / "config.json").is_file():
        return
    if job.quick:
        fresh(job.taught.base, job.taught.kind, job.seed)
    else:
        learning.prepare(job.taught)


def state_of(job: Job) -> Done | None:
    """What is known of a job that has ended."""
    path = job.place / DONE
    return Done(**json.loads(path.read_text())) if path.is_file() else None


def train(job: Job) -> Job:
    """Trains; keeps the record and the metrics."""
    from mrlm import run_experiment

    shutil.rmtree(job.place, ignore_errors=True)
    started, error, folders = time.process_time(), "", []
    try:
        run_experiment(config_of(job), callbacks=[Clock(job.onset)])
    except Exception as failure:  # a run that fails is reported and does not end the others
        error = f"{type(failure).__name__}: {failure}"
    for metrics in sorted(job.place.rglob("metrics.jsonl")):
        folders.append(str(metrics.parent.relative_to(job.place)))
        for weights in (*metrics.parent.glob("checkpoint-*"), metrics.parent / "final"):
            shutil.rmtree(weights, ignore_errors=True)
    job.place.mkdir(parents=True, exist_ok=True)
    done = Done(folders, round(time.process_time() - started, 1), error)
    (job.place / DONE).write_text(json.dumps(asdict(done)) + "\n")
    return job


def config_of(job: Job) -> Any:
    """The experiment of a job."""
    from mrlm import ExperimentConfig, load_config

    own: dict[str, Any] = {"output_dir": str(job.place / "run")}
    disease = job.disease
    if job.name == "quickstart":
        few = [f"stages.1.training.num_iterations={STEPS}", "evaluation.episodes=64"]
        few += [f"training.seed={job.seed}", "training.report_to=none", "training.threads=1"]
        return load_config(
            ROOT / "configs" / "quickstart.yaml", [f"output_dir={own['output_dir']}", *few]
        )
    if disease is not None and disease.base == "circle":
        return ExperimentConfig(**_circle(job)).merged(dict(disease.changes) | own)
    if job.name not in CONTROLS and disease is None:
        steps = {} if "relay" not in job.name else {"training.num_iterations": STEPS}
        steps |= {"training.num_iterations": 4, "training.batch_size": 2} if job.quick else {}
        own |= {"evaluation.episodes": 8 if job.quick else EPISODES, **steps}
        return learning.config_of(job.taught).merged(own)
    base: Base = disease.base if disease else job.name  # type: ignore[assignment]
    changes = dict(disease.changes) if disease else {}
    if changes.pop("template", None):
        own["model"] = {"model_name_or_path": str(_closed(job))}
    if job.quick:
        own |= {"training.num_iterations": 8, "training.batch_size": 2, "evaluation.episodes": 4}
    return ExperimentConfig(**_relay(job, base, str(changes.get("training.algorithm", "")))).merged(
        changes | own
    )


def _relay(job: Job, base: Base, planted: str) -> dict[str, Any]:
    """Two agents on `relay`: the healthy run that diseases are planted in."""
    config = learning.settings_of(job.taught)
    config["evaluation"] = {"every": 4, "episodes": EPISODES, "greedy": False}
    config["training"] |= {
        "num_iterations": STEPS,
        "warmup_steps": 5,
        "checks": "warn",  # a check that ends the run would leave nothing to examine
    }
    if base == "critic":
        config["training"] |= {"batch_size": 128, "learning_rate": 2e-4}
        return config
    config.pop("grpo", None)
    config["algorithm" if planted else "grpo"] = {"group_size": 8}
    config["training"] |= {"batch_size": 16, "learning_rate": 1e-4}
    if base == "shared":
        config |= {"policies": {"both": {}}}
        config["training"]["gradient_shares"] = 2
    return config


def _circle(job: Job) -> dict[str, Any]:
    """Self-play against past players in a game in which each action loses to another."""
    return {
        "model": {"model_name_or_path": str(job.taught.base)},
        "environments": [{"env_type": f"{HERE}.environments:Circle"}],
        "policies": {"player": {}},
        "generation": {"max_new_tokens": 1},
        "opponents": {"every": SNAPSHOTS, "keep": 6, "self": 0.5, "games": 8, "tasks_per_game": 4},
        "training": {
            "algorithm": "spiral",
            "num_iterations": STEPS,
            "batch_size": 64,
            "learning_rate": 1e-3,
            "seed": job.seed,
            "report_to": "none",
            "threads": 1,
        },
        "evaluation": {"every": 2, "episodes": 16, "greedy": False},
    }


def _closed(job: Job) -> Path:
    """A copy of the model whose chat template ignores `add_generation_prompt`."""
    folder = job.place / "model"
    shutil.copytree(job.taught.base, folder, dirs_exist_ok=True)
    path = folder / "chat_template.jinja"
    whole, found, _ = path.read_text().partition(ASSISTANT)
    if not found:
        raise ValueError(f"{path}: the template has no {ASSISTANT!r}; change ASSISTANT in runs.py")
    path.write_text(whole)
    return folder
