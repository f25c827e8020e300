"""The folder of a run: its path, the state of an earlier run there, and the log in it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrlm.build.lock import LOCK, check_free, lock, unlock
from mrlm.config import ExperimentConfig
from mrlm.config.paths import INPUTS
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.distributed.silent_log import SilentLog
from mrlm.doctor.examination import make_rules
from mrlm.learn.checkpoint import clear_temporaries, newest_verified, step_of, thin, writing
from mrlm.record.plan import RecordPlan
from mrlm.record.reader import METRICS
from mrlm.tracking.run_log import RunLog
from mrlm.training.input_digests import check_inputs, note_inputs
from mrlm.training.rollback import settle

CONFIG = "config.yaml"


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


def has_earlier_run(folder: Path, resume: Path | None = None, pipeline: bool = False) -> bool:
    """Whether a folder has a run of before, which may be renamed: one that is not resumed, or one
    whose only folders are stages. Raises `ConfigError`: it has other files, of which a `pipeline`
    permits none and a run those that are no run and none of its own; or another process writes."""
    check_free(folder)
    entries = [x for x in folder.iterdir() if x.name != LOCK] if folder.is_dir() else []
    if not entries or _continues(folder, resume):
        return False
    inner = [x for x in entries if x.is_dir() and x.name != "final"]
    if _is_run(folder) or (inner and all(re.match(r"\d+-", x.name) and _is_run(x) for x in inner)):
        for file in folder.glob(f"*/{LOCK}"):
            check_free(file.parent)
        return True
    if pipeline or any(x.name in (CONFIG, METRICS) or (x / CONFIG).is_file() for x in entries):
        raise ConfigError(f"{folder} has other files; give a new folder (output_dir, or --output)")
    return False


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and any((folder / x).is_file() for x in (METRICS, INPUTS))


def _continues(folder: Path, resume: Path | None) -> bool:
    return resume is not None and folder.resolve() in (resume.resolve(), resume.resolve().parent)


def claim(folder: Path, earlier: bool) -> None:
    """Lock a folder for this process; with `earlier`, that of a run before is renamed first, to one
    with a number at its end. Raises `ConfigError`: another process writes there, or it cannot be
    written."""
    lock(folder)
    if earlier:
        places = (Path(f"{folder}.{number}") for number in range(1, 10**6))
        free = folder.rename(next(place for place in places if not place.exists()))
        unlock(folder, renamed=free)
        log.warning("%s held an earlier run, renamed to %s", folder, free)
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
        if resume is not None:
            check_inputs(resume.parent if resume.name.startswith("checkpoint-") else resume)
        claim(folder, has_earlier_run(folder, resume))
        clear_temporaries(folder)
        config = config if record is None else record(folder)
        if not _continues(folder, resume):
            note_inputs(config, folder)
        config.save(folder / CONFIG)
    except OSError as error:
        unlock(folder)
        raise ConfigError(f"output_dir={str(folder)!r} cannot be written: {error}") from error
    return folder
