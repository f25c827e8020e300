"""Several processes that train together. `torchrun` (or whoever else) starts them; each finds the
others here. Nothing is imported from torch before there are others.

In a program of one's own:

    from mrlm import distributed

    mean = distributed.all_reduce(reward, "mean")  # every process calls this
    if distributed.is_main():
        print(mean)
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers

if TYPE_CHECKING:
    from mrlm.config import DistributedConfig
    from mrlm.distributed.process_group import ProcessGroup

log: logging.Logger = logging.getLogger("mrlm")

Reduction = Literal["sum", "mean", "max", "min"]
"""What becomes of the numbers of all processes."""

_worlds: list[ProcessGroup] = []
"""The world this process is part of, once it has been started."""
_said: list[str] = []
"""The strategies that were announced."""


# -- what a process is -----------------------------------------------------------------------------


def is_initialized() -> bool:
    """Whether this process has found the others."""
    return bool(_worlds)


def rank() -> int:
    """Place of this process among all; 0 where there is one."""
    return _worlds[0].rank if _worlds else _number("RANK", 0)


def world_size() -> int:
    """How many processes train together."""
    return _worlds[0].size if _worlds else _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Place of this process among those of its machine."""
    return _number("LOCAL_RANK", 0)


def is_main() -> bool:
    """Whether this is the process that writes and speaks for all."""
    return rank() == 0


# -- what processes do together --------------------------------------------------------------------


def barrier() -> None:
    """Return when every process has come here."""
    _peers().barrier()


def gather(value: Any) -> list[Any]:
    """What every process brings, in order of rank."""
    return _peers().gather(value)


def all_reduce(value: Any, reduction: Reduction = "sum") -> Any:
    """A number, a NumPy array or a tensor put together with those of all other processes; each gets
    the result."""
    found = gather(value)
    if reduction in ("sum", "mean"):
        total = sum(found[1:], start=found[0])
        return total if reduction == "sum" else total / len(found)
    result = found[0]
    for other in found[1:]:
        if isinstance(result, int | float):
            result = max(result, other) if reduction == "max" else min(result, other)
        else:
            result = (
                (result - other).clip(min=0) + other
                if reduction == "max"
                else (result - (result - other).clip(min=0))
            )
    return result


# -- how they find one another ---------------------------------------------------------------------


def start(
    rank: int | None = None,
    size: int | None = None,
    init_method: str | None = None,
    device: str | None = None,
    timeout: float = 1800.0,
) -> ProcessGroup:
    """Find the others; the one place where process groups are made. A second call returns the world
    that is there.

    Args:
        rank: place of this process; torchrun's `RANK` when `None`.
        size: how many there are; torchrun's `WORLD_SIZE` when `None`.
        init_method: where they meet, such as `tcp://10.0.0.1:29500`; torchrun's `MASTER_ADDR` and
            `MASTER_PORT` when `None`.
        device: `cpu` or `cuda`; with `cuda` (or `None`, where there is one) each process takes the
            device of its local rank.
        timeout: seconds to wait for others before giving up.

    Raises:
        ConfigError: this process was not told where the others are, or there are fewer devices
            than processes.
        PeerError: they did not come.
    """
    if not _worlds:
        from mrlm.distributed.process_group import found_world

        rank = _number("RANK", 0) if rank is None else rank
        size = _number("WORLD_SIZE", 1) if size is None else size
        _worlds.append(found_world(rank, size, local_rank(), init_method, device, timeout))
    return _worlds[0]


def stop() -> None:
    """Leave the others; all processes do so together."""
    while _worlds:
        _worlds.pop().close()


def join(section: DistributedConfig) -> Peers:
    """The processes that a run is trained by: this one alone, or those that torchrun has started.

    Raises:
        ConfigError, PeerError: as `start` does.
    """
    several = is_initialized() or _number("WORLD_SIZE", 1) > 1
    cut = section.enabled and section.strategy == "fsdp"
    if cut and not is_initialized() and "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            "distributed.strategy=fsdp cuts models over processes, and this process has no others; "
            "start it with `torchrun --nproc-per-node N -m mrlm train ...`, or remove the setting"
        )
    if not several and not cut:
        if section.enabled and section.strategy == "ddp":
            log.info("distributed: this process has no others; start several with torchrun")
        return ALONE
    world = start(timeout=section.timeout)
    world.wait_for(section.timeout)
    world.bucket_bytes = section.bucket_mib << 20
    how = section.strategy if section.enabled else "ddp"
    if world.size > 1 and how not in _said:
        _said.append(how)
        log.info("distributed: %d processes train together (%s)", world.size, how)
    return world


def failed() -> bool:
    """Say that this process cannot go on; whether it is the first to say so, and therefore the one
    to tell what is wrong."""
    return _worlds[0].claim() if _worlds else True


def _peers() -> Peers:
    return _worlds[0] if _worlds else ALONE if _number("WORLD_SIZE", 1) == 1 else start()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name}={text!r} is not a number") from None
