"""What the loop holds of learners, critics and policies that live in workers."""

from __future__ import annotations

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
from mrlm.distributed.on_ray.actor_calls import Post
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
    """A policy whose weights are in a worker.

    Args:
        name: the policy's name.
        about: what the worker says of it.
        chat: renderer of its conversations.
        post: where it is.
    """

    def __init__(self, name: str, about: About, chat: Chat, post: Post) -> None:
        self.name: str = name
        self.tokenizer: Any = about.tokenizer
        self.max_context: int = about.max_context
        self.pad_id: int = about.pad_id
        self.size: int = about.size
        self.coarse: bool = about.coarse
        self.chat: Chat = chat
        self.device: torch.device = torch.device("cpu")
        """Where tensors of this process are."""
        self._post = post

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight does.

        Raises:
            CheckError: those who train it together do not hold the same weights.
        """
        found = [post.ask_now("fingerprint", self.name) for post in self._post.members]
        if not all(np.allclose(found[0], other, rtol=1e-6) for other in found[1:]):
            raise CheckError(
                f"check weights: the workers that train policy {self.name!r} do not hold the same "
                "weights. Do all nodes have the same versions?"
            )
        return found[0]

    def save(self, folder: Path) -> None:
        """As `Policy.save`, here."""
        unpack_into(self._post.ask_now("save", self.name, "policy"), folder)

    def load(self, folder: Path) -> None:
        """As `Policy.load`, from here."""
        self._post.ask_now("load", self.name, "policy", read_folder(folder))

    def save_reference(self, folder: Path) -> None:
        """As `Policy.save_reference`, here."""
        unpack_into(self._post.ask_now("save", self.name, "reference"), folder)

    def load_reference(self, folder: Path) -> None:
        """As `Policy.load_reference`, from here."""
        self._post.ask_now("load", self.name, "reference", read_folder(folder))


@dataclass(frozen=True, slots=True)
class Sending:
    """Weights on their way from a worker to others; they do not pass through here.

    Args:
        post: who sends them.
        policy: whose they are.
    """

    post: Post
    policy: str

    async def begin(self) -> Any:
        """A reference to the weights as they are now.

        Raises:
            WorkerLost: the sender is gone.
        """
        receipt, weights = self.post.send("weights", self.policy, answers=2)
        await self.post.settle(receipt)
        return weights


@dataclass(slots=True)
class ProxyPace:
    """What the loop may set of how a learner or critic is optimised."""

    rate_factor: float = 1.0
    """What every learning rate is multiplied by."""


class RemoteFrozen:
    """A policy in a worker that nobody trains, as `Frozen`.

    Args:
        policy: the policy.
        post: where it is.
    """

    def __init__(self, policy: RemotePolicy, post: Post) -> None:
        self.weights_of: RemotePolicy = policy
        self.post: Post = post
        self.version: int = 0

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self.weights_of.name

    def weights(self) -> Sending:
        """The weights that an engine takes."""
        return Sending(self.post, self.policy)

    async def rescore(self, groups: Sequence[Group]) -> None:
        """As `Learner.rescore`."""
        write_on(groups, await self.post.ask("rescore", self.policy, list(groups)))


class RemoteLearner(RemoteFrozen):
    """A learner in a worker.

    Args:
        policy: the policy that is trained.
        algorithm: credit and loss.
        post: where the learner is.
        critic: the critic beside it.
    """

    def __init__(
        self,
        policy: RemotePolicy,
        algorithm: Algorithm,
        post: Post,
        critic: RemoteCritic | None = None,
    ) -> None:
        super().__init__(policy, post)
        self.algorithm: Algorithm = algorithm
        self.critic: RemoteCritic | None = critic
        self.settings: ProxyPace = ProxyPace()
        self.nonfinite: int = 0

    @property
    def chat(self) -> Chat:
        return self.weights_of.chat

    async def annotate(self, groups: Sequence[Group], needs: Iterable[str]) -> None:
        """As `Learner.annotate`."""
        found = await self.post.ask("annotate", self.policy, list(groups), frozenset(needs))
        write_on(groups, found)

    def renew_reference(self) -> None:
        """As `Learner.renew_reference`."""
        self.post.ask_now("renew_reference", self.policy)

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As `Learner.optimizer_state`."""
        tensors, rest = self.post.ask_now("optimizer_state", self.policy, False)
        return unpacked(tensors), rest

    def load_optimizer_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """As `Learner.load_optimizer_state`."""
        self.post.ask_now("load_optimizer_state", self.policy, False, packed(tensors), rest)
        self.version, self.nonfinite = rest["version"], rest["nonfinite"]


class RemoteCritic:
    """The critic beside a policy, in the worker of its learner.

    Args:
        name: the policy whose turns it values.
        post: where it is.
    """

    def __init__(self, name: str, post: Post) -> None:
        self.name: str = name
        self.settings: ProxyPace = ProxyPace()
        self.nonfinite: int = 0
        self._post = post

    def annotate(self, groups: Sequence[Group]) -> None:
        """As `Critic.annotate`."""
        write_on(groups, self._post.ask_now("annotate_values", self.name, list(groups)))

    def update(
        self, groups: Sequence[Group], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        """As `Critic.update`."""
        arguments = (self.name, list(groups), algorithm, step, seed, self.settings.rate_factor)
        metrics, self.nonfinite = self._post.ask_now("update_critic", *arguments)
        return metrics

    def save(self, folder: Path) -> None:
        """As `Critic.save`, here."""
        unpack_into(self._post.ask_now("save", self.name, "critic"), folder)

    def load(self, folder: Path) -> None:
        """As `Critic.load`, from here."""
        self._post.ask_now("load", self.name, "critic", read_folder(folder))

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As `Critic.optimizer_state`."""
        tensors, rest = self._post.ask_now("optimizer_state", self.name, True)
        return unpacked(tensors), rest

    def load_optimizer_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """As `Critic.load_optimizer_state`."""
        self._post.ask_now("load_optimizer_state", self.name, True, packed(tensors), rest)
        self.nonfinite = rest["nonfinite"]
