"""Process groups: rendezvous, collective operations and failure detection. Objects and numbers are
sent through gloo, gradients through the backend of their device."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed.nn  # before a group exists: its functions have the group as default
from torch import distributed

from mrlm.core.errors import ConfigError, MRLMError, PeerError
from mrlm.core.operating_system import end_with_launcher
from mrlm.core.process_group import Peers
from mrlm.core.sync_async import in_thread
from mrlm.distributed import buckets
from mrlm.distributed.serialization import dumps, loads

T = TypeVar("T")
K = TypeVar("K")
FAILED = "mrlm/failed"
"""Store key for the rank of the first process that fails."""
WRITTEN = "mrlm/said"
"""Store key that the main process sets when it has written everything before an early end."""
REACHED = 60.0
"""Seconds in which the launcher has to answer."""
PATIENCE = 20.0
"""Seconds that the other processes wait for that key."""


class ProcessGroup(Peers):
    """A group of `size` processes that includes this one. One waits `timeout` seconds for the
    others; `group` is torch's for everything but gradients, `None` the default."""

    def __init__(self, rank: int, size: int, timeout: float, group: Any = None) -> None:
        self.rank: int = rank
        self.size: int = size
        self.timeout = timeout
        self.bucket_bytes: int = 25 << 20
        self._group: Any = group
        self._channels: list[ProcessGroup] = []

    # -- communication -----------------------------------------------------------------------------

    def from_all(self, value: T) -> list[T]:
        """The values of all processes, in order of rank; the own value is the object itself."""
        if self.size == 1:
            return [value]
        payload = torch.frombuffer(bytearray(dumps(value)), dtype=torch.uint8)
        with self._others():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            distributed.all_gather(sizes, torch.tensor([len(payload)]), group=self._group)
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(payload)] = payload
            buffers = [torch.empty_like(padded) for _ in range(self.size)]
            distributed.all_gather(buffers, padded, group=self._group)
        return [
            value if rank == self.rank else loads(data[: int(size)].numpy().tobytes())
            for rank, (data, size) in enumerate(zip(buffers, sizes, strict=True))
        ]

    async def exchange(self, value: T) -> list[T]:
        return await in_thread(lambda: self.from_all(value))

    def first(self, job: Callable[[], T]) -> T:
        """The result of a job that only the main process runs, in all processes. Raises
        `PeerError`: in the other processes, if it failed in the main one."""
        outcome: tuple[bool, Any] = True, None
        if self.main:
            try:
                outcome = (True, job())
            except Exception as error:  # the others must not wait for a result in vain
                self.from_all((False, f"{type(error).__name__}: {error}"))
                raise
        done, result = self.from_all(outcome)[0]
        if not done:
            raise PeerError(f"the main process failed: {result}")
        return result  # pyright: ignore[reportReturnType]

    def barrier(self) -> None:
        self.from_all(None)

    def channel(self) -> "ProcessGroup":
        timeout = timedelta(seconds=self.timeout)
        with self._others():
            group = distributed.new_group(backend="gloo", timeout=timeout)
        self._channels.append(ProcessGroup(self.rank, self.size, self.timeout, group))
        return self._channels[-1]

    # -- reductions --------------------------------------------------------------------------------

    def add_gradients(self, parameters: Iterable[Any]) -> None:
        if self.size > 1:
            with self._others():
                buckets.add_gradients(list(parameters), self.bucket_bytes)

    def add_numbers(self, tables: Sequence[Mapping[K, Any]]) -> list[dict[K, Any]]:
        sums: list[dict[K, Any]] = [{} for _ in tables]
        for part in self.from_all([dict(table) for table in tables]):
            for total, table in zip(sums, part, strict=True):
                for name, number in table.items():
                    total[name] = total.get(name, type(number)()) + number
        return sums

    def spread(self, tensors: Iterable[Any]) -> None:
        if self.size > 1:
            with self._others():
                buckets.spread(list(tensors), self.bucket_bytes)

    # -- shutdown ----------------------------------------------------------------------------------

    @contextmanager
    def _others(self) -> Iterator[None]:
        """Report a lost process in the operations inside the block."""
        try:
            yield
        except RuntimeError as error:
            text = str(error).strip().splitlines()
            raise PeerError(
                f"process {self.rank} of {self.size} lost the others: one of them has ended, or "
                f"did not answer for distributed.timeout={self.timeout:g} s "
                f"({text[0] if text else 'no reason given'}). Look for its message"
            ) from error

    def claim(self) -> bool:
        """Report that this process fails; whether it is the first to do so."""
        if self.size == 1 or not distributed.is_initialized():
            return True
        try:
            rank_name = str(self.rank)
            return _store().compare_set(FAILED, "", rank_name).decode() == rank_name
        except RuntimeError:  # the process that keeps the store is gone, and has reported why
            return False

    def farewell(self) -> None:
        if self.size == 1:
            return
        with suppress(RuntimeError):  # no process is left to wait for
            if self.main:
                _store().set(WRITTEN, "1")
            else:
                _store().wait([WRITTEN], timedelta(seconds=PATIENCE))

    def wait_for(self, seconds: float) -> None:
        self.timeout: float = seconds
        group = distributed.group.WORLD
        distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)

    def close(self) -> None:
        """Leave the group. Torch ends the group's threads with its last reference; one that lives
        on while Python ends aborts the process."""
        for channel in self._channels:
            channel._group = None
        if distributed.is_initialized():
            distributed.destroy_process_group()


def create_group(
    rank: int, size: int, local_rank: int, init_method: str | None, device: str | None, wait: float
) -> ProcessGroup:
    """Create the group of this process; arguments as for `start`."""
    end_with_launcher()
    if size == 1:
        init_method = None
    if not 0 <= rank < size:
        raise ConfigError(f"a process cannot have rank {rank} of {size}")
    if size > 1 and init_method is None and not os.environ.get("MASTER_ADDR"):
        raise ConfigError(
            "WORLD_SIZE is above 1, but MASTER_ADDR (the address of the first process) is not set; "
            "start them with torchrun"
        )
    if init_method is None and size > 1:
        _check_launcher(rank, size)
    quick = device != "cpu" and torch.cuda.is_available()
    if quick:
        _take_device(local_rank)
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if quick else "gloo",
            init_method=init_method,
            world_size=size,
            rank=rank,
            timeout=timedelta(seconds=wait),
            store=distributed.HashStore() if size == 1 else None,  # pyright: ignore
        )
    except (RuntimeError, ValueError) as error:
        raise PeerError(f"process {rank} of {size} did not find the others: {error}") from error
    if rank:
        logging.getLogger("mrlm").setLevel(logging.ERROR)  # only one process logs
    group = ProcessGroup(rank, size, wait)
    _print_error_once(group)
    return group


def _check_launcher(rank: int, size: int) -> None:
    """Check that the torchrun that keeps the store of addresses still runs: it was started before
    all processes, so if it does not answer it is gone, and the other processes with it. Raises
    `PeerError`: it is gone, so waiting is useless."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection(where, REACHED).close()
    except OSError as error:
        raise PeerError(
            f"process {rank} of {size}: the torchrun that started it is gone: no answer at "
            f"{where[0]}:{where[1]} ({error})"
        ) from None


def _take_device(local_rank: int) -> None:
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"local rank {local_rank} exceeds the devices of this machine ({count}); start "
            f"at most {count} processes here (--nproc_per_node), or set model.device=cpu with "
            "CUDA_VISIBLE_DEVICES= empty"
        )
    torch.cuda.set_device(local_rank)


def _print_error_once(group: ProcessGroup) -> None:
    """Let only one process print the error that ends all of them, if nothing catches it."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        if group.claim() or not issubclass(kind, MRLMError | KeyboardInterrupt):
            before(kind, error, at)

    if group.size > 1:
        sys.excepthook = hook


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()  # pyright: ignore
