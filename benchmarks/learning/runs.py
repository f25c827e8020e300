"""One run: a very small model that knows the words of a game but not what they are worth, trained
by one algorithm from one seed."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.learning.models import taught
from benchmarks.learning.table import GAMES, TABLE, Entry
from mrlm.core import registry
from mrlm.environments.matrix import MatrixEnvironment

if TYPE_CHECKING:
    from mrlm import ExperimentConfig

BASELINE = "grpo"
"""What the single agent is trained by."""
COPIES = 16
"""Of every row: outer loops answer each of them anew."""
EPISODES = 256
"""Plays of every evaluation, sampled as in training."""


@dataclass(frozen=True, slots=True)
class Job:
    """Which run.

    Args:
        algorithm: a name of the table.
        game: a game of `matrix`; `relay`, or `alone`: the same sums given to one agent.
        seed: of the model's weights and of everything that is drawn.
        folder: where models and runs are kept.
        quick: fewer steps and evaluations.
    """

    algorithm: str
    game: str
    seed: int
    folder: str
    quick: bool = False

    @property
    def kind(self) -> str:
        """Which model it needs."""
        return "matrix" if self.game in GAMES else "relay"

    @property
    def base(self) -> Path:
        """Folder of the model it starts from."""
        return Path(self.folder) / "models" / f"{self.game}-{self.seed}"


@dataclass(slots=True)
class Curve:
    """What came of a run.

    Args:
        steps, rewards: iterations and the mean reward of the evaluations after them, or what else
            the table measures.
        tokens: sampled while training.
        seconds: that it took.
        error: why there is nothing, if it failed.
    """

    algorithm: str
    game: str
    seed: int
    steps: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def gain(self) -> float:
        """Final minus initial evaluation."""
        return self.rewards[-1] - self.rewards[0]


def jobs_of(
    algorithms: Sequence[str] | None,
    games: Sequence[str] | None,
    seeds: int,
    folder: Path,
    quick: bool = False,
) -> list[Job]:
    """Every run that is asked for; `None` is all. `relay` has three seeds at most; GRPO trains the
    single agent, `alone`, that teams are compared with, as well.

    Raises:
        ValueError: a name that there is not.
    """
    for name in algorithms or ():
        if name not in TABLE:
            raise ValueError(f"there is no entry {name!r}; there are {', '.join(TABLE)}")
    for name in games or ():
        if name not in [*GAMES, "relay"]:
            raise ValueError(f"there is no game {name!r}; there are {', '.join(GAMES)}, relay")
    jobs = []
    known = registry.names("algorithms")
    for name in algorithms or (name for name in TABLE if name in known):
        own = [*TABLE[name].games]
        if TABLE[name].relay is not None:
            own += ["relay", "alone"] if name == BASELINE else ["relay"]
        for game in own:
            if games is None or ("relay" if game == "alone" else game) in games:
                many = seeds if game in GAMES else min(seeds, 3)
                jobs += [Job(name, game, seed, str(folder), quick) for seed in range(many)]
    return jobs


def world_of(game: str, entry: Entry | None = None) -> dict[str, Any]:
    """The `environments:` item of a game."""
    if game in GAMES:
        own = dict(entry.world) if entry else {}
        return {"env_type": "matrix", "normalized": True, **GAMES[game], **own}
    numbers = {"max_number": 5}
    return {
        "env_type": "relay" if game == "relay" else "benchmarks.learning.worlds:Alone",
        **numbers,
    }


def settings_of(job: Job) -> dict[str, Any]:
    """The experiment of a run, as a config takes it."""
    from mrlm.build.environments import environment_factory
    from mrlm.config.play_sections import EnvironmentConfig

    entry = TABLE[job.algorithm]
    matrix = job.kind == "matrix"
    alone = job.game == "alone"
    steps = 60 if matrix else entry.relay_steps * (1 + alone)  # as many tokens as two agents say
    steps = steps * 2 // 5 if job.quick else steps
    world = world_of(job.game, entry)
    made = environment_factory(EnvironmentConfig(**world))
    config: dict[str, Any] = {
        "experiment_name": f"{job.algorithm}-{job.game}-{job.seed}",
        "output_dir": str(Path(job.folder) / "runs" / f"{job.algorithm}-{job.game}-{job.seed}"),
        "model": {"model_name_or_path": str(job.base)},
        "environments": [world],
        "training": {
            "algorithm": job.algorithm,
            "num_iterations": steps,
            "batch_size": 8 if matrix else 16,
            "learning_rate": 2e-3 if matrix else 2e-4,
            "seed": job.seed,
            "report_to": "none",
            "threads": 1,
        },
        "generation": {"max_new_tokens": 1 if matrix else 4 * (1 + alone)},
        "evaluation": {
            "every": max(1, steps // (2 if job.quick else 8)),
            "episodes": EPISODES,
            "greedy": False,
        },
    }
    if not matrix:
        config["training"] |= {"warmup_steps": 10, "adam_beta2": 0.95}
        config["generation"]["temperature"] = 0.4
    if entry.settings:
        config[job.algorithm] = dict(entry.settings)
    if entry.learns_from != "play" and matrix:
        config["data"] = {"dataset": DATA[entry.learns_from](made) * COPIES}
    return config


def rows_of(game: MatrixEnvironment) -> list[dict[str, str]]:
    """The best joint action of a game as rows for supervised learning, one per agent."""
    return [
        {"agent": agent, "prompt": game.question(agent), "completion": game.words[best]}
        for agent, best in zip(game.agents, game.best, strict=True)
    ]


def pairs_of(game: MatrixEnvironment) -> list[dict[str, str]]:
    """For every agent, its part of the best joint action against each of its other actions."""
    return [
        {
            "agent": row["agent"],
            "prompt": row["prompt"],
            "chosen": row["completion"],
            "rejected": word,
        }
        for row, size in zip(rows_of(game), game.sizes, strict=True)
        for word in game.words[:size]
        if word != row["completion"]
    ]


DATA = {"rows": rows_of, "pairs": pairs_of}
"""What a game gives to algorithms that do not play."""


def config_of(job: Job) -> ExperimentConfig:
    """The experiment of a run with what the table lays over it. The matrix games' own keys are not
    those of `relay`, whose model is larger and whose rates are lower."""
    from mrlm import ExperimentConfig

    entry = TABLE[job.algorithm]
    own = entry.config if job.kind == "matrix" else entry.relay or {}
    return ExperimentConfig(**settings_of(job)).merged(own)


def prepare(job: Job) -> None:
    """Make the model that a job starts from, unless it is there already."""
    if job.kind == "matrix":
        taught(job.base, job.kind, world_of(job.game), job.seed, steps=60)
    else:
        said = settings_of(job)["generation"]
        taught(job.base, job.kind, world_of(job.game), job.seed, 300, said)


def train(job: Job) -> Curve:
    """Run a job to its end; a failure is a curve with its reason."""
    from mrlm import run_experiment

    entry, curve = TABLE[job.algorithm], Curve(job.algorithm, job.game, job.seed)
    started = time.perf_counter()
    try:
        result = run_experiment(config_of(job))
    except Exception as error:  # one run that fails must not end the others
        curve.error = f"{type(error).__name__}: {error}"
        return curve
    curve.seconds = time.perf_counter() - started
    for row in result.history:
        curve.tokens += sampled(row)
        if row.get(entry.measure) is not None:
            curve.steps.append(int(row["step"]))
            curve.rewards.append(row[entry.measure])
    shutil.rmtree(result.run_folder)
    return curve


def sampled(row: dict[str, Any]) -> int:
    """Tokens that were drawn in a step."""
    parts = ("episodes/count", "turns/mean", "completion_length/mean")
    return round(math.prod(row.get(part) or 0.0 for part in parts))


def quiet() -> None:
    """Warnings only: many runs share one terminal."""
    for name in ("mrlm", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
