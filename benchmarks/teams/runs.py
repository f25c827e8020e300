"""One run: an arm trained by GRPO from the common weights until it has sampled its tokens."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.teams.base import READER_STEPS, STEPS, base_of
from benchmarks.teams.equilibrium import GreedyAnswers, Trained, judged
from benchmarks.teams.settings import ARMS, SETTINGS
from mrlm import Callback

GROUP = 8
STEP_TOKENS = 96
"""Tokens that every arm samples in an iteration, so that both make as many iterations."""
BUDGET = 128 * STEP_TOKENS
POINTS = 8
"""Evaluations after the first one."""
EPISODES = 128
"""Of an evaluation, on held-out tasks, sampled as in training."""
TUNING = 100
"""First seed of the runs that choose the rate."""
RESULTS = "runs.jsonl"


@dataclass(frozen=True, slots=True)
class Job:
    """A run.

    Args:
        arm: a name of the table.
        rate: learning rate.
        seed: of the base and of everything that is drawn.
    """

    arm: str
    rate: float
    seed: int


@dataclass(slots=True)
class Row:
    """What came of a run.

    Args:
        arm, rate, seed: of the job.
        tokens: sampled in training before each evaluation.
        rewards: mean reward of an agent in the evaluations.
        steps: optimiser steps of all policies together.
        episodes: played in training.
        seconds: processor time, without that of the base.
        greedy: exact expected reward of the greedy joint policy at the end.
        gain: what the best deviation of one agent adds to it; `None` if not enumerated.
    """

    arm: str
    rate: float
    seed: int
    tokens: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    greedy: float | None = None
    gain: float | None = None

    @property
    def final(self) -> float:
        """The mean of the last two evaluations."""
        return fmean(self.rewards[-2:])

    @property
    def area(self) -> float:
        """The mean of the curve after the start."""
        return fmean(self.rewards[1:])

    @property
    def plateau(self) -> bool:
        """Whether the last two evaluations are less than 0.03 above the two before them."""
        return self.final - fmean(self.rewards[-4:-2]) < 0.03


FIELDS = [each.name for each in fields(Row)]


class Stop(Callback):
    """Ends a run with an evaluation when its tokens are sampled."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def on_step_end(self, run: Any, metrics: Mapping[str, float]) -> None:
        total = metrics["tokens/total"]
        if total + total / run.step >= self.budget:  # the next iteration is the last one
            run.total_steps = min(run.total_steps, run.step + 1)


def arms_of(names: Sequence[str] | None = None) -> list[str]:
    """The arms of some settings, each once, in the order of the table."""
    chosen = [s for s in SETTINGS if names is None or s.name in names]
    return list(dict.fromkeys(arm for s in chosen for arm in (s.team, s.one)))


def rates_of(arm: str) -> tuple[float, ...]:
    """The learning rates that are tried with an arm."""
    return ARMS[arm].rates


def next_jobs(
    rows: Sequence[Row],
    arms: Sequence[str],
    seeds: int,
    tuning: int,
    rates_of: Callable[[str], tuple[float, ...]] = rates_of,
) -> list[Job]:
    """The runs that are missing, in the order in which they are made: those that choose the rates,
    then a seed of all arms after the other.

    Args:
        rows: finished runs.
        arms: names.
        seeds: runs of each arm with its chosen rate.
        tuning: seeds that choose the rate.
        rates_of: arm -> learning rates; before one is chosen, jobs name the middle one.
    """
    done = {Job(row.arm, row.rate, row.seed) for row in rows}
    jobs = [
        Job(arm, rate, TUNING + seed)
        for seed in range(tuning)
        for arm in arms
        for rate in rates_of(arm)
    ]
    rates = chosen_rates(rows, arms, tuning, rates_of)
    tried = {arm: rates_of(arm) for arm in arms}
    middle = {arm: rates.get(arm, each[len(each) // 2]) for arm, each in tried.items()}
    jobs += [Job(arm, middle[arm], seed) for seed in range(seeds) for arm in arms]
    return [job for job in jobs if job not in done]


def chosen_rates(
    rows: Sequence[Row],
    arms: Iterable[str],
    tuning: int,
    rates_of: Callable[[str], tuple[float, ...]] = rates_of,
) -> dict[str, float]:
    """Arm -> the rate with the highest mean final reward, for arms all of whose rates were tried
    with all seeds; the lowest of equal ones."""
    found = {}
    for arm in arms:
        rates, seeds = rates_of(arm), range(TUNING, TUNING + tuning)
        own = [row for row in rows if row.arm == arm and row.seed in seeds and row.rate in rates]
        if len(own) == tuning * len(rates):
            finals = {rate: fmean(row.final for row in own if row.rate == rate) for rate in rates}
            found[arm] = max(finals, key=lambda rate: finals[rate])
    return found


def config_of(job: Job, base: Path, folder: Path, budget: int = BUDGET) -> Any:
    """The experiment of a run."""
    from mrlm import ExperimentConfig

    arm = ARMS[job.arm]
    tasks = max(1, round(STEP_TOKENS / (GROUP * arm.tokens)))
    iterations = math.ceil(budget / STEP_TOKENS)
    policies: dict[str, Any] = {}
    if arm.policies == "adapters":
        policies = {name: {"lora": {"r": 4, "alpha": 8}} for name in arm.agents}
    elif arm.policies == "shared":
        policies = {"all": {}}
    config: dict[str, Any] = {
        "experiment_name": "teams",
        "output_dir": str(folder),
        "model": {"model_name_or_path": str(base)},
        "environments": [dict(arm.environment)],
        "policies": policies,
        "training": {
            "algorithm": "grpo",
            "num_iterations": 4 * iterations,
            "batch_size": tasks,
            "learning_rate": job.rate,
            "seed": job.seed,
            "report_to": "none",
            "threads": 1,
        },
        "grpo": {"group_size": GROUP},
        "generation": {"max_new_tokens": arm.length},
        "evaluation": {
            "every": max(1, iterations // POINTS),
            "episodes": EPISODES if budget == BUDGET else 16,
            "greedy": False,
        },
        "record": {"tokens": "none", "keep": "evaluations"},
    }
    if arm.workflow:
        config["workflow"] = dict(arm.workflow)
        config["agents"] = {name: {"policy": "all"} for name in arm.agents}
    return ExperimentConfig(**config)


def train(job: Job, folder: Path, budget: int = BUDGET) -> Row:
    """Makes a run.

    Args:
        job: which.
        folder: of models and runs.
        budget: tokens.
    """
    from mrlm import run_experiment

    steps, reader_steps = (STEPS, READER_STEPS) if budget == BUDGET else (10, 0)
    base = base_of(ARMS[job.arm].game, job.seed, folder / "models", steps, reader_steps)
    place = folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    started = time.process_time()
    trained = Trained()
    callbacks = [Stop(budget), trained]
    result = run_experiment(config_of(job, base, place, budget), callbacks=callbacks)
    row = Row(job.arm, job.rate, job.seed)
    ending = judged(job.arm, GreedyAnswers(trained.run))
    row.greedy, row.gain = ending.value, ending.gain
    total = 0
    for metrics in result.history:
        total = int(metrics.get("tokens/total") or total)
        each = [metrics[name] for name in metrics if name.startswith("optimizer_steps/")]
        row.steps += round(sum(each) if each else metrics.get("optimizer_steps") or 0)
        row.episodes += round(metrics.get("episodes/count") or 0)
        if metrics.get("eval/reward/mean") is not None:
            row.tokens.append(total)
            row.rewards.append(round(metrics["eval/reward/mean"], 4))
    row.seconds = round(time.process_time() - started, 2)
    shutil.rmtree(place)
    return row


def load(path: Path) -> list[Row]:
    """The finished runs of a file; a last line that was cut off is not one."""
    return [Row(**row) for row in lines_of(path)]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one in each line; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append(path: Path, row: Row) -> None:
    """Adds a finished run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


SECONDS = 6.0
"""Processor time of a run before any is known, with its share of the base."""


def estimate(rows: Sequence[Row], job: Job) -> float:
    """Seconds that a run will take: those of finished runs of its arm, or of all."""
    own = [row.seconds for row in rows if row.arm == job.arm]
    return fmean(own or [row.seconds for row in rows] or [SECONDS])


def run_missing(
    path: Path,
    missing: Callable[[], Sequence[Job]],
    make: Callable[[Job], Row],
    hours: float | None = None,
) -> None:
    """Makes runs until all are there or the budget is used.

    Args:
        path: file of the finished runs, to which rows are added.
        missing: computes the jobs that are left, the next one first.
        make: makes a run.
        hours: processor time after which no run is begun.
    """
    limit = math.inf if hours is None else hours * 3600
    began = time.process_time()
    while jobs := missing():
        job = jobs[0]
        known = [Row(**{key: row[key] for key in FIELDS if key in row}) for row in lines_of(path)]
        if time.process_time() - began + estimate(known, job) > limit:
            print(f"budget used, {len(jobs)} runs are missing", file=sys.stderr)
            return
        row = make(job)
        append(path, row)
        said = f"{row.arm:24} rate {row.rate:g} seed {row.seed} {row.rewards} {row.seconds:.1f} s"
        print(said, file=sys.stderr, flush=True)
