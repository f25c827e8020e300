"""Adam with its moments in the host's memory, for weights on a device; and a step of a fused Adam
with known moments: `torch.optim` looks them up weight by weight in each step, which for the small
weights of an adapter takes longer than the step itself."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

AT_ONCE = 1 << 26
"""Weights whose moments are on the device at the same time."""


class HostAdam(torch.optim.Adam):
    """Adam (arXiv 1412.6980), or AdamW (arXiv 1711.05101), whose moments are in pinned memory of
    the host. A step copies those of some weights to the device, updates these weights there as
    Adam does, and copies the moments back: eight bytes less for each weight on the device, and
    equal numbers."""

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of all weights."""
        every = [group["params"] for group in self.param_groups]
        device = every[0][0].device
        try:
            for number, part in self._parts(every):
                for group in self.param_groups:
                    group["params"] = []
                self.param_groups[number]["params"] = part
                self._fetch(part)
                super().step(closure)
                self._keep(part)
        finally:
            for group, params in zip(self.param_groups, every, strict=True):
                group["params"] = params
        if device.type == "cuda":  # before the host reads them
            torch.cuda.current_stream(device).synchronize()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As Adam's, but the moments never are on the device together."""
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for index, entry in state_dict["state"].items():
            weight = weights[index]
            self.state[weight] = {
                name: _pinned(value, weight) if value.ndim else value.to(weight.device)
                for name, value in entry.items()
            }

    def _parts(self, every: list[list[nn.Parameter]]) -> Iterator[tuple[int, list[nn.Parameter]]]:
        """Weights of one group that are updated together, with its number."""
        for number, weights in enumerate(every):
            part: list[nn.Parameter] = []
            size = 0
            for weight in weights:
                if part and size + weight.numel() > AT_ONCE:
                    yield number, part
                    part, size = [], 0
                part.append(weight)
                size += weight.numel()
            yield number, part

    def _fetch(self, part: list[nn.Parameter]) -> None:
        """Copy moments to the device."""
        for weight in part:
            for name, value in self.state[weight].items():
                self.state[weight][name] = value.to(weight.device, non_blocking=True)

    def _keep(self, part: list[nn.Parameter]) -> None:
        """Copy moments back."""
        for weight in part:
            for name, value in self.state[weight].items():
                if value.ndim:
                    self.state[weight][name] = _pinned(value, weight)


def _pinned(value: Tensor, weight: Tensor) -> Tensor:
    """A copy in memory that the device of a weight reads and writes directly."""
    pinned = weight.device.type == "cuda"
    buffer = torch.empty(value.shape, dtype=weight.dtype, pin_memory=pinned)
    return buffer.copy_(value, non_blocking=True)


Moments = list[list[list[Tensor]]]
"""Of the weights of each parameter group: first moments, second moments, numbers of steps."""

_STEPS = {torch.optim.Adam: adam, torch.optim.AdamW: adamw}


def moments_of(optimizer: torch.optim.Optimizer) -> Moments | None:
    """The moments in the state of an Adam or AdamW, all of whose weights have made a step; `None`
    of another optimiser. They are the same tensors until a state is loaded."""
    if type(optimizer) not in _STEPS:
        return None
    return [
        [
            [optimizer.state[weight][name] for weight in group["params"]]
            for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        for group in optimizer.param_groups
    ]


@torch.no_grad()
def adam_step(optimizer: torch.optim.Optimizer, moments: Moments) -> None:
    """Does what `optimizer.step()` does if each weight has a gradient, on its `moments`."""
    step = _STEPS[type(optimizer)]
    for group, (first, second, steps) in zip(optimizer.param_groups, moments, strict=True):
        step(
            group["params"],
            [weight.grad for weight in group["params"]],
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
