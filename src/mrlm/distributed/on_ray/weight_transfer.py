"""What travels between the loop and its workers: weights, folders, and the columns that were
written on turns. Everything arrives as it was sent, bit by bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Turn

COLUMNS = (
    "advantages",
    "returns",
    "values",
    "ref_logprobs",
    "old_logprobs",
    "new_logprobs",
    "full_kl",
    "entropies",
)
"""What learners and critics write on turns."""

Packed = dict[str, tuple[str, tuple[int, ...], np.ndarray]]
"""Name -> type, shape and bytes of a tensor: what the object store can lend without a copy."""
Parcel = dict[str, bytes]
"""Path below a folder -> what the file holds."""
Written = list[tuple[int, dict[str, Any]]]
"""Number of a turn -> the columns that were written on it."""


def packed(tensors: Mapping[str, Tensor]) -> Packed:
    """Tensors of any device and type, as bytes."""
    found: Packed = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        kind = str(tensor.dtype).removeprefix("torch.")
        found[name] = kind, tuple(tensor.shape), flat.view(torch.uint8).numpy()
    return found


def unpacked(parcel: Packed) -> dict[str, Tensor]:
    """Inverse of `packed`, on the processor. The tensors are copies: what was lent must not be
    written on."""
    found: dict[str, Tensor] = {}
    for name, (kind, shape, data) in parcel.items():
        tensor = torch.empty(shape, dtype=getattr(torch, kind))
        if data.size:
            tensor.view(-1).view(torch.uint8).numpy()[:] = data
        found[name] = tensor
    return found


@torch.no_grad()
def load_into(own: Mapping[str, Tensor], parcel: Packed) -> None:
    """Overwrite tensors with those of the same names."""
    for name, tensor in unpacked(parcel).items():
        own[name].copy_(tensor)


def boxed(thing: Any, what: str) -> bytes:
    """Any object, classes and functions of a user's program included, to be opened where modules
    are found as they are here.

    Args:
        thing: the object.
        what: what to call it in messages.

    Raises:
        ConfigError: it cannot be sent.
    """
    from ray import cloudpickle

    try:
        return cloudpickle.dumps(thing)  # pyright: ignore[reportPrivateImportUsage]
    except Exception as error:  # whatever an object of a user's raises
        raise ConfigError(
            f"{what} cannot be sent to another process ({type(error).__name__}: {error})"
        ) from error


def opened(box: bytes) -> Any:
    """What is in a box."""
    from ray import cloudpickle

    return cloudpickle.loads(box)


def parcel_of(fill: Callable[[Path], object]) -> Parcel:
    """The files of a folder that `fill` writes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fill(folder)
        return read_folder(folder)


def read_folder(folder: Path) -> Parcel:
    """The files of a folder; none if there is no such folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack_into(parcel: Parcel, folder: Path) -> None:
    """Write the files of a parcel; without any, not even the folder."""
    for name, data in parcel.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def with_folder(parcel: Parcel, use: Callable[[Path], object]) -> None:
    """Give `use` a folder that holds the files of a parcel."""
    with tempfile.TemporaryDirectory() as place:
        unpack_into(parcel, Path(place))
        use(Path(place))


def turns_of(groups: Sequence[Group]) -> Iterator[Turn]:
    """Every turn of some groups, in an order that sender and receiver share."""
    return (turn for group in groups for episode in group for turn in episode.turns)


def written(groups: Sequence[Group], write: Callable[[], object]) -> Written:
    """The columns that `write` puts on the turns of some groups."""
    turns = list(turns_of(groups))
    before = [[getattr(turn, name) for name in COLUMNS] for turn in turns]
    write()
    found: Written = []
    for number, (turn, known) in enumerate(zip(turns, before, strict=True)):
        new = {
            name: getattr(turn, name)
            for name, old in zip(COLUMNS, known, strict=True)
            if getattr(turn, name) is not old
        }
        if new:
            found.append((number, new))
    return found


def write_on(groups: Sequence[Group], found: Written) -> None:
    """Put columns on the turns they belong to."""
    turns = list(turns_of(groups))
    for number, columns in found:
        for name, values in columns.items():
            setattr(turns[number], name, values)
