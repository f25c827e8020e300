"""Training in several processes. `torchrun` (or another launcher) starts them; this module connects
them. torch is not imported for a single process.

In a custom program:

    from mrlm import distributed

    mean = distributed.all_reduce(reward, "mean")  # every process calls this
    if distributed.is_main():
        print(mean)
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.sync_async import join_threads

if TYPE_CHECKING:
    from mrlm.config import DistributedConfig
    from mrlm.distributed.process_group import ProcessGroup

Reduction = Literal["sum", "mean", "max", "min"]
"""The combination of the numbers of all processes."""

_groups: list[ProcessGroup] = []
"""The process group of this process, once it has been started."""
_announced: list[str] = []
"""The strategies that were already logged."""


# -- properties of this process --------------------------------------------------------------------


def is_initialized() -> bool:
    """Whether this process has joined a process group."""
    return bool(_groups)


def rank() -> int:
    """Rank of this process; 0 without a process group."""
    return _groups[0].rank if _groups else _number("RANK", 0)


def world_size() -> int:
    """Number of processes that train together."""
    return _groups[0].size if _groups else _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Rank of this process on its machine."""
    return _number("LOCAL_RANK", 0)


def is_main() -> bool:
    """Whether this is the process that writes files and logs."""
    return rank() == 0


# -- collective operations -------------------------------------------------------------------------


def barrier() -> None:
    """Wait until every process has reached this call."""
    _peers().barrier()


def gather(value: Any) -> list[Any]:
    """The values of all processes, in order of rank."""
    return _peers().from_all(value)


def all_reduce(value: Any, reduction: Reduction = "sum") -> Any:
    """A number, a NumPy array or a tensor, combined with those of all other processes."""
    values = gather(value)
    if reduction in ("sum", "mean"):
        total = sum(values[1:], start=values[0])
        return total if reduction == "sum" else total / len(values)
    result = values[0]
    for other in values[1:]:
        if isinstance(result, int | float):
            result = max(result, other) if reduction == "max" else min(result, other)
        else:
            excess = (result - other).clip(min=0)
            result = other + excess if reduction == "max" else result - excess
    return result


# -- start and stop --------------------------------------------------------------------------------


def start(
    rank: int | None = None,
    size: int | None = None,
    init_method: str | None = None,
    device: str | None = None,
    timeout: float = 1800.0,
) -> ProcessGroup:
    """Create the process group; only done here. A second call returns the existing group.

    Args:
        rank: rank of this process; torchrun's `RANK` if `None`.
        size: number of processes; torchrun's `WORLD_SIZE` if `None`.
        init_method: rendezvous address, such as `tcp://10.0.0.1:29500`; torchrun's `MASTER_ADDR`
            and `MASTER_PORT` if `None`.
        device: `cpu` or `cuda`; with `cuda` (or `None`, if CUDA is available) each process takes
            the device of its local rank.
        timeout: seconds to wait for other processes before giving up.

    Raises:
        ConfigError: the rendezvous address is missing, or there are fewer devices than processes.
        PeerError: the other processes did not connect.
    """
    if not _groups:
        from mrlm.distributed.process_group import create_group

        rank = _number("RANK", 0) if rank is None else rank
        size = _number("WORLD_SIZE", 1) if size is None else size
        _groups.append(create_group(rank, size, local_rank(), init_method, device, timeout))
        atexit.register(stop)  # the one end of every run and program, also after an error
    return _groups[0]


def stop() -> None:
    """Leave the process group, at the latest when the program ends; the others must not wait for
    this process then. Threads that use the group end first."""
    atexit.unregister(stop)
    if _groups:
        join_threads()
    while _groups:
        _groups.pop().close()


def join(section: DistributedConfig) -> Peers:
    """The process group of a run: this process alone, or those that torchrun has started.

    Raises:
        ConfigError, PeerError: as for `start`.
    """
    several = is_initialized() or _number("WORLD_SIZE", 1) > 1
    cut = check_alone(section)
    if not several and not cut:
        if section.enabled and section.strategy == "ddp":
            log.info("distributed: this process is the only one; start several with torchrun")
        return ALONE
    group = start(timeout=section.timeout)
    group.wait_for(section.timeout)
    group.bucket_bytes = section.bucket_mib << 20
    how = section.strategy if section.enabled else "ddp"
    if group.size > 1 and how not in _announced:
        _announced.append(how)
        log.info("distributed: %d processes train together (%s)", group.size, how)
    return group


def check_alone(section: DistributedConfig) -> bool:
    """Whether a run shards its models. Raises `ConfigError`: it does, and nothing has started
    several processes."""
    cut = section.enabled and section.strategy == "fsdp"
    if cut and not is_initialized() and "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            "distributed.strategy=fsdp shards models, and this process is the only one; "
            "start it with `torchrun --nproc-per-node N -m mrlm train ...`, or remove the setting"
        )
    return cut


def failed() -> bool:
    """Report that this process has failed; whether it is the first one, which prints the error."""
    return _groups[0].claim() if _groups else True


def _peers() -> Peers:
    return _groups[0] if _groups else ALONE if _number("WORLD_SIZE", 1) == 1 else start()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name}={text!r} is not a number") from None
