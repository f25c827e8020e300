"""Where the parts of a run are placed: in this process, or in workers of Ray."""

from __future__ import annotations

from mrlm.build.in_process import Here
from mrlm.build.policies import Cast, Parts
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import Peers


def placement_of(config: ExperimentConfig, cast: Cast, parts: Parts, peers: Peers) -> Here:
    """Where the parts of a run go.

    Raises:
        ConfigError: there is no such place, or not enough room.
    """
    section = config.distributed
    if section.enabled and section.strategy == "ray":
        from mrlm.build.ray import OnRay

        if peers.size > 1:
            raise ConfigError(
                "distributed.strategy=ray starts its workers itself: run it without torchrun, or "
                "use ddp or fsdp"
            )
        return OnRay(config, cast, parts)
    return Here(config, cast, parts, peers)
