"""Our side: runs that the library builds from a config, as a user's program would, and one
iteration of them at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import make_model, make_tokenizer
from benchmarks.work import Counts, Work
from benchmarks.worlds import FixedWorld
from mrlm import ExperimentConfig, Group, Trainer
from mrlm.core.sync_async import run_async
from mrlm.play.sources.source import EpisodeSource
from mrlm.train import iterate

RATE = 1e-5


class Recorded(EpisodeSource):
    """A source of groups that keeps the last ones, to be counted after they were learned from."""

    def __init__(self, source: EpisodeSource) -> None:
        self.source = source
        self.groups: list[Group] = []

    async def take(self, count: int) -> list[Group]:
        self.groups = await self.source.take(count)
        return self.groups

    def num_tasks(self) -> int | None:
        return self.source.num_tasks()

    def state_dict(self) -> dict[str, Any]:
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)


class Ours:
    """One run of ours, an iteration at a time.

    Args:
        trainer: what to run.
        folder: its run folder, which is removed with this object.
    """

    def __init__(self, trainer: Trainer, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._folder = folder
        self.trainer = trainer
        self.run = trainer.run
        self.recorded = Recorded(self.run.source)
        self.run.source = self.recorded
        self.metrics: dict[str, float] = {}
        self.settle: Callable[[int], object] = lambda step: None
        """Called with the number of every step, at its end, as the loop does."""

    def step(self) -> None:
        """Play, credit, learn and share once, and write the metrics, as the loop does."""
        self.metrics = run_async(iterate(self.run))
        self.run.step += 1
        self.run.log.log(self.run.step, self.metrics)
        self.settle(self.run.step)

    def counts(self) -> Counts:
        """Tokens of the last step. A turn without an advantage, or with advantage zero, was not
        trained on. Where episodes fork, what came before stands in all of them, but as a copy that
        is not trained in all but one."""
        episodes = [episode for group in self.recorded.groups for episode in group]
        turns = [turn for episode in episodes for turn in episode.turns if turn.trained]
        return Counts(
            sum(len(turn.prompt_ids) for turn in turns),
            sum(len(turn) for turn in turns if turn.logprobs is not None),
            sum(len(turn) for turn in turns if _teaches(turn.advantages)),
        )

    def close(self) -> None:
        """Let go of the run's files."""
        self.run.log.close()
        self._folder.cleanup()


def playing(
    work: Work,
    algorithm: str,
    settings: dict[str, Any] | None = None,
    *,
    world: Any = None,
    workflow: Any = "turns",
    later: int | None = None,
    device: str = "cpu",
    model: Any = None,
    **sections: Any,
) -> Ours:
    """A run that plays fixed work and learns from it.

    Args:
        work: how much.
        algorithm: name of the plug-in.
        settings: its own settings.
        world: instead of `FixedWorld`.
        workflow: who speaks when.
        later: tokens of every message after the first.
        device: where the model is.
        model: instead of new ones of the work's shape.
        **sections: further sections of the config.
    """
    folder = tempfile.TemporaryDirectory(prefix="mrlm-bench-")
    own = {"group_size": work.group} | (settings or {})
    config = _config(work, algorithm, own, folder.name, device).merged(sections)
    models = _models(work, device, model)
    trainer = Trainer(
        config=config,
        agents=models,
        tokenizer=make_tokenizer(work.shape),
        environment=world or FixedWorld(work.shape, work.names, work.read, work.turns, later),
        workflow=workflow,
        share_policy={"shared": True, "own": False, "lora": "lora"}[work.weights],
    )
    return Ours(trainer, folder)


def reading(
    work: Work,
    algorithm: str,
    rows: Sequence[dict[str, str]],
    *,
    device: str = "cpu",
    **sections: Any,
) -> Ours:
    """A run that learns from written rows."""
    folder = tempfile.TemporaryDirectory(prefix="mrlm-bench-")
    config = _config(work, algorithm, {}, folder.name, device).merged(sections)
    trainer = Trainer(
        config=config,
        model=make_model(work.shape, device=device),
        tokenizer=make_tokenizer(work.shape, endless=False),
        train_dataset=list(rows),
    )
    return Ours(trainer, folder)


def _models(work: Work, device: str, model: Any) -> dict[str, Any]:
    """agent -> its model; one object for all agents unless each has its own weights."""
    if work.weights == "own" and model is None:
        return {name: make_model(work.shape, seed, device) for seed, name in enumerate(work.names)}
    return dict.fromkeys(work.names, model or make_model(work.shape, device=device))


def _config(
    work: Work, algorithm: str, settings: dict[str, Any], folder: str, device: str
) -> ExperimentConfig:
    data: dict[str, Any] = {
        "experiment_name": "bench",
        "output_dir": str(Path(folder) / "run"),
        "model": {"device": device},
        "training": {
            "algorithm": algorithm,
            "batch_size": work.prompts,
            "num_iterations": 10**9,
            "learning_rate": RATE,
            "precision": work.precision,
            "report_to": "none",
            "checks": "off",
            "logging_steps": 10**9,
        },
        "generation": {"max_new_tokens": work.written},
        "engine": {"timeout": 36000},
    }
    if settings:
        data[algorithm] = settings
    return ExperimentConfig(**data)


def _teaches(advantages: Any) -> bool:
    if advantages is None:
        return False
    values = advantages if hasattr(advantages, "__iter__") else [advantages]
    return any(value != 0 for value in values)
