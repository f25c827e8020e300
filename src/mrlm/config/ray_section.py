"""Placement of the parts of a run on a Ray cluster: the section `distributed.ray`."""

from typing import Annotated

from pydantic import Field, model_validator

from mrlm.config.base import Count, Positive, Section, Whole

Address = Annotated[str, Field(pattern=r"^(auto|(ray://)?[^\s/:]+:\d{1,5})$")]
"""`auto`, `host:port` or `ray://host:port`."""


class RayPolicyConfig(Section):
    """The placement of one policy. Adapters of one base must have the same placement."""

    learner: str | None = None
    """The pool of its training worker; by default its own."""
    engine: str | None = None
    """The pool of its sampling workers; by default each has its own."""
    engines: Count = 1
    """Number of sampling workers."""
    learners: Count = 1
    """Number of training workers (data parallel): each holds the whole policy and processes a part
    of every batch."""


class RayConfig(Section):
    """A run on an existing Ray cluster, or on one started for it."""

    address: Address | None = None
    """`auto` (the cluster of this machine), `host:port` or `ray://host:port`; by default a cluster
    of this machine is started."""
    num_cpus: Count | None = None
    """CPUs of a started cluster; by default those of this machine."""
    num_gpus: Whole | None = None
    """GPUs of a started cluster; by default those of this machine."""
    pools: dict[str, dict[str, Positive]] = Field(default_factory=dict)
    """Name -> resources (`CPU`, `GPU`, `memory` in bytes, or custom ones) reserved on one node and
    shared equally by the workers in the pool."""
    policies: dict[str, RayPolicyConfig] = Field(default_factory=dict)
    """Placement of each policy; other policies get their own workers."""
    colocated: bool = True
    """Train and sample a policy in one worker, with the same weights; otherwise engines are
    separate workers, to which weights are sent."""
    environment_workers: Whole = 0
    """Number of workers for environments; 0: they run in the main process."""
    environment_pool: str | None = None
    """The pool of these workers; by default each has its own."""
    placement_timeout: Positive = 30.0
    """Seconds to wait for resources that are in use by others."""
    max_restarts: Whole = 3
    """Maximum number of restarts of a lost worker."""

    @model_validator(mode="after")
    def _fits(self) -> "RayConfig":
        started = self.num_cpus is not None or self.num_gpus is not None
        if self.address is not None and started:
            raise ValueError(
                "num_cpus and num_gpus are of a cluster that is started here; remove address"
            )
        requested = {"environment_pool": self.environment_pool}
        for name, section in self.policies.items():
            requested |= {f"policies.{name}.learner": section.learner}
            requested |= {f"policies.{name}.engine": section.engine}
            if self.colocated and (section.engine is not None or section.engines > 1):
                raise ValueError(
                    f"policies.{name}: engines of their own need colocated=false; set it, or "
                    "remove engine and engines"
                )
        for key, pool in requested.items():
            if pool is not None and pool not in self.pools:
                pool_names = ", ".join(self.pools) or "none"
                raise ValueError(f"{key}: pool {pool!r} does not exist; pools are {pool_names}")
        for name in (name for name in self.pools if name not in requested.values()):
            raise ValueError(f"pools.{name}: no part uses this pool; remove it")
        if self.environment_pool is not None and not self.environment_workers:
            raise ValueError("environment_pool: needs environment_workers; set them, or remove it")
        return self
