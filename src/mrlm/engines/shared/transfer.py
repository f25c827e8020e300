"""Copies from a device to the host that nothing waits for until they are read."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def on(device: torch.device) -> AbstractContextManager[None]:
    """Context with a GPU as the current device of this thread, which streams, events and pinned
    memory belong to: every thread begins with the first GPU of the machine."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@dataclass(slots=True)
class Transfer:
    """Numbers on their way to the host."""

    numbers: Tensor
    ready: Any

    @classmethod
    def of(cls, numbers: Tensor) -> "Transfer":
        """Start to copy numbers of a device, as they are once it has computed all that was asked of
        it before."""
        device = numbers.device
        with on(device):
            cuda = device.type == "cuda"
            host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=cuda)
            host.copy_(numbers, non_blocking=True)
            ready = torch.cuda.Event() if cuda else None
            if ready is not None:
                ready.record()
        return cls(host, ready)

    def read(self) -> Tensor:
        """Wait for them."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.numbers
