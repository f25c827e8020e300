"""The Ray cluster: connecting to it, and reserving resource pools on it. Missing resources are a
named error within seconds instead of an endless wait."""

import logging
import math
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.config.ray_section import RayConfig
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.log import log

REACHED = 5.0
"""Seconds in which an address has to answer."""
TRIES = 3
"""Attempts to start a cluster."""
STEP = 1e4
"""Ray counts resources in fractions of this size."""


def import_ray() -> Any:
    """Import Ray, without logs and reports. Raises `ConfigError`: it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "distributed.strategy=ray needs a library that is not installed: "
            "pip install 'mrlm[ray]'"
        ) from None
    return ray


def connect(settings: RayConfig) -> None:
    """Connect to the cluster at `settings.address`, or start one on this machine. A process that is
    already connected keeps its cluster. Raises `ConfigError`: no cluster runs at the address."""
    ray = import_ray()
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
    address = settings.address
    if address is None:
        _start(settings, quiet)
        return
    where = f"distributed.ray.address={address!r}"
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACHED).close()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{where}: no answer ({error}); start a cluster with ray start --head, "
                "or remove the address to have one started here"
            ) from None
    try:
        ray.init(address, **quiet)
        log.info("distributed: connected to the Ray cluster at %s", address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{where}: no cluster accepts the connection ({str(error).splitlines()[0]}); start "
            "one with ray start --head (if it requires a token, set RAY_AUTH_MODE=token here too), "
            "or remove the address to have one started here"
        ) from None


def _start(settings: RayConfig, quiet: Mapping[str, Any]) -> None:
    """Start a cluster on this machine. If it is slow to answer (Ray allows it half a minute), the
    start is tried again. Raises `TrainingError`: it does not start."""
    ray = import_ray()
    counts = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus}
    for attempt in range(1, TRIES + 1):
        try:
            ray.init("local", include_dashboard=False, **counts, **quiet)
            log.info("distributed: a local Ray cluster was started (distributed.ray.address=null)")
            return
        except Exception as error:  # Ray raises no more specific class
            ray.shutdown()
            if attempt == TRIES:
                raise TrainingError(
                    f"no Ray cluster could be started on this machine in {TRIES} tries "
                    f"({str(error).splitlines()[0]}); see the logs in /tmp/ray/session_latest"
                ) from error
            log.info("the Ray cluster did not start (%s); trying again", error)


def host_here() -> str:
    """The address of this process's node for other nodes of the cluster."""
    return import_ray().util.get_node_ip_address()


def shares(
    weights: int, environments: int, pools: "Sequence[ActorPool]"
) -> tuple[dict[str, float], dict[str, float]]:
    """The default resources of a worker with weights and of one with environments: a whole CPU and
    accelerator each of those that `pools` leave, or less if there are fewer than workers."""
    have = import_ray().cluster_resources()

    def part(kind: str, workers: int) -> float:
        taken = sum(pool.resources.get(kind, 0.0) for pool in pools)
        amount = max(0, math.floor(have.get(kind, 0.0) - taken))
        return 0.0 if not amount else math.floor(STEP / math.ceil(workers / amount)) / STEP

    processors = {"CPU": part("CPU", max(1, weights + environments))}
    return processors | {"GPU": part("GPU", max(1, weights))}, processors


class ActorPool:
    """Resources (an amount by kind) that are reserved on one node, for a number of workers that
    share them; `key` is its name in messages."""

    def __init__(self, key: str, resources: Mapping[str, float]) -> None:
        self.key = key
        self.resources: dict[str, float] = {k: float(v) for k, v in resources.items() if v > 0}
        self.members: int = 0
        """Number of workers that share it."""
        self.group: Any = None

    def options(self) -> dict[str, Any]:
        """The share of one worker, as Ray's options."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        mine = {kind: self.share_of(kind) for kind in self.resources}
        options: dict[str, Any] = {
            "num_cpus": mine.pop("CPU", 0.0),
            "num_gpus": mine.pop("GPU", 0.0),
            "resources": {kind: part for kind, part in mine.items() if kind != "memory"},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, 0),
        }
        return options | ({"memory": int(mine["memory"])} if "memory" in mine else {})

    def share_of(self, kind: str) -> float:
        """The amount of a resource that one worker gets."""
        part = self.resources.get(kind, 0.0) / self.members
        if kind == "GPU" and part > 1:
            return float(math.floor(part))
        return math.floor(part * STEP) / STEP

    def release(self) -> None:
        from ray.util.placement_group import remove_placement_group

        if self.group is not None and import_ray().is_initialized():
            remove_placement_group(self.group)
        self.group = None


def reserve(pools: Sequence[ActorPool], timeout: float) -> None:
    """Reserve pools, after at most `timeout` seconds of waiting for resources that are in use.
    Raises `ConfigError`: the cluster does not have the resources, or they are in use."""
    from ray.util.placement_group import placement_group

    _check_there(pools)
    try:
        for pool in pools:
            pool.group = placement_group([pool.resources or {"CPU": 0.001}], strategy="STRICT_PACK")
        for pool in pools:
            if not pool.group.wait(timeout):
                free = import_ray().available_resources()
                raise ConfigError(
                    f"{pool.key} requires {_written(pool.resources)}, which is in use: free are "
                    f"{_written({kind: free.get(kind, 0.0) for kind in pool.resources})}; "
                    f"waited {timeout:g} s (distributed.ray.placement_timeout)"
                )
    except BaseException:
        for pool in pools:
            pool.release()
        raise


def _check_there(pools: Sequence[ActorPool]) -> None:
    """Refuse pools that exceed even an idle cluster."""
    ray = import_ray()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    whole, total = Counter(ray.cluster_resources()), Counter[str]()
    for pool in pools:
        if not any(_fits(pool.resources, node) for node in nodes):
            most = {kind: max(n.get(kind, 0.0) for n in nodes) for kind in pool.resources}
            raise ConfigError(
                f"{pool.key} requires {_written(pool.resources)} on one node, and the cluster has "
                f"no such node (at most {_written(most)}); request less, or add a node"
            )
        total.update(pool.resources)
    for kind, amount in total.items():
        if amount > whole[kind] + 1e-6:
            keys = ", ".join(pool.key for pool in pools if kind in pool.resources)
            raise ConfigError(
                f"{keys} require {amount:g} {kind} together, and the cluster has {whole[kind]:g}; "
                "request less, or add a node"
            )


def _fits(resources: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(kind, 0.0) >= amount for kind, amount in resources.items())


def _written(resources: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{kind}: {amount:g}" for kind, amount in resources.items()) + "}"
