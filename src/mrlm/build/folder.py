"""The folder of a run: its path, the state of an earlier run there, and the log in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrlm.build.lock import lock, unlock
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.distributed.silent_log import SilentLog
from mrlm.doctor.examination import make_rules
from mrlm.learn.checkpoint import clear_temporaries, newest_verified, step_of, thin, writing
from mrlm.record.plan import RecordPlan
from mrlm.tracking.run_log import RunLog
from mrlm.training.input_digests import check_inputs, note_inputs
from mrlm.training.rollback import settle


def open_log(
    config: ExperimentConfig,
    folder: Path,
    total: int,
    state: dict[str, Any] | None,
    peers: Peers = ALONE,
) -> RunLog:
    """The log of a run, from its beginning or from the state of a checkpoint. Only one of several
    processes writes it."""
    if not peers.main:
        return SilentLog(folder)
    training = config.training
    rules = {} if training.doctor == "off" else make_rules(training.doctor_rules)
    with writing(folder):
        return RunLog(
            folder,
            config.experiment_name,
            config.resolved(),
            total,
            list(config.training.report_to),
            resume_step=state["step"] + 1 if state else None,
            state=state["parts"]["log"] if state else None,
            every=config.training.logging_steps,
            show=config.training.show,
            record=RecordPlan(**dict(config.record)),
            rules=rules,
        )


def checkpoint_of(config: ExperimentConfig, resume: Path) -> Path:
    """The checkpoint to continue from. If the run continues in its own folder, an operation that
    was interrupted there is completed."""
    run_dir = run_folder(config).resolve()
    if run_dir in (resume.resolve(), resume.resolve().parent):
        lock(run_dir)
    if resume.resolve() == run_dir:
        settle(run_dir)
    elif resume.resolve().parent == run_dir and resume.name.startswith("checkpoint-"):
        settle(run_dir, step_of(resume))
    checkpoint = newest_verified(resume)
    if checkpoint.resolve().parent == run_dir:
        thin(checkpoint, config.training.save_total_limit)
    return checkpoint


def run_folder(config: ExperimentConfig) -> Path:
    """The folder that a run writes to; absolute, as the current folder may change."""
    folder = Path(config.output_dir or f"outputs/{config.experiment_name}")
    return folder.expanduser().absolute()


def set_aside(folder: Path) -> None:
    """Renames the folder of an earlier run to one with a number at its end."""
    places = (Path(f"{folder}.{number}") for number in range(1, 10**6))
    free = folder.rename(next(place for place in places if not place.exists()))
    unlock(folder, renamed=free)
    log.info("%s held an earlier run, renamed to %s", folder, free)


def claim(folder: Path, earlier: bool) -> None:
    """Lock a folder for this process; with `earlier`, that of a run before is renamed first. Raises
    `ConfigError`: another process writes there, or it cannot be written."""
    lock(folder)
    if earlier:
        set_aside(folder)
        lock(folder)


def prepare_folder(
    config: ExperimentConfig,
    resume: Path | None,
    record: Callable[[Path], ExperimentConfig] | None = None,
) -> Path:
    """The run's folder with its `config.yaml`, locked. The folder of an earlier run is renamed
    unless that run is resumed. `record` returns the config to write into the folder, where the run
    has live objects too. Raises `ConfigError`: the folder cannot be written, or another process
    writes there."""
    folder = run_folder(config)
    try:
        origins = [] if resume is None else [resume.resolve(), resume.resolve().parent]
        same = folder.resolve() in origins
        if resume is not None:
            check_inputs(resume.parent if resume.name.startswith("checkpoint-") else resume)
        earlier = list(folder.glob("config.yaml")) or list(folder.glob("*/config.yaml"))
        claim(folder, not same and bool(earlier))
        clear_temporaries(folder)
        config = config if record is None else record(folder)
        config.save(folder / "config.yaml")
        if not same:
            note_inputs(config, folder)
    except OSError as error:
        unlock(folder)
        raise ConfigError(f"output_dir={str(folder)!r} cannot be written: {error}") from error
    return folder
