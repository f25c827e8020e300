"""Float64 where the device has it: the GPU of a Mac computes in float32 at most."""

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no float64."""


def double_dtype(device: torch.device) -> torch.dtype:
    """The widest type of numbers of a device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def double(x: Tensor) -> Tensor:
    """`x`, of any shape, in the widest type of its device."""
    return x.to(double_dtype(x.device))
