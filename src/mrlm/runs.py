"""Operations on a run: train to the end, evaluate, play with its models, save them. Called by the
command line, the trainers and `experiment.py`, and independent of them."""

import json
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from mrlm.build.async_play import beside_play
from mrlm.build.in_process import TINY
from mrlm.build.lock import lock, locked, unlock
from mrlm.build.run import rehearse
from mrlm.config import ExperimentConfig
from mrlm.core.episodes import Episode
from mrlm.core.errors import WorkerLost
from mrlm.core.log import log
from mrlm.core.progress import counted, listening
from mrlm.core.sync_async import run_async
from mrlm.learn.checkpoint import checkpoints, step_of, write_folder, writing
from mrlm.learn.policy.policy import Policy
from mrlm.play.failure_log import AllFailedError
from mrlm.record.vocabulary import VOCABULARY, write_vocabulary
from mrlm.record.writer import check_new, write_record
from mrlm.sandbox import opened
from mrlm.teams.saving import write_team
from mrlm.tracking.console import leave_closed_terminal
from mrlm.tracking.summary import run_summary, tied_steps
from mrlm.train import train
from mrlm.training.iteration import evaluate_groups
from mrlm.training.metrics import api_metrics, episode_metrics
from mrlm.training.profiler import Profiler
from mrlm.training.run import Phase, Run
from mrlm.training.saving import save
from mrlm.training.stopping import watching


@dataclass(slots=True)
class TrainResult:
    """The result of a run; printed, a summary on one screen.

    Args:
        metrics: those of the last step, and of the latest evaluation.
        history: one row of metrics per logged step.
        run_folder: folder of its files.
    """

    metrics: dict[str, float]
    history: list[dict[str, Any]]
    run_folder: Path

    def __str__(self) -> str:
        return run_summary(self.history, self.run_folder)


@dataclass(slots=True)
class EvalResult:
    """The result of an evaluation.

    Args:
        metrics: name -> value, every name under `eval/`.
        episodes: the episodes that were played.
    """

    metrics: dict[str, float]
    episodes: list[Episode] = field(default_factory=list)


def run_to_end(run: Run) -> TrainResult:
    """Train a run to its end, write `final/` (unless the end is not to be saved), close its log."""
    profiler = Profiler(run) if run.config.training.profile else None
    interrupted = False
    if run.peers.main:
        lock(run.folder)
    try:
        with (
            run.log.messages(),
            listening(run.log.progress),
            threads(run.config, policies_of(run)),
            _signals(run),
            beside_play(run),
            watching(run, save_policies),
            profiler or nullcontext(),
        ):
            if run.step >= run.total_steps:
                log.warning(
                    "%s: it has done %s already; raise training.num_iterations to continue",
                    run.folder,
                    counted(run.total_steps, "iteration"),
                )
            _train(run)
        if run.saves_end:
            save_policies(run, run.folder / "final")
            run.phase = Phase.SAVED
        if run.population:
            run.log.say(run.population.report())
    except KeyboardInterrupt:
        interrupted = True
        raise
    except AllFailedError as error:
        run.log.episodes(run.step + 1, [error.episodes])
        raise
    finally:
        if run.peers.main:
            _note_sandboxes(run.folder)
        run.log.close()
        if run.peers.main:
            unlock(run.folder)
        if profiler is not None:
            run.log.say(str(profiler.report))
        if interrupted:
            run.peers.farewell()
    history = run.peers.first(run.log.history)
    if tied := tied_steps(history):
        log.warning("%s", tied)
    return TrainResult(latest(history), history, run.folder)


class LastStep:
    """The saving of a run's last step, as a checkpoint and as `final/`: by `save`, and when the
    `owner` of the run or the program ends."""

    def __init__(self, run: Run, owner: object) -> None:
        self.run = run
        self._folder = _folder_id(run.folder)
        self._trained = False
        weakref.finalize(owner, self.save)

    def train(self, save: bool | None) -> TrainResult:
        """Trains to the end, which is saved there if `save`; by default in the first call only."""
        later = self._trained if save is None else not save
        self.run.saves_end = not (later and self.run.defers)
        result = run_to_end(self.run)
        self._trained = True
        return result

    def save(self) -> None:
        """Saves the last step, if it is not saved yet. A folder that another run has by now is left
        alone."""
        run = self.run
        if run.phase is not Phase.UNSAVED:
            return
        folders = checkpoints(run.folder)
        if _folder_id(run.folder) != self._folder or (folders and step_of(folders[0]) > run.step):
            text = "%s was removed or is used by another run, so step %d of this one is not saved"
            log.warning(text, run.folder, run.step)
            return
        with locked(run.folder) if run.peers.main else nullcontext():
            if not (run.folder / f"checkpoint-{run.step}").is_dir():
                save(run)
            save_policies(run, run.folder / "final")
        run.phase = Phase.SAVED


def _folder_id(folder: Path) -> int | None:
    """A number of a folder that it keeps when it is moved; `None` without one."""
    return folder.stat().st_ino if folder.is_dir() else None


def latest(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The last known value of every metric."""
    metrics: dict[str, float] = {}
    for row in history:
        metrics |= {key: value for key, value in row.items() if value is not None}
    return metrics


def _train(run: Run) -> None:
    """Run the loop to its end, restarting after lost workers."""
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


def closed(run: Run) -> TrainResult:
    """`run_to_end`, then release all resources of the run."""
    try:
        return run_to_end(run)
    finally:
        run.placement.close()


def _note_sandboxes(folder: Path) -> None:
    """Record the sandboxes of a run, if there were any."""
    sandboxes, file = opened(), folder / "sandbox.json"
    if sandboxes and folder.is_dir():
        with writing(file):
            file.write_text(json.dumps(sandboxes, indent=2) + "\n", encoding="utf-8")


def evaluate(
    run: Run,
    episodes: int | None = None,
    samples: int | None = None,
    greedy: bool | None = None,
    *,
    record: str | os.PathLike[str] | None = None,
) -> EvalResult:
    """Play held-out tasks; works inside a notebook's running event loop too.

    Args:
        run: a built run, such as `trainer.run`.
        episodes: number of tasks; by default `evaluation.episodes`, or 64.
        samples: episodes of each task.
        greedy: take the most probable token instead of sampling.
        record: a new folder for the episodes, which `read_run`, `mrlm look` and `mrlm export` read.

    Raises:
        ConfigError: the folder of the record is not empty.
    """
    count = episodes or run.config.evaluation.episodes or 64
    target = None if record is None else check_new(record)
    with threads(run.config, policies_of(run)):
        metrics, groups = run_async(evaluate_groups(run, count, samples, greedy))
    if target is not None:
        config = _as_evaluated(run.config, count, samples, greedy)
        copy = partial(shutil.copy, run.folder / VOCABULARY)
        at = {"step": run.step, "opponents": run.population.standing()}
        run.peers.first(lambda: write_record(target, groups, config, metrics, copy, **at))
    return EvalResult(metrics, [episode for group in groups for episode in group])


def save_policies(run: Run, folder: Path) -> Path:
    """Save the trained policies, atomically: a single one in `folder` itself as a Hugging Face
    folder, several in `folder/<policy>`; with `team.yaml`, which plays the team, and cards."""

    def fill(temporary: Path) -> None:
        alone = len(run.learners) == 1
        for learner in run.learners:
            learner.weights_of.save(temporary if alone else temporary / learner.policy)
        if not run.spec.scalar_head:  # a scorer is not a player
            write_team(run, temporary)

    with writing(folder):
        run.peers.first(lambda: write_folder(folder, fill))
    return folder


def evaluate_model(
    config: ExperimentConfig,
    episodes: int,
    samples: int,
    greedy: bool,
    record: str | os.PathLike[str] | None = None,
) -> EvalResult:
    """Evaluate the models of a config in its environments, without training or a run folder.

    Args:
        config: the config.
        episodes: number of held-out tasks.
        samples: episodes of each task.
        greedy: take the most probable token instead of sampling.
        record: a new folder for the episodes, which `read_run`, `mrlm look` and `mrlm export` read.

    Raises:
        ConfigError: the folder of the record is not empty.
    """
    target = None if record is None else check_new(record)
    play, policies = rehearse(config)
    with threads(config, policies.values()):
        groups = run_async(play.evaluate(episodes, samples, greedy))
    by_name = episode_metrics(groups) | api_metrics(play.batcher.engines)
    metrics = {f"eval/{name}": value for name, value in by_name.items()}
    if target is not None:
        same = _as_evaluated(config, episodes, samples, greedy)
        write_record(target, groups, same, metrics, _vocabulary_of(policies))
    return EvalResult(metrics, [episode for group in groups for episode in group])


def collect_trajectories(
    config: ExperimentConfig, episodes: int, record: str | os.PathLike[str] | None = None
) -> list[Episode]:
    """Play training tasks with the models as they are, sampled, without training.

    Args:
        config: the config.
        episodes: number of tasks.
        record: a new folder for the episodes, which `read_run`, `mrlm look` and `mrlm export` read.

    Raises:
        ConfigError: the folder of the record is not empty.
    """
    target = None if record is None else check_new(record)
    play, policies = rehearse(config)
    with threads(config, policies.values()):
        groups = run_async(play.take(episodes))
    if target is not None:
        write_record(target, groups, config, episode_metrics(groups), _vocabulary_of(policies))
    return [episode for group in groups for episode in group]


def _as_evaluated(
    config: ExperimentConfig, episodes: int, samples: int | None, greedy: bool | None
) -> ExperimentConfig:
    """The config with the settings of an evaluation, with which its episodes can be replayed."""
    settings = {"episodes": episodes, "samples": samples, "greedy": greedy}
    changes = {name: value for name, value in settings.items() if value is not None}
    return config.merged({"evaluation": changes})


def _vocabulary_of(policies: Mapping[str, Policy]) -> Callable[[Path], None]:
    tokenizers = {name: policy.tokenizer for name, policy in policies.items()}
    return lambda folder: write_vocabulary(folder, tokenizers)


def policies_of(run: Run) -> list[Policy]:
    """The trained policies."""
    return [learner.weights_of for learner in run.learners]


@contextmanager
def threads(config: ExperimentConfig, policies: Iterable[Policy]) -> Iterator[None]:
    """Set `training.threads`, or one thread for tiny models; restored afterwards."""
    before = torch.get_num_threads()
    count = config.training.threads
    if count is None:
        count = 1 if max((policy.size for policy in policies), default=0) < TINY else before
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def handling(
    watched: Sequence[str], handle: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Call `handle` for the signals of some names, in the main thread; restored afterwards. Those
    that the process ignores (`nohup`) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    named = [signal.Signals[name] for name in watched]
    numbers = [signum for signum in named if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler that ends the work at once; an event loop replaces Python's own, but not this."""
    raise KeyboardInterrupt


ENDS = ("SIGTERM", "SIGUSR1", "SIGHUP")
"""Signals that end a run, saved; SIGHUP is that of a closed terminal."""


def _signals(run: Run) -> AbstractContextManager[None]:
    """The first Ctrl-C, or one of `ENDS`, ends the run at the next step boundary, saved; the second
    ends it at once."""

    def handle(number: int, frame: object) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupted = run.stopping = True
        leave_closed_terminal()
        log.warning("stopping after this step; a second signal stops at once")

    return handling(("SIGINT", *ENDS), handle)
