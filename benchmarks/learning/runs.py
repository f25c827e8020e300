"""The experiments of all algorithms on matrix games and on `relay`, from a very small model that
knows the answers of a game but not their rewards: healthy runs for the doctor, and configs of
tests. The learning curves are those of `curves.py`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.learning.models import taught
from benchmarks.learning.table import GAMES, TABLE, Entry
from mrlm.environments.games.matrix import MatrixEnvironment

if TYPE_CHECKING:
    from mrlm import ExperimentConfig

COPIES = 16
"""Of every row: outer loops answer each of them anew."""
EPISODES = 256
"""Plays of every evaluation, sampled as in training."""


@dataclass(frozen=True, slots=True)
class Job:
    """Which run.

    Args:
        algorithm: a name of the table.
        game: a game of `matrix`, or `relay`.
        seed: of the model's weights and of everything that is drawn.
        folder: where models and runs are kept.
    """

    algorithm: str
    game: str
    seed: int
    folder: str

    @property
    def kind(self) -> str:
        """Which model it needs."""
        return "matrix" if self.game in GAMES else "relay"

    @property
    def base(self) -> Path:
        """Folder of the model it starts from."""
        return Path(self.folder) / "models" / f"{self.game}-{self.seed}"


def world_of(game: str, entry: Entry | None = None) -> dict[str, Any]:
    """The `environments:` item of a game."""
    if game in GAMES:
        own = dict(entry.world) if entry else {}
        return {"env_type": "matrix", "normalized": True, **GAMES[game], **own}
    return {"env_type": "relay", "max_number": 5}


def settings_of(job: Job) -> dict[str, Any]:
    """The experiment of a run, as a config takes it."""
    from mrlm.build.environments import environment_factory
    from mrlm.config.play_sections import EnvironmentConfig

    entry = TABLE[job.algorithm]
    matrix = job.kind == "matrix"
    steps = 60 if matrix else entry.relay_steps
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
        "generation": {"max_new_tokens": 1 if matrix else 4},
        "evaluation": {
            "every": max(1, steps // 8),
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


def quiet() -> None:
    """Warnings only: many runs share one terminal."""
    for name in ("mrlm", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
