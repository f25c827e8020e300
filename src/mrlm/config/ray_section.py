"""Where the parts of a run are, on a Ray cluster: the section `distributed.ray`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from mrlm.config.base import Count, Positive, Section, Whole

Address = Annotated[str, Field(pattern=r"^(auto|(ray://)?[^\s/:]+:\d{1,5})$")]
"""`auto`, `host:port` or `ray://host:port`."""


class RayPolicyConfig(Section):
    """Where one policy is. Adapters of one base are together, so theirs must be the same."""

    learner: str | None = None
    """The pool of the worker that trains it; one of its own if not set."""
    engine: str | None = None
    """The pool of the workers that sample from it; each has one of its own if not set."""
    engines: Count = 1
    """Workers that sample from it."""
    learners: Count = 1
    """Workers that train it: each holds all of it and reads its share of every batch."""


class RayConfig(Section):
    """A run on a Ray cluster: one that exists, or one that is started for it here."""

    address: Address | None = None
    """`auto` (the cluster of this machine), `host:port` or `ray://host:port`; if not set, a cluster
    of this machine alone is started."""
    num_cpus: Count | None = None
    """Processors of the cluster that is started; those of this machine if not set."""
    num_gpus: Whole | None = None
    """Accelerators of the cluster that is started; those of this machine if not set."""
    pools: dict[str, dict[str, Positive]] = Field(default_factory=dict)
    """Name -> resources (`CPU`, `GPU`, `memory` in bytes, or the cluster's own) that are reserved
    on one node and shared equally by the workers that are put there."""
    policies: dict[str, RayPolicyConfig] = Field(default_factory=dict)
    """Where each policy is; those that are not named get workers of their own."""
    colocated: bool = True
    """One worker trains a policy and samples from it, with the same weights; otherwise engines are
    workers of their own, to which weights are sent."""
    environment_workers: Whole = 0
    """Workers that worlds live in; 0: they live in the process that was started."""
    environment_pool: str | None = None
    """The pool of these workers; each has one of its own if not set."""
    placement_timeout: Positive = 30.0
    """Seconds to wait for resources that the cluster has but others hold."""
    max_restarts: Whole = 3
    """Times a worker that was lost is started anew."""

    @model_validator(mode="after")
    def _fits(self) -> RayConfig:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        started = self.num_cpus is not None or self.num_gpus is not None
        if self.address is not None and started:
            yield "num_cpus and num_gpus are of a cluster that is started here; remove address"
        asked = {"environment_pool": self.environment_pool}
        for name, section in self.policies.items():
            asked |= {f"policies.{name}.learner": section.learner}
            asked |= {f"policies.{name}.engine": section.engine}
            if self.colocated and (section.engine is not None or section.engines > 1):
                yield (
                    f"policies.{name}: engines of their own need colocated=false; set it, or "
                    "remove engine and engines"
                )
        for key, pool in asked.items():
            if pool is not None and pool not in self.pools:
                known = ", ".join(self.pools) or "none"
                yield f"{key}: there is no pool {pool!r}; pools are {known}"
        for name in self.pools:
            if name not in asked.values():
                yield f"pools.{name}: nothing is put there; remove it"
        if self.environment_pool is not None and not self.environment_workers:
            yield "environment_pool: there are no environment_workers to put there"
