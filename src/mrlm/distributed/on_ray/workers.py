"""What lives in a worker: policies of one base, with what trains them and what samples from them.
It is told what to make by a recipe, and does one thing at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mrlm.core.episodes import Group
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.timing import profiling
from mrlm.core.types import Completion
from mrlm.distributed import start
from mrlm.distributed.on_ray.cluster import host_here
from mrlm.distributed.on_ray.weight_transfer import (
    Packed,
    Parcel,
    Written,
    load_into,
    opened,
    packed,
    parcel_of,
    unpacked,
    with_folder,
    written,
)
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.critics.critic import Critic
from mrlm.learn.data.batch import Sample
from mrlm.learn.data.data_parallel import weights_of
from mrlm.learn.frozen import Frozen
from mrlm.learn.joint_update import update_together
from mrlm.learn.learner import Learner
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Engine, Request

Job = tuple[str, Sequence[Sample], int, float]
"""Policy, what it learns from, the seed of its update, what its learning rate is multiplied by."""
Counts = list[tuple[str, str, int]]
"""What was counted, for whom, and how many."""


class WorkerSpec(Protocol):
    """How what a worker holds is made; the same wherever that is done."""

    def policies(self) -> dict[str, Policy]:
        """The policies as they are at the start of the run."""
        ...

    def engine(self, policies: dict[str, Policy]) -> Engine:
        """What samples from them."""
        ...

    def learners(
        self,
        policies: dict[str, Policy],
        algorithm: Algorithm,
        total: int,
        folder: Path,
        peers: Peers,
    ) -> list[Learner]:
        """What trains those that are trained, over `total` iterations, together with `peers`."""
        ...


@dataclass(slots=True)
class About:
    """What the loop has to know about a policy that lives elsewhere."""

    tokenizer: Any
    max_context: int
    pad_id: int
    size: int
    coarse: bool


class RayWorker:
    """Holds policies of one base.

    Args:
        paths: where the process that was started finds modules.
        box: holds the recipe.
    """

    def __init__(self, paths: Sequence[str], box: bytes) -> None:
        logging.getLogger("mrlm").setLevel(logging.WARNING)
        if not _accelerators():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # none of its own: it uses nobody else's
        find_modules(paths)
        self.recipe: WorkerSpec = opened(box)
        self.policies: dict[str, Policy] = {}
        self.engine: Engine | None = None
        self.learners: dict[str, Learner] = {}
        self.critics: dict[str, Critic] = {}
        self.peers: Peers = ALONE

    def ready(self) -> int:
        """The process that answers."""
        return os.getpid()

    def address(self) -> str:
        """Where workers that train with this one find it."""
        host = host_here()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            return f"tcp://{f'[{host}]' if ':' in host else host}:{free.getsockname()[1]}"

    def join(self, rank: int, size: int, address: str, timeout: float) -> None:
        """Train together with others from now on."""
        self.peers = start(rank, size, address, timeout=timeout)

    def begin(self, samples: bool) -> dict[str, About]:
        """Make the policies anew, and what samples from them; whatever learned is forgotten."""
        self.engine, self.policies, self.learners, self.critics = None, {}, {}, {}
        self.policies = self.recipe.policies()
        self.engine = self.recipe.engine(self.policies) if samples else None
        return {
            name: About(
                policy.tokenizer, policy.max_context, policy.pad_id, policy.size, policy.coarse
            )
            for name, policy in self.policies.items()
        }

    def learn(self, algorithm: Algorithm, total: int, folder: Path) -> list[str]:
        """Make the learners; returns those with a critic of their own."""
        made = self.recipe.learners(self.policies, algorithm, total, folder, self.peers)
        self.learners = {learner.policy: learner for learner in made}
        self.critics = {each.policy: each.critic for each in made if each.critic is not None}
        self.peers.spread(weights_of([*self.policies.values()], [*self.critics.values()]))
        return list(self.critics)

    # -- learning ----------------------------------------------------------------------------------

    def annotate(self, name: str, groups: Sequence[Group], needs: frozenset[str]) -> Written:
        """The columns that a learner writes."""
        learner = self.learners[name]
        return written(groups, lambda: asyncio.run(learner.annotate(groups, needs)))

    def rescore(self, name: str, groups: Sequence[Group]) -> Written:
        """What the weights of a learner or of a frozen policy say now."""
        scorer = self.learners.get(name) or Frozen(self.policies[name])
        return written(groups, lambda: asyncio.run(scorer.rescore(groups)))

    def update(
        self, jobs: Sequence[Job], algorithm: Algorithm, step: int
    ) -> tuple[list[dict[str, float]], list[tuple[int, int]], Counts]:
        """Update learners together: their metrics, their versions with their steps that were not
        finite, and what was counted."""
        whole = [(self.learners[name], samples, seed) for name, samples, seed, _ in jobs]
        for name, _, _, rate_factor in jobs:
            self.learners[name].settings.rate_factor = rate_factor
        with profiling() as profile:
            metrics = asyncio.run(update_together(whole, algorithm, step))
        counts = [(what, whose, number) for (what, whose), number in profile.take()[1].items()]
        return metrics, [(each.version, each.nonfinite) for each, _, _ in whole], counts

    def problems(
        self,
        find: Callable[[Learner, Sequence[Sample]], Iterable[str]],
        name: str,
        samples: Sequence[Sample],
    ) -> list[str]:
        """What `find` says of a learner."""
        return list(find(self.learners[name], samples))

    def renew_reference(self, name: str) -> None:
        """Compare a policy with itself as it is now."""
        self.learners[name].renew_reference()

    def annotate_values(self, name: str, groups: Sequence[Group]) -> Written:
        """The columns that the critic beside a policy writes."""
        return written(groups, lambda: self.critics[name].annotate(groups))

    def update_critic(
        self,
        name: str,
        groups: Sequence[Group],
        algorithm: Algorithm,
        step: int,
        seed: int,
        rate_factor: float,
    ) -> tuple[dict[str, float], int]:
        """Let the critic beside a policy learn; its metrics, and steps that were not finite."""
        critic = self.critics[name]
        critic.settings.rate_factor = rate_factor
        return critic.update(groups, algorithm, step, seed), critic.nonfinite

    # -- sampling ----------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """What the policies say."""
        assert self.engine is not None
        return asyncio.run(self.engine.generate(requests))

    def weights(self, name: str) -> tuple[bool, Packed]:
        """A receipt, and the weights of a policy."""
        return True, packed(self.policies[name].named_parameters())

    def take(self, name: str, weights: Packed, version: int) -> None:
        """Sample with other weights."""
        policy = self.policies[name]
        if any(key.startswith("value_head.") for key in weights):
            policy.add_value_head()
        load_into(policy.named_parameters(), weights)
        self.share(name, version)

    def share(self, name: str, version: int) -> None:
        """Sample with the weights as they are now."""
        assert self.engine is not None
        asyncio.run(self.engine.load_weights(name, self.policies[name], version))

    def fingerprint(self, name: str) -> tuple[float, ...]:
        """Numbers that change when the weights that are trained do."""
        return self.policies[name].fingerprint()

    def tolerance(self, name: str) -> float | None:
        """That of the engine."""
        assert self.engine is not None
        return self.engine.tolerance(name)

    # -- what is kept ------------------------------------------------------------------------------

    def save(self, name: str, what: str) -> Parcel:
        """The files of a `policy`, its `reference` or its `critic`."""
        policy = self.policies[name]
        if what == "reference":
            return parcel_of(policy.save_reference)
        return parcel_of(policy.save if what == "policy" else self.critics[name].save)

    def load(self, name: str, what: str, parcel: Parcel) -> None:
        """Take what `save` gave."""
        policy = self.policies[name]
        if what == "reference":
            with_folder(parcel, policy.load_reference)
        else:
            with_folder(parcel, policy.load if what == "policy" else self.critics[name].load)

    def optimizer_state(self, name: str, critic: bool) -> tuple[Packed, dict[str, Any]]:
        """The state of an optimiser."""
        owner = self.critics[name] if critic else self.learners[name]
        tensors, rest = owner.optimizer_state()
        return packed(tensors), rest

    def load_optimizer_state(
        self, name: str, critic: bool, tensors: Packed, rest: dict[str, Any]
    ) -> None:
        """Take what `optimizer_state` gave."""
        owner = self.critics[name] if critic else self.learners[name]
        owner.load_optimizer_state(unpacked(tensors), rest)


def _accelerators() -> Sequence[str]:
    """Those that this worker was given."""
    if "ray" not in sys.modules:
        return ()
    import ray

    return ray.get_runtime_context().get_accelerator_ids().get("GPU", [])


def find_modules(paths: Sequence[str]) -> None:
    """Find modules where another process finds them, as far as these places are here."""
    sys.path += [path for path in paths if path not in sys.path and os.path.exists(path or ".")]
