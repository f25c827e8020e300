"""What one does with runs: train a config to its end stage by stage, evaluate, collect, save. The
command line and the trainers call this; it knows neither."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mrlm.asynchrony import beside_play, describe
from mrlm.build import arithmetic_of, build, plan_of, rehearse, run_folder
from mrlm.casting import Parts
from mrlm.config import ExperimentConfig, diff, load_config
from mrlm.core.errors import ConfigError, WorkerLost
from mrlm.core.peers import Peers
from mrlm.core.running import run_async
from mrlm.core.types import Episode
from mrlm.distributed import join
from mrlm.learn.checkpoint import checkpoints, step_of, write_folder, write_json, writing
from mrlm.learn.loading import load_tokenizer
from mrlm.learn.policy import Policy
from mrlm.metrics import api_metrics, episode_metrics
from mrlm.placing import TINY
from mrlm.profile import Profiler
from mrlm.run import Callback, Run
from mrlm.sandbox import opened
from mrlm.scheduling import schedule_of
from mrlm.tracking import logged
from mrlm.train import evaluate_groups, train

log: logging.Logger = logging.getLogger("mrlm")

MODELS = "models.json"
"""Of a stage that began with what the one before it trained: policy -> its model's folder."""


@dataclass(slots=True)
class TrainResult:
    """What a run came to.

    Args:
        metrics: the last step's, plus the last known evaluation's.
        history: one row of metrics per logged step.
        run_folder: where everything is.
    """

    metrics: dict[str, float]
    history: list[dict[str, Any]]
    run_folder: Path


@dataclass(slots=True)
class EvalResult:
    """Metrics of an evaluation and the episodes that were played."""

    metrics: dict[str, float]
    episodes: list[Episode] = field(default_factory=list)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGUSR1 end what is done between steps as Ctrl-C does: at once, with whatever was
    saved before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@_interruptible()
def run_experiment(
    config: ExperimentConfig,
    resume: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Run a config, stage after stage; a stage starts from what the one before it trained.

    Args:
        config: the experiment.
        resume: the run folder to continue from; finished stages are not repeated.
        callbacks: hooks of every stage.

    Raises:
        KeyboardInterrupt: interrupted; the run was saved and can be resumed.
    """
    peers = join(config.distributed)
    stages = config.stage_configs()
    if len(stages) == 1 and not config.stages:
        _check_resumable(config, resume)
        return _closed(build(config, Parts(callbacks=callbacks), Path(resume) if resume else None))
    folder = run_folder(config)
    for name, stage in stages:
        _check_stage(name, stage)
    if resume is None:
        peers.first(lambda: _set_aside(folder))
    results: dict[int, TrainResult] = {}
    trained: dict[str, str] = {}
    before: set[str] = set()
    for index, (name, stage) in enumerate(stages):
        place = folder / f"{index + 1}-{name}"
        title = f"{config.experiment_name}-{name}"
        stage = stage.merged({"output_dir": str(place), "experiment_name": title, "stages": []})
        parts = Parts(callbacks=callbacks, models=_inherited(stage, trained, before))
        if resume is not None and _done(peers, place, stage, last=index == len(stages) - 1):
            log.info("stage %s is finished", name)
        else:
            unfinished = resume is not None and peers.first(_checkpointed(place))
            if unfinished:
                _check_resumable(stage, place)
            run = build(stage, parts, place if unfinished else None)
            if peers.main:
                _note_models(run.folder, parts)
            results[index] = _closed(run)
        trained = _final_folders(place)
        before = {each for each, section in stage.policies.items() if section.trainable}
    last_stage = folder / f"{len(stages)}-{stages[-1][0]}"
    peers.first(lambda: _link_final(folder, last_stage))
    if not results:
        log.info(
            "%s: every stage is finished; to go on, raise training.num_iterations of the last one",
            folder,
        )
        known = peers.first(lambda: logged(last_stage))
        results[len(stages) - 1] = TrainResult(_latest(known), known, folder)
    rows = [row | {"stage": index} for index, done in results.items() for row in done.history]
    return TrainResult(results[max(results)].metrics, rows, folder)


def _finished(place: Path, stage: ExperimentConfig, last: bool) -> bool:
    """Whether a stage need not be run again; the last one may have been given more iterations."""
    wanted = stage.training.num_iterations
    if last and wanted is not None and checkpoints(place):
        return step_of(checkpoints(place)[0]) >= wanted and (place / "final").exists()
    return (place / "final").exists()


def _done(peers: Peers, place: Path, stage: ExperimentConfig, last: bool) -> bool:
    return peers.first(lambda: _finished(place, stage, last))


def _checkpointed(place: Path) -> Callable[[], bool]:
    return lambda: bool(checkpoints(place))


def run_to_end(run: Run) -> TrainResult:
    """Train a run that was built, write `final/`, close its log."""
    profiler = Profiler(run) if run.config.training.profile else None
    interrupted = False
    try:
        with (
            threads(run.config, policies_of(run)),
            _signals(run),
            beside_play(run),
            profiler or nullcontext(),
        ):
            _train(run)
        save_policies(run, run.folder / "final")
        if run.population:
            run.log.say(run.population.report())
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if run.peers.main:
            _note_sandboxes(run.folder)
        run.log.close()
        if profiler is not None:
            run.log.say(str(profiler.report))
        if interrupted:
            run.peers.farewell()
    history = run.peers.first(run.log.history)
    return TrainResult(_latest(history), history, run.folder)


def _latest(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The last known value of every metric."""
    metrics: dict[str, float] = {}
    for row in history:
        metrics |= {key: value for key, value in row.items() if value is not None}
    return metrics


def _train(run: Run) -> None:
    """The loop to its end, also where workers are lost on the way."""
    lost: WorkerLost | None = None
    while True:
        try:
            if lost is not None:
                log.warning("%s; the run goes back to its last checkpoint", lost)
                run.placement.recover(run, lost)
            run_async(train(run))
            return
        except WorkerLost as another:
            lost = another


def _closed(run: Run) -> TrainResult:
    """`run_to_end`, after which nothing of the run is held elsewhere."""
    try:
        return run_to_end(run)
    finally:
        run.placement.close()


def _note_models(folder: Path, parts: Parts) -> None:
    """Write down which models a stage begins with; its config does not say."""
    if parts.models:
        taken = {name: os.path.relpath(path, folder) for name, (path, _) in parts.models.items()}
        with writing(folder / MODELS):
            write_json(folder / MODELS, taken)


def _note_sandboxes(folder: Path) -> None:
    """Write down how the programs of a run were shut in, if there were any."""
    found = opened()
    if found and folder.is_dir():
        with writing(folder / "sandbox.json"):
            (folder / "sandbox.json").write_text(json.dumps(found, indent=2) + "\n")


def evaluate(
    run: Run, episodes: int | None = None, samples: int | None = None, greedy: bool | None = None
) -> EvalResult:
    """Play held-out tasks; works inside a notebook's running event loop too.

    Args:
        run: a built run, such as `trainer.run`.
        episodes: how many tasks; `evaluation.episodes` (or 64) when `None`.
        samples: plays of each task.
        greedy: take the most probable token instead of sampling.
    """
    count = episodes or run.config.evaluation.episodes or 64
    with threads(run.config, policies_of(run)):
        metrics, groups = run_async(evaluate_groups(run, count, samples, greedy))
    return EvalResult(metrics, [episode for group in groups for episode in group])


def save_policies(run: Run, folder: Path) -> Path:
    """One policy: `folder` is its Hugging Face folder; several: `folder/<policy>`. Written all at
    once."""

    def fill(temporary: Path) -> None:
        alone = len(run.learners) == 1
        for learner in run.learners:
            learner.weights_of.save(temporary if alone else temporary / learner.policy)

    with writing(folder):
        run.peers.first(lambda: write_folder(folder, fill))
    return folder


def dry_run(config: ExperimentConfig) -> tuple[str, list[str]]:
    """What a run would do: the resolved config and the batch arithmetic of every stage, and what
    stands in its way. No model is loaded and nothing is written."""
    text = [config.to_yaml()]
    problems: list[str] = []
    for name, stage in config.stage_configs():
        title = f"stage {name}: " if config.stages else ""
        try:
            worlds, rows, cast = plan_of(stage, Parts())
            schedule = schedule_of(stage, stage.algorithm_settings(), cast)
            text.append(f"{title}{cast}\nschedule: {schedule}")
            text += describe(stage)
            text.append(str(arithmetic_of(stage, worlds, rows, cast)))
        except ConfigError as error:
            problems.append(f"{title}{error}")
    return "\n".join(text), problems


def evaluate_model(
    config: ExperimentConfig, episodes: int, samples: int, greedy: bool
) -> EvalResult:
    """Play the worlds and agents of a config with its models as they are; nothing is trained and no
    folder is written."""
    play, policies = rehearse(config)
    with threads(config, policies.values()):
        groups = run_async(play.evaluate(episodes, samples, greedy))
    found = episode_metrics(groups) | api_metrics(play.batcher.engines)
    metrics = {f"eval/{name}": value for name, value in found.items()}
    return EvalResult(metrics, [episode for group in groups for episode in group])


def collect_trajectories(config: ExperimentConfig, episodes: int) -> list[Episode]:
    """Play `episodes` training tasks with the models as they are, sampled; nothing is trained."""
    play, policies = rehearse(config)
    with threads(config, policies.values()):
        groups = run_async(play.take(episodes))
    return [episode for group in groups for episode in group]


# -- small parts -----------------------------------------------------------------------------------


def _check_stage(name: str, stage: ExperimentConfig) -> None:
    """Find out before anything is trained or moved whether a stage can run.

    Raises:
        ConfigError: it cannot; the message starts with the stage.
    """
    try:
        _, _, cast = plan_of(stage, Parts())
        for section in cast.policies.values():
            if section.endpoint is not None:
                continue
            load_tokenizer(section.model or stage.model.model_name_or_path)
    except ConfigError as error:
        raise type(error)(f"stage {name}: {error}") from error


def policies_of(run: Run) -> list[Policy]:
    """Those that learn."""
    return [learner.weights_of for learner in run.learners]


@contextmanager
def threads(config: ExperimentConfig, policies: Iterable[Policy]) -> Iterator[None]:
    """`training.threads`, or one thread for tiny models; restored afterwards."""
    before = torch.get_num_threads()
    wanted = config.training.threads
    if wanted is None:
        wanted = 1 if max((each.size for each in policies), default=0) < TINY else before
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _signals(run: Run) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the run at the next step boundary, saved; the second ends it
    at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupted = run.stopping = True
        log.warning("stopping after this step; once more stops at once")

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, handle) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_resumable(config: ExperimentConfig, resume: str | os.PathLike[str] | None) -> None:
    """A run is continued with the config it was started with, but for what may change.

    Raises:
        ConfigError: what differs.
    """
    if resume is None:
        return
    folder = Path(resume)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such run folder to resume from")
    place = folder.parent if folder.name.startswith("checkpoint-") else folder
    known = place / "config.yaml"
    if not known.is_file():
        raise ConfigError(f"{folder}: it has no config.yaml, so it is no run folder")
    changes = diff(load_config(known), config)
    if changes:
        raise ConfigError(
            f"{folder} was started with another config, so it cannot be resumed with this one:\n  "
            + "\n  ".join(changes)
        )


def _inherited(
    stage: ExperimentConfig, trained: dict[str, str], before: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """The models a stage starts from: each policy from the one of its name in the stage before, or
    from the only one. A frozen policy that names its model and was not trained `before` keeps it,
    and one behind an API has none."""
    if not trained:
        return {}
    names = list(trained)
    if stage.policies:
        names = [
            name
            for name, section in stage.policies.items()
            if section.endpoint is None
            and (section.model is None or section.trainable or name in before)
        ]
    only = next(iter(trained.values())) if len(trained) == 1 else None
    models = {name: (trained.get(name, only), None) for name in names}
    missing = [name for name, (path, _) in models.items() if path is None]
    if missing:
        raise ConfigError(
            f"stages: policy {missing[0]!r} does not exist in the stage before, which trained "
            f"{', '.join(trained)}"
        )
    return models


def _final_folders(place: Path) -> dict[str, str]:
    """policy -> folder of a finished stage."""
    final = place / "final"
    if (final / "config.json").is_file() or (final / "adapter_config.json").is_file():
        return {"policy": str(final)}
    return {folder.name: str(folder) for folder in sorted(final.iterdir()) if folder.is_dir()}


def _link_final(folder: Path, last: Path) -> None:
    """The run's `final` is the last stage's."""
    link = folder / "final"
    if link.is_symlink():
        link.unlink()
    link.symlink_to(last.relative_to(folder) / "final")


def _set_aside(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        number = next(i for i in range(1, 10**6) if not Path(f"{folder}.{i}").exists())
        folder.rename(f"{folder}.{number}")
        log.info("%s held an earlier run; it is %s.%d now", folder, folder, number)
