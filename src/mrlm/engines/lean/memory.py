"""Memory of keys and values: how much a batch may take, and where it lies."""

from math import prod

import psutil
import torch
from torch import Tensor

SHARE = 0.8
"""Share of an accelerator's free memory that keys and values may take."""
SHARE_OF_PROCESSOR = 0.5
"""Share of all memory of the machine that they may take on the CPU; it does not depend on what else
runs, so that equal runs decode equal batches."""


def budget_of(memory: "Fresh", kv_mib: int | None) -> int:
    """Bytes that keys and values of a batch may take: the setting, or a share of what is free."""
    device = memory.device
    if kv_mib is not None:
        return kv_mib << 20
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(SHARE * (free + held)) + memory.held
    return int(SHARE_OF_PROCESSOR * psutil.virtual_memory().total)


class Fresh:
    """New memory for every tensor."""

    overlaps: bool = False
    layout: int = 0
    """Counts the times that memory moved."""
    held: int = 0
    """Bytes that stay from batch to batch."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype: torch.dtype = dtype
        self.device: torch.device = device

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of a shape, with any values."""
        return torch.empty(*shape, dtype=dtype or self.dtype, device=self.device)

    def zeros(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of a shape, with zeros."""
        return torch.zeros(*shape, dtype=dtype, device=self.device)

    def release(self) -> None:
        """Free what stays."""


class Lasting(Fresh):
    """Memory that stays at its address: tensors of one name begin at one place, whatever their
    shapes, until one is larger than all before. Recorded steps read and write there."""

    overlaps = True

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype, device)
        self._flat: dict[str, Tensor] = {}

    @property
    def held(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sum(tensor.nbytes for tensor in self._flat.values())

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        size, kind = prod(shape), dtype or self.dtype
        flat = self._flat.get(name)
        if flat is None or len(flat) < size or flat.dtype != kind:
            self.layout += 1
            flat = self._flat.pop(name, None)
            del flat
            self._flat[name] = super().take(name, size, dtype=kind)
        return self._flat[name][:size].view(shape)

    def zeros(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.take(name, *shape, dtype=dtype).zero_()

    def release(self) -> None:
        self.layout += 1
        self._flat.clear()
