"""The actor with the policies of one base, their learners and their engine, one call at a time."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Protocol

from mrlm.core.episodes import Group
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.timing import profiling
from mrlm.core.types import Completion
from mrlm.distributed import start
from mrlm.distributed.learning_job import LearningJob
from mrlm.distributed.on_ray import weight_transfer
from mrlm.distributed.on_ray.cluster import host_here
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.critics.critic import Critic
from mrlm.learn.data.batch import Sample
from mrlm.learn.data.data_parallel import weights_of
from mrlm.learn.frozen import Frozen
from mrlm.learn.joint_update import update_together
from mrlm.learn.learner import Learner
from mrlm.learn.meter import Measured
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Engine, Request, complete

Job = tuple[str, Sequence[Sample], int, float]
"""Policy, training samples, seed of the update, factor of the learning rate."""
Counts = list[tuple[str, str, int]]
"""Counted events: name, agent or policy, count."""


class WorkerSpec(Protocol):
    """Factories of a worker's parts; they give the same result on every machine."""

    def policies(self) -> dict[str, Policy]: ...

    def engine(self, policies: dict[str, Policy]) -> Engine: ...

    def learners(
        self, policies: dict[str, Policy], job: LearningJob, peers: Peers
    ) -> list[Learner]: ...


@dataclass(slots=True)
class About:
    """The description of a remote policy for the loop."""

    tokenizer: Any
    max_context: int
    pad_id: int
    size: int
    coarse: bool


class RayWorker:
    """Holds the policies of one base. `paths` is the module search path of the driver, `box` the
    pickled worker spec."""

    def __init__(self, paths: Sequence[str], box: bytes) -> None:
        logging.getLogger("mrlm").setLevel(logging.WARNING)
        if not _accelerators():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # none was assigned, so use none
        find_modules(paths)
        self.recipe: WorkerSpec = weight_transfer.opened(box)
        self.policies: dict[str, Policy] = {}
        self.engine: Engine | None = None
        self.learners: dict[str, Learner] = {}
        self.critics: dict[str, Critic] = {}
        self.peers: Peers = ALONE

    def ready(self) -> int:
        return os.getpid()

    def address(self) -> str:
        """The rendezvous address for the workers that train with this one."""
        host = host_here()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            return f"tcp://{f'[{host}]' if ':' in host else host}:{free.getsockname()[1]}"

    def join(self, rank: int, size: int, address: str, timeout: float) -> None:
        self.peers = start(rank, size, address, timeout=timeout)

    def begin(self, samples: bool) -> dict[str, About]:
        """Create the policies and their engine; earlier training is discarded."""
        self.engine, self.policies, self.learners, self.critics = None, {}, {}, {}
        self.policies = self.recipe.policies()
        self.engine = self.recipe.engine(self.policies) if samples else None
        described = attrgetter(*(field.name for field in fields(About)))
        return {name: About(*described(policy)) for name, policy in self.policies.items()}

    def learn(self, job: LearningJob) -> list[str]:
        """Create the learners; returns the names of those with a critic of their own."""
        made = self.recipe.learners(self.policies, job, self.peers)
        self.learners = {learner.policy: learner for learner in made}
        self.critics = {owner.policy: owner.critic for owner in made if owner.critic is not None}
        self.peers.spread(weights_of([*self.policies.values()], [*self.critics.values()]))
        return list(self.critics)

    # -- training ----------------------------------------------------------------------------------

    def annotate(
        self, name: str, groups: Sequence[Group], by: str, needs: frozenset[str] = frozenset()
    ) -> weight_transfer.Written:
        """The columns of a `learner`, a `critic`, or a `rescore`, also of a frozen policy."""
        if by == "critic":
            return weight_transfer.written(groups, lambda: self.critics[name].annotate(groups))
        if by == "learner":
            job = self.learners[name].annotate(groups, needs)
        else:
            job = (self.learners.get(name) or Frozen(self.policies[name])).rescore(groups)
        return weight_transfer.written(groups, lambda: asyncio.run(job))

    def update(
        self, jobs: Sequence[Job], algorithm: Algorithm, step: int
    ) -> tuple[list[Measured], list[tuple[int, int]], Counts]:
        """Update learners jointly; returns their metrics, their versions with the number of
        non-finite steps, and event counts."""
        whole = [(self.learners[name], samples, seed) for name, samples, seed, _ in jobs]
        for name, _, _, rate_factor in jobs:
            self.learners[name].settings.rate_factor = rate_factor
        with profiling() as profile:
            metrics = asyncio.run(update_together(whole, algorithm, step))
        counts = [(what, whose, number) for (what, whose), number in profile.take()[1].items()]
        return metrics, [(learner.version, learner.nonfinite) for learner, _, _ in whole], counts

    def problems(
        self,
        find: Callable[[Learner, Sequence[Sample]], Iterable[str]],
        name: str,
        samples: Sequence[Sample],
    ) -> list[str]:
        """The problems that `find` reports for a learner."""
        return list(find(self.learners[name], samples))

    def renew_reference(self, name: str) -> None:
        self.learners[name].renew_reference()

    def update_critic(
        self,
        name: str,
        groups: Sequence[Group],
        algorithm: Algorithm,
        step: int,
        seed: int,
        rate_factor: float,
    ) -> tuple[dict[str, float], int]:
        """Update the critic of a policy; returns its metrics, and its non-finite steps."""
        critic = self.critics[name]
        critic.settings.rate_factor = rate_factor
        return critic.update(groups, algorithm, step, seed), critic.nonfinite

    # -- sampling ----------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request], timeout: float) -> list[Completion]:
        assert self.engine is not None
        return asyncio.run(complete(self.engine, requests, timeout))

    def weights(self, name: str) -> tuple[bool, weight_transfer.Packed]:
        """A receipt, and the weights of a policy."""
        return True, weight_transfer.packed(self.policies[name].named_parameters())

    def take(self, name: str, weights: weight_transfer.Packed | None, version: int) -> None:
        """Sample with other weights, or (`None`) with the current ones of the learner."""
        assert self.engine is not None
        policy = self.policies[name]
        if weights is not None:
            if any(key.startswith("value_head.") for key in weights):
                policy.add_value_head()
            weight_transfer.load_into(policy.named_parameters(), weights)
        asyncio.run(self.engine.load_weights(name, policy, version))

    def fingerprint(self, name: str) -> tuple[float, ...]:
        return self.policies[name].fingerprint()

    def tolerance(self, name: str) -> float | None:
        assert self.engine is not None
        return self.engine.tolerance(name)

    # -- checkpoints -------------------------------------------------------------------------------

    def save(self, name: str, what: str) -> weight_transfer.FolderFiles:
        """The files of a `policy`, its `reference` or its `critic`."""
        if what == "critic":
            return weight_transfer.files_of(self.critics[name].save)
        policy = self.policies[name]
        return weight_transfer.files_of(policy.save if what == "policy" else policy.save_reference)

    def load(self, name: str, what: str, files: weight_transfer.FolderFiles) -> None:
        if what == "critic":
            weight_transfer.with_folder(files, self.critics[name].load)
            return
        policy = self.policies[name]
        weight_transfer.with_folder(
            files, policy.load if what == "policy" else policy.load_reference
        )

    def optimizer_state(
        self, name: str, critic: bool
    ) -> tuple[weight_transfer.Packed, dict[str, Any]]:
        """The state of the optimizer of a learner or critic."""
        tensors, rest = (self.critics if critic else self.learners)[name].optimizer_state()
        return weight_transfer.packed(tensors), rest

    def load_optimizer_state(
        self, name: str, critic: bool, tensors: weight_transfer.Packed, rest: dict[str, Any]
    ) -> None:
        owner = (self.critics if critic else self.learners)[name]
        owner.load_optimizer_state(weight_transfer.unpacked(tensors), rest)


def _accelerators() -> Sequence[str]:
    """The accelerators that were assigned to this worker."""
    if "ray" not in sys.modules:
        return ()
    import ray

    return ray.get_runtime_context().get_accelerator_ids().get("GPU", [])


def find_modules(paths: Sequence[str]) -> None:
    """Extend the module search path by the directories of another process that exist here."""
    sys.path += [path for path in paths if path not in sys.path and os.path.exists(path or ".")]
