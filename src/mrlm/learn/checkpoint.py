"""Exact save and resume. A checkpoint is written to a temporary folder and renamed, with a digest
of every file; a run resumes from the newest one that verifies."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from mrlm.core.errors import CheckpointError, TrainingError
from mrlm.core.log import log
from mrlm.core.replacing import replacing
from mrlm.learn.critics.critic import Critic
from mrlm.learn.learner import Learner
from mrlm.learn.policy.storage import is_cut

MANIFEST = "manifest.json"
Owner = Learner | Critic
"""The owner of an optimiser."""


def write_checkpoint(
    folder: Path,
    step: int,
    learners: Sequence[Learner],
    parts: dict[str, dict[str, Any]],
    keep: int | None,
    critics: Sequence[Critic] = (),
    shards: Path | None = None,
) -> Path:
    """Writes `folder/checkpoint-<step>` and removes the oldest beyond `keep` (at least two stay).

    Args:
        step: number of finished iterations.
        learners, critics: written as Hugging Face folders with their optimisers.
        parts: name -> JSON-able state of everything else.
        keep: checkpoints to keep; `None`: all.
        shards: a folder with sharded state to include in the checkpoint.
    """
    from safetensors.torch import save_file

    target = folder / f"checkpoint-{step}"

    def fill(temporary: Path) -> None:
        state: dict[str, Any] = {"step": step, "parts": parts, "learners": {}, "critics": {}}
        for learner in learners:
            learner.weights_of.save(temporary / "policies" / learner.policy)
            learner.weights_of.save_reference(temporary / "references" / learner.policy)
        for critic in critics:
            critic.save(temporary / "critics" / critic.name)
        for kind, name, owner, file in _owners(temporary, learners, critics):
            tensors, state[kind][name] = owner.optimizer_state()
            whole = {key: value.contiguous() for key, value in tensors.items() if not is_cut(value)}
            file.parent.mkdir(exist_ok=True)
            save_file(whole, file)
        (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
        if shards is not None:
            shards.rename(temporary / "shards")

    write_folder(target, fill)
    thin(target, keep)
    return target


def thin(newest: Path, keep: int | None) -> None:
    """Removes the oldest checkpoints but `newest` and others, `keep` in all (at least two); none if
    `keep` is `None`."""
    if keep is not None:
        older = [x for x in checkpoints(newest.parent) if step_of(x) < step_of(newest)]
        for checkpoint in older[max(2, keep) - 1 :]:
            remove_folder(checkpoint)


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint: `step`, `parts`, `learners`, `critics`."""
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))


def read_checkpoint(
    folder: Path,
    learners: Sequence[Learner],
    critics: Sequence[Critic] = (),
    shards_of: Callable[[str, Owner], dict[str, Tensor]] | None = None,
) -> dict[str, Any]:
    """Loads weights and optimisers in place from a verified checkpoint folder; returns its state
    (`step`, `parts`). `shards_of("learner" or "critic", name)` reads sharded state."""
    from safetensors.torch import load_file

    state = read_state(folder)
    for learner in learners:
        learner.weights_of.load(folder / "policies" / learner.policy)
        learner.weights_of.load_reference(folder / "references" / learner.policy)
    for critic in critics:
        critic.load(folder / "critics" / critic.name)
    for kind, name, owner, file in _owners(folder, learners, critics):
        tensors = load_file(file)
        if shards_of is not None:
            tensors |= shards_of(kind.removesuffix("s"), owner)
        owner.load_optimizer_state(tensors, state[kind][name])
    return state


def _owners(
    folder: Path, learners: Sequence[Learner], critics: Sequence[Critic]
) -> Iterator[tuple[str, str, Owner, Path]]:
    """Every owner of an optimiser: its kind, its name, itself, and the file of its tensors."""
    for owner in learners:
        yield "learners", owner.policy, owner, folder / "optimizers" / f"{owner.policy}.safetensors"
    for owner in critics:
        critic_folder = folder / "critic_optimizers"
        yield "critics", owner.name, owner, critic_folder / f"{owner.name}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, newest first."""
    folders = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(folders, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """Number of finished iterations in a checkpoint."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def newest_verified(folder: Path) -> Path:
    """The newest checkpoint of a run's folder (or the given one) whose files are complete and
    unchanged, else a `CheckpointError`; logs the skipped ones and clears stale temporaries."""
    clear_temporaries(folder)
    candidates = [folder] if (folder / MANIFEST).is_file() else checkpoints(folder)
    for candidate in candidates:
        damage = verify(candidate)
        if damage is None:
            return candidate
        log.warning("%s is damaged (%s); trying an older checkpoint", candidate, damage)
    what = "no checkpoint" if not candidates else "no undamaged checkpoint"
    raise CheckpointError(f"{folder} has {what} to resume from; start without --resume")


def verify(folder: Path) -> str | None:
    """Checks a folder against its manifest; returns the first fault, or `None`."""
    try:
        digests = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{MANIFEST}: {error}"
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if file_digest(path) != digest:
            return f"{name} has changed"
    return None


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder under a temporary name, adds digests, flushes it to disk and renames it."""
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        fill(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        digests = {path.relative_to(temporary).as_posix(): file_digest(path) for path in files}
        (temporary / MANIFEST).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        for path in [*files, temporary / MANIFEST]:
            _flush(path)
        for directory in [*(path for path in temporary.rglob("*") if path.is_dir()), temporary]:
            _flush(directory)
    except BaseException:  # interrupts included: no partial folder remains
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    _flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder atomically: it is renamed first."""
    nameless = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(nameless, ignore_errors=True)
    folder.rename(nameless)
    shutil.rmtree(nameless, ignore_errors=True)


def write_json(path: Path, data: Any) -> None:
    """Writes a JSON file atomically and flushes it to disk."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    _flush(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context for writes into a run's folder; a `TrainingError` gives reason and remedy."""
    try:
        yield
    except Exception as error:
        reason = _refusal(error)
        if reason is None:
            raise
        raise TrainingError(f"{path} cannot be written: {reason}; {after_room(path)}") from error


def after_room(path: Path) -> str:
    """Advice for a full disk: resume if the run folder has a checkpoint, else start again."""
    saved = any(checkpoints(folder) for folder in (path, path.parent))
    return f"free disk space, then {'continue with --resume' if saved else 'start the run again'}"


def _refusal(error: Exception) -> str | None:
    """The system's reason if an error comes from the disk, also in Rust libraries."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    match = re.search(r"([^:]*) \(os error \d+\)", str(error))
    return match[1].strip() if match else None


def clear_temporaries(folder: Path) -> None:
    """Removes leftovers of interrupted writes; restores a checkpoint that was not replaced."""
    for old in folder.glob(".*.old-*"):
        target = folder / old.name[1:].rsplit(".old-", 1)[0]
        if target.exists() or old.is_symlink():
            old.unlink() if old.is_symlink() else shutil.rmtree(old)
        else:
            old.rename(target)
    for temporary in folder.glob(".*.tmp-*"):
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
