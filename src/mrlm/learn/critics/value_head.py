"""The head that maps hidden states to values."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """`V(h) = w.h + b`, initialised to zero, so that the first advantages equal the rewards.

    Args:
        hidden_size: width of the hidden states.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear: nn.Linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (...), in float32 whatever the policy's precision."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.linear(hidden.float()).squeeze(-1)
