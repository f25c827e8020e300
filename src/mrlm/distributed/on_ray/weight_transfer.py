"""Transfer of weights, folders, and turn columns between the loop and its workers, bit by bit."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import COMPUTED, Turn

Packed = dict[str, tuple[str, tuple[int, ...], np.ndarray]]
"""Name -> type, shape and bytes of a tensor, which the object store shares without a copy."""
FolderFiles = dict[str, bytes]
"""Path below a folder -> content of the file."""
Written = list[tuple[int, dict[str, Any]]]
"""Index of a turn -> the columns that were written on it."""


def packed(tensors: Mapping[str, Tensor]) -> Packed:
    """Encode tensors of any device and type as bytes."""
    arrays: Packed = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        kind = str(tensor.dtype).removeprefix("torch.")
        arrays[name] = kind, tuple(tensor.shape), flat.view(torch.uint8).numpy()
    return arrays


def unpacked(tensors: Packed) -> dict[str, Tensor]:
    """Inverse of `packed`, on the CPU; copies, as shared memory must not be written."""
    result: dict[str, Tensor] = {}
    for name, (kind, shape, data) in tensors.items():
        tensor = torch.empty(shape, dtype=getattr(torch, kind))
        if data.size:
            tensor.view(-1).view(torch.uint8).numpy()[:] = data
        result[name] = tensor
    return result


@torch.no_grad()
def load_into(targets: Mapping[str, Tensor], tensors: Packed) -> None:
    """Overwrite tensors with those of the same names."""
    for name, tensor in unpacked(tensors).items():
        targets[name].copy_(tensor)


def boxed(thing: Any, what: str) -> bytes:
    """Pickle any object, including classes and functions of a user's program; it can be unpickled
    where the same modules are importable. Raises `ConfigError`: it (`what`) cannot be pickled."""
    from ray import cloudpickle

    try:
        return cloudpickle.dumps(thing)  # pyright: ignore[reportPrivateImportUsage]
    except Exception as error:  # any error of a user's object
        raise ConfigError(
            f"{what} cannot be sent to another process ({type(error).__name__}: {error})"
        ) from error


def opened(box: bytes) -> Any:
    """Unpickle an object."""
    from ray import cloudpickle

    return cloudpickle.loads(box)


def files_of(fill: Callable[[Path], object]) -> FolderFiles:
    """The files of a folder that `fill` writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder)
        return read_folder(folder)


def read_folder(folder: Path) -> FolderFiles:
    """The files of a folder; none if the folder does not exist."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack_into(files: FolderFiles, folder: Path) -> None:
    """Write files into a folder; without files, the folder is not created."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def with_folder(files: FolderFiles, use: Callable[[Path], object]) -> None:
    """Call `use` with a temporary folder that holds the files."""
    with tempfile.TemporaryDirectory() as name:
        unpack_into(files, Path(name))
        use(Path(name))


def turns_of(groups: Sequence[Group]) -> Iterator[Turn]:
    """Every turn of some groups, in an order that sender and receiver share."""
    return (turn for group in groups for episode in group for turn in episode.turns)


def written(groups: Sequence[Group], write: Callable[[], object]) -> Written:
    """The columns that `write` sets on the turns of some groups."""
    turns = list(turns_of(groups))
    before = [{name: getattr(turn, name) for name in COMPUTED} for turn in turns]
    write()
    changes: Written = []
    for number, (turn, old) in enumerate(zip(turns, before, strict=True)):
        now = {name: getattr(turn, name) for name in COMPUTED}
        if new := {name: value for name, value in now.items() if value is not old[name]}:
            changes.append((number, new))
    return changes


def write_on(groups: Sequence[Group], changes: Written) -> None:
    """Set the columns on their turns."""
    turns = list(turns_of(groups))
    for number, columns in changes:
        for name, values in columns.items():
            setattr(turns[number], name, values)
