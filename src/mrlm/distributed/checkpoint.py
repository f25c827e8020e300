"""The shards of a checkpoint: optimizer states of sharded weights. A checkpoint can be read by
another number of processes than wrote it. The weights are saved whole beside them."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from mrlm.core.errors import CheckpointError
from mrlm.core.process_group import Peers
from mrlm.learn.checkpoint import Owner
from mrlm.learn.critics.critic import Critic
from mrlm.learn.learner import Learner
from mrlm.learn.policy.storage import is_cut

FOLDER = "shards"
"""The subfolder of a checkpoint that all processes write."""


def write_shards(
    folder: Path, learners: Sequence[Learner], critics: Sequence[Critic], peers: Peers
) -> Path | None:
    """Update the unsharded copies of sharded models, and write the shards of their optimizer
    states; `None` if nothing is sharded. Every process calls this. Earlier files are removed."""
    bodies = [learner.weights_of for learner in learners] + [critic.body for critic in critics]
    if not any(body.storage.sharded for body in bodies):
        return None
    for body in bodies:
        body.storage.refresh()
    peers.first(lambda: shutil.rmtree(folder, ignore_errors=True))
    state: dict[str, Any] = {}
    for kind, owners in (("learner", learners), ("critic", critics)):
        for owner in owners:
            tensors, _ = owner.optimizer_state()
            shards = {key: value for key, value in tensors.items() if is_cut(value)}
            state |= {_key(kind, owner, key): value for key, value in shards.items()}
    save(state, checkpoint_id=folder)
    return folder


class CheckpointReader:
    """Reads the shards of a checkpoint folder, into shards or into whole tensors, if it has any."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / FOLDER
        self._known: set[str] = set()
        if self._place.is_dir():
            self._known = set(FileSystemReader(self._place).read_metadata().state_dict_metadata)

    def __call__(self, kind: str, owner: Owner) -> dict[str, Tensor]:
        """The optimizer state of a learner or critic, by the names of its tensors."""
        prefix = _key(kind, owner, "")
        weights = owner.stepper.masters.optimized
        tensors: dict[str, Tensor] = {}
        for name in sorted(key for key in self._known if key.startswith(prefix)):
            key = name.removeprefix(prefix)
            tensors[key] = torch.zeros_like(weights[int(key.split(".")[0])], requires_grad=False)
        if tensors:
            try:
                load(
                    {prefix + key: value for key, value in tensors.items()},
                    checkpoint_id=self._place,
                    no_dist=not distributed.is_initialized(),
                )
            except (RuntimeError, ValueError, CheckpointException) as error:
                raise CheckpointError(f"{self._place} cannot be read: {error}") from error
        return tensors


def _key(kind: str, owner: Any, key: str) -> str:
    return f"{kind}/{owner.policy if kind == 'learner' else owner.name}/{key}"
