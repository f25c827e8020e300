"""A step of a fused Adam with known moments. `torch.optim` looks them up weight by weight in each
step, which for the small weights of an adapter takes longer than the step itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

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
