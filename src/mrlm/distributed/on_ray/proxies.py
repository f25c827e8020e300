"""Proxies of learners, critics and policies in workers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.chat import Chat
from mrlm.core.episodes import Group
from mrlm.core.errors import CheckError
from mrlm.distributed.on_ray.actor_calls import WorkerSlot
from mrlm.distributed.on_ray.weight_transfer import (
    packed,
    read_folder,
    unpack_into,
    unpacked,
    write_on,
)
from mrlm.distributed.on_ray.workers import About
from mrlm.learn.bases.algorithm import Algorithm


class RemotePolicy:
    """A policy whose weights are in the worker `post`; `about` is the worker's description of it.
    Files are saved on this machine, and loaded from it, as by the methods of `Policy`."""

    def __init__(self, name: str, about: About, chat: Chat, post: WorkerSlot) -> None:
        self.name: str = name
        self.tokenizer: Any = about.tokenizer
        self.max_context: int = about.max_context
        self.pad_id: int = about.pad_id
        self.size: int = about.size
        self.coarse: bool = about.coarse
        self.chat: Chat = chat
        self.device: torch.device = torch.device("cpu")
        """Device of the tensors of this process."""
        self._post = post

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight does. Raises `CheckError`: the workers that
        train it together hold different weights."""
        fingerprints = [post.ask_now("fingerprint", self.name) for post in self._post.members]
        if not all(np.allclose(fingerprints[0], other, rtol=1e-6) for other in fingerprints[1:]):
            raise CheckError(
                f"check weights: the workers that train policy {self.name!r} hold different "
                "weights. Do all nodes have the same versions?"
            )
        return fingerprints[0]

    def save(self, folder: Path) -> None:
        unpack_into(self._post.ask_now("save", self.name, "policy"), folder)

    def load(self, folder: Path) -> None:
        self._post.ask_now("load", self.name, "policy", read_folder(folder))

    def save_reference(self, folder: Path) -> None:
        unpack_into(self._post.ask_now("save", self.name, "reference"), folder)

    def load_reference(self, folder: Path) -> None:
        self._post.ask_now("load", self.name, "reference", read_folder(folder))


@dataclass(frozen=True, slots=True)
class WeightTransfer:
    """A transfer of weights from the worker `post` to others, which bypasses this process."""

    post: WorkerSlot
    policy: str

    async def begin(self) -> Any:
        """A reference to the current weights. Raises `WorkerLost`: the sender is gone."""
        receipt, weights = self.post.send("weights", self.policy, answers=2)
        await self.post.settle(receipt)
        return weights


@dataclass(slots=True)
class ProxyPace:
    """The optimisation settings of a learner or critic that the loop may change."""

    rate_factor: float = 1.0
    """Factor of every learning rate."""


class RemoteFrozen:
    """A frozen policy in the worker `post`, with the methods of `Frozen`."""

    def __init__(self, policy: RemotePolicy, post: WorkerSlot) -> None:
        self.weights_of: RemotePolicy = policy
        self.post: WorkerSlot = post
        self.version: int = 0

    @property
    def policy(self) -> str:
        return self.weights_of.name

    def weights(self) -> WeightTransfer:
        return WeightTransfer(self.post, self.policy)

    async def rescore(self, groups: Sequence[Group]) -> None:
        write_on(groups, await self.post.ask("annotate", self.policy, list(groups), "rescore"))


class RemoteOptimizer:
    """The optimizer of a learner or critic in a worker; methods as those of `Learner`."""

    post: WorkerSlot
    owner: tuple[str, bool]
    """The policy, and whether it is the optimizer of its critic."""
    nonfinite: int = 0

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, rest = self.post.ask_now("optimizer_state", *self.owner)
        return unpacked(tensors), rest

    def load_optimizer_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        self.post.ask_now("load_optimizer_state", *self.owner, packed(tensors), rest)
        self.nonfinite = rest["nonfinite"]


class RemoteLearner(RemoteFrozen, RemoteOptimizer):
    """A learner in the worker `post`, with the methods of `Learner`."""

    def __init__(
        self,
        policy: RemotePolicy,
        algorithm: Algorithm,
        post: WorkerSlot,
        critic: "RemoteCritic | None" = None,
    ) -> None:
        super().__init__(policy, post)
        self.algorithm = algorithm
        self.critic = critic
        self.settings: ProxyPace = ProxyPace()
        self.owner = (policy.name, False)

    @property
    def chat(self) -> Chat:
        return self.weights_of.chat

    async def annotate(self, groups: Sequence[Group], needs: Iterable[str]) -> None:
        arguments = (self.policy, list(groups), "learner", frozenset(needs))
        write_on(groups, await self.post.ask("annotate", *arguments))

    def renew_reference(self) -> None:
        self.post.ask_now("renew_reference", self.policy)

    def load_optimizer_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        super().load_optimizer_state(tensors, rest)
        self.version = rest["version"]


class RemoteCritic(RemoteOptimizer):
    """The critic of the policy `name`, in the worker of its learner, with the methods of
    `Critic`. Files are saved on this machine, and loaded from it."""

    def __init__(self, name: str, post: WorkerSlot) -> None:
        self.name: str = name
        self.settings: ProxyPace = ProxyPace()
        self.post: WorkerSlot = post
        self.owner = (name, True)

    def annotate(self, groups: Sequence[Group]) -> None:
        write_on(groups, self.post.ask_now("annotate", self.name, list(groups), "critic"))

    def update(
        self, groups: Sequence[Group], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        arguments = (self.name, list(groups), algorithm, step, seed, self.settings.rate_factor)
        metrics, self.nonfinite = self.post.ask_now("update_critic", *arguments)
        return metrics

    def save(self, folder: Path) -> None:
        unpack_into(self.post.ask_now("save", self.name, "critic"), folder)

    def load(self, folder: Path) -> None:
        self.post.ask_now("load", self.name, "critic", read_folder(folder))
