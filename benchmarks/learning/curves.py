"""One run of the learning curves: an algorithm in an environment, with a rate and a seed, from
common weights until it has sampled its tokens."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.environments import GROUNDS, WORST, Ground
from benchmarks.learning.families import TRIALS, Trial
from benchmarks.learning.poker import Reader
from benchmarks.learning.runs import COPIES, DATA
from benchmarks.learning.table import TABLE
from benchmarks.teams.base import READER_STEPS, STEPS, base_of
from benchmarks.teams.runs import Job, Row, Stop, lines_of, next_jobs

POINTS = 8
"""Evaluations after the first one."""
EPISODES = 64
"""Of an evaluation, on held-out tasks, sampled as in training."""
ARMS = {name: ground.arm for name, ground in GROUNDS.items()}
EVALUATED = "eval/reward/mean"
MEASURES = {"reward_model": "rewards/accuracies"}
"""Algorithm -> its metric, where it is not the reward."""
SHARED_KEYS = ("training.batch_size", "training.learning_rate")
"""Keys of the table that are the same for all here."""
STATES = 64
"""Tasks that are looked at to find all states."""
QUICK = 32
"""Divisor of the tokens of a quick run."""


@dataclass(slots=True)
class Measured(Row):
    """What came of a run.

    Args:
        measures: further metrics: `explained_late`, the explained variance of the critic, mean
            over the second half of the run; `entropy` of the agents whose actions never matter, in
            nats, at the end.
    """

    measures: dict[str, float] = field(default_factory=dict)


def plays(trial: Trial) -> bool:
    """Whether it learns from episodes of its own."""
    return TABLE[trial.algorithm].learns_from == "play"


def config_of(job: Job, base: Path, folder: Path, quick: bool = False) -> Any:
    """The experiment of a run."""
    from mrlm import ExperimentConfig

    trial = TRIALS[job.arm]
    ground, entry = GROUNDS[trial.where], TABLE[trial.algorithm]
    settings = {**entry.settings, **trial.settings}
    siblings = int(settings.get("group_size", 1)) if plays(trial) else 1
    iterations = iterations_of(trial, quick)
    config: dict[str, Any] = {
        "experiment_name": "learning",
        "output_dir": str(folder),
        "model": {"model_name_or_path": str(base)},
        "environments": [dict(ground.arm.environment)],
        "training": {
            "algorithm": trial.algorithm,
            "num_iterations": 2 * iterations if plays(trial) else iterations,
            "batch_size": max(1, int(ground.batch / trial.cost) // siblings),
            "learning_rate": job.rate,
            "seed": job.seed,
            "report_to": "none",
            "threads": 1,
        },
        "generation": {"max_new_tokens": ground.arm.length},
        "evaluation": {
            "every": max(1, iterations // POINTS),
            "episodes": 8 if quick else EPISODES,
            "greedy": False,
        },
        "record": {"tokens": "none", "keep": "evaluations"},
    }
    if ground.arm.policies == "shared":
        config["policies"] = {"player": {}}
    if settings:
        config[trial.algorithm] = settings
    if not plays(trial):
        config["data"] = {"dataset": optimum(ground, DATA[entry.learns_from])}
    own = {key: value for key, value in entry.config.items() if key not in SHARED_KEYS}
    own = {key: value for key, value in own.items() if not key.startswith("workflow")}
    return ExperimentConfig(**config).merged({**own, **trial.config})


def optimum(ground: Ground, rows_of: Callable[[Any], list[dict[str, str]]]) -> list[dict[str, str]]:
    """Rows of the best joint action in every state of an environment, several times."""
    from mrlm.build.environments import environment_factory
    from mrlm.config.play_sections import EnvironmentConfig

    made = environment_factory(EnvironmentConfig(**ground.arm.environment))
    found: dict[str, dict[str, str]] = {}
    for seed in range(STATES):
        made.reset(made.task(seed))
        found |= {str(row): row for row in rows_of(made)}
    return list(found.values()) * COPIES


def iterations_of(trial: Trial, quick: bool = False) -> int:
    """About how many a run makes."""
    ground = GROUNDS[trial.where]
    tokens = ground.tokens // QUICK if quick else ground.tokens
    return max(2 if quick else POINTS, tokens // (ground.batch * ground.arm.tokens))


def train(job: Job, folder: Path, quick: bool = False) -> Measured:
    """Makes a run.

    Args:
        job: which.
        folder: of models and runs.
        quick: few tokens, from a model that was hardly taught.
    """
    from mrlm import run_experiment

    trial = TRIALS[job.arm]
    ground = GROUNDS[trial.where]
    steps, reader_steps = (10, 0) if quick else (STEPS, READER_STEPS)
    models, share = folder / "models", ground.share
    base = base_of(ground.arm.game, job.seed, models, steps, reader_steps, ARMS, share)
    place = folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    started = time.process_time()
    reader = Reader()
    stop = Stop(ground.tokens // QUICK if quick else ground.tokens)
    callbacks = [stop] if plays(trial) else []
    callbacks += [reader] if ground.measure == WORST else []
    result = run_experiment(config_of(job, base, place, quick), callbacks=callbacks)
    row = read(result.history, Measured(job.arm, job.rate, job.seed), reader.found)
    row.seconds = round(time.process_time() - started, 2)
    shutil.rmtree(place)
    return row


def read(
    history: Sequence[Mapping[str, Any]], row: Measured, exploitability: Sequence[float]
) -> Measured:
    """Fills a row from the metrics of a run.

    Args:
        history: metrics of all steps.
        row: of the job.
        exploitability: at the evaluations, where it is the measure.
    """
    trial, total, rows = TRIALS[row.arm], 0, 0
    measure = MEASURES.get(trial.algorithm, EVALUATED)
    explained: list[float] = []
    every = 1 if measure == EVALUATED else max(1, len(history) // POINTS)
    for metrics in history:
        total = int(metrics.get("tokens/total") or total)
        rows = int(metrics["step"]) * GROUNDS[trial.where].batch
        each = [metrics[name] for name in metrics if name.startswith("optimizer_steps/")]
        row.steps += round(sum(each) if each else metrics.get("optimizer_steps") or 0)
        row.episodes += round(metrics.get("episodes/count") or 0)
        if metrics.get("explained_variance") is not None:
            explained.append(metrics["explained_variance"])
        if metrics.get(measure) is not None and metrics["step"] % every == 0:
            row.tokens.append(total if plays(trial) else rows)
            row.rewards.append(round(metrics[measure], 4))
        idle = [metrics.get(f"entropy/{name}") for name in GROUNDS[trial.where].arm.agents[1:]]
        if trial.where == "idle" and None not in idle:
            row.measures["entropy"] = round(fmean(idle), 4)
    if exploitability:
        row.rewards = [-round(value, 4) for value in exploitability]
    if explained:
        row.measures["explained_late"] = round(fmean(explained[len(explained) // 2 :]), 4)
    return row


def load(path: Path) -> list[Measured]:
    """The finished runs of a file."""
    return [Measured(**row) for row in lines_of(path)]


def rates_of(name: str) -> tuple[float, ...]:
    """The learning rates that are tried in a trial."""
    return TRIALS[name].rates


def missing(rows: Sequence[Row], names: Sequence[str], seeds: int, tuning: int) -> list[Job]:
    """The runs that are left of some trials, the next one first."""
    return next_jobs(rows, names, seeds, tuning, rates_of)
