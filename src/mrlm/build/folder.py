"""The folder of a run: where it is, what of an earlier run is there, and the log in it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers
from mrlm.distributed.silent_log import SilentLog
from mrlm.learn.checkpoint import clear_temporaries, newest_verified, step_of, thin, writing
from mrlm.tracking.run_log import RunLog
from mrlm.training.input_digests import check_inputs, note_inputs
from mrlm.training.rollback import settle

log: logging.Logger = logging.getLogger("mrlm")


def open_log(
    config: ExperimentConfig,
    folder: Path,
    total: int,
    state: dict[str, Any] | None,
    peers: Peers = ALONE,
) -> RunLog:
    """The log of a run, from its beginning or from where the state of a checkpoint left off. Of
    several processes one writes it."""
    if not peers.main:
        return SilentLog(folder)
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
        )


def checkpoint_of(config: ExperimentConfig, resume: Path) -> Path:
    """What to go on from. If the run goes on in its folder, what it was doing there when it was
    killed is brought to its end."""
    own = run_folder(config).resolve()
    if resume.resolve() == own:
        settle(own)
    elif resume.resolve().parent == own and resume.name.startswith("checkpoint-"):
        settle(own, step_of(resume))
    found = newest_verified(resume)
    if found.resolve().parent == own:
        thin(found, config.training.save_total_limit)
    return found


def run_folder(config: ExperimentConfig) -> Path:
    """Where a run writes."""
    return Path(config.output_dir or f"outputs/{config.experiment_name}")


def set_aside(folder: Path) -> None:
    """Rename the folder of an earlier run to one that ends in a number."""
    number = next(i for i in range(1, 10**6) if not Path(f"{folder}.{i}").exists())
    folder.rename(f"{folder}.{number}")
    log.info("%s held an earlier run; it is %s.%d now", folder, folder, number)


def prepare_folder(config: ExperimentConfig, resume: Path | None) -> Path:
    """The run's folder with its `config.yaml`. A folder of an earlier run is moved aside unless it
    is resumed.

    Raises:
        ConfigError: the folder cannot be written.
    """
    folder = run_folder(config)
    try:
        same = resume is not None and folder.resolve() in (
            resume.resolve(),
            resume.resolve().parent,
        )
        if resume is not None:
            check_inputs(resume.parent if resume.name.startswith("checkpoint-") else resume)
        if not same and (list(folder.glob("config.yaml")) or list(folder.glob("*/config.yaml"))):
            set_aside(folder)
        folder.mkdir(parents=True, exist_ok=True)
        clear_temporaries(folder)
        config.save(folder / "config.yaml")
        if not same:
            note_inputs(config, folder)
    except OSError as error:
        raise ConfigError(f"output_dir={str(folder)!r} cannot be written: {error}") from error
    return folder
