"""Weights that a run has saved, as further policies of a rebuilt run."""

import os
from collections.abc import Mapping
from pathlib import Path

from mrlm.build.engines import check_engine, engine_of
from mrlm.core.errors import ConfigError, ModelError
from mrlm.learn.checkpoint import checkpoints
from mrlm.learn.policy.copies import opponent_copy
from mrlm.learn.policy.loading import is_model, model_folders, run_model
from mrlm.play.engine import Engine
from mrlm.training.run import Run

Weights = str | os.PathLike[str]


def weight_folders(folder: Path, weights: Weights, policies: list[str]) -> dict[str, Path]:
    """policy -> the folder of its saved weights.

    Args:
        folder: the run folder.
        weights: `checkpoint-40` (or `checkpoint:40`), `final`, or another folder.
        policies: the trained policies.

    Raises:
        ConfigError: it has no weights of any of them.
    """
    name = str(weights).replace("checkpoint:", "checkpoint-")
    source = folder / name if (folder / name).is_dir() else Path(weights)
    if not source.is_dir():
        saved = [path.name for path in sorted(checkpoints(folder))]
        saved += ["final"] if (folder / "final").is_dir() else []
        raise ConfigError(
            f"weights {str(weights)!r}: not a folder, and {folder} has "
            f"{', '.join(saved) or 'no saved weights'}"
        )
    source = source / "policies" if (source / "policies").is_dir() else Path(run_model(str(source)))
    if is_model(source):
        folders = {name: source for name in policies} if len(policies) == 1 else {}  # noqa: C420
    else:
        folders = {n: Path(path) for n, path in model_folders(source).items() if n in policies}
    if not folders:
        raise ConfigError(
            f"weights {str(weights)!r}: {source} has no weights of the trained policies "
            f"({', '.join(policies)})"
        )
    return folders


def load_beside(run: Run, folders: Mapping[str, Path], suffix: str) -> dict[str, Engine]:
    """Load saved weights into copies of the trained policies, whose names get a suffix.

    Returns:
        Name of the copy -> its engine.

    Raises:
        ConfigError: the engine is a server, which takes no more; or the weights do not fit.
    """
    if run.config.engine.of_server() or "policies" not in check_engine(run.config)[1]:
        raise ConfigError(
            f"engine.name={run.config.engine.name!r} is a server, which samples with the weights "
            "of the run only; leave out --weights"
        )
    policy_weights = {player.policy: player.weights_of for player in [*run.learners, *run.frozen]}
    copies = {}
    for name, folder in folders.items():
        copies[name + suffix] = other = opponent_copy(policy_weights[name], name + suffix)
        try:
            other.load(folder)
        except (RuntimeError, OSError, ModelError) as error:
            raise ConfigError(
                f"weights {str(folder)!r} do not fit policy {name!r}: {error}"
            ) from error
    made = engine_of(run.config, copies)
    return {name: made for name in copies}  # noqa: C420
