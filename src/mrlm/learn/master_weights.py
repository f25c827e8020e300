"""The parameters that an optimiser updates: float32 copies of weights in 16 bits, whose own steps
would mostly round to nothing, and the split by weight decay."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mrlm.core.log import log

HALVES = (torch.bfloat16, torch.float16)
SPARED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters without weight decay: those of transformers' `Trainer`."""
MASTER = "master"
"""Name of a copy in the state of an optimiser."""


def decayed(learned: Any, weights: Sequence[nn.Parameter]) -> tuple[list[nn.Parameter], ...]:
    """Weights with decay, and those without: norms and biases, as in transformers' `Trainer`.

    Args:
        learned: the policy or network that they are parameters of.
        weights: some of its parameters.
    """
    named = dict(learned.named_parameters()).items()
    spared = {id(weight) for name, weight in named if SPARED.search(name.lower())}
    layers = (layer for module in learned.modules() for layer in module.modules())
    norms = (layer for layer in layers if isinstance(layer, nn.LayerNorm))
    spared |= {id(weight) for norm in norms for weight in norm.parameters()}
    first = [weight for weight in weights if id(weight) not in spared]
    return first, [weight for weight in weights if id(weight) in spared]


class MasterWeights:
    """Float32 copies of weights in 16 bits. A copy takes the gradient of its weight, is updated in
    its place, and is rounded into it. A weight that was changed elsewhere replaces its copy.

    Args:
        weights: the trained parameters.
        on: whether to make copies; `optimized` are the weights themselves without.
    """

    def __init__(self, weights: Sequence[nn.Parameter], on: bool = True) -> None:
        self.optimized: list[nn.Parameter] = [
            nn.Parameter(weight.detach().float()) if on and weight.dtype in HALVES else weight
            for weight in weights
        ]
        pairs = zip(weights, self.optimized, strict=True)
        self._pairs = [(weight, copy) for weight, copy in pairs if weight is not copy]
        self._versions = [weight._version for weight, _ in self._pairs]
        if not on and any(weight.dtype in HALVES for weight in weights):
            log.warning(
                "weights in 16 bits are updated in place (training.master_weights=false): a step "
                "smaller than half a digit of a weight changes nothing; see weight_change"
            )

    def take_gradients(self) -> None:
        """Moves the gradients of the weights to their copies."""
        for index, (weight, copy) in enumerate(self._pairs):
            if weight._version != self._versions[index]:
                copy.data.copy_(weight.detach())
                self._versions[index] = weight._version
            copy.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None

    @torch.no_grad()
    def round_back(self) -> None:
        """Rounds the copies into their weights, and frees their gradients."""
        for index, (weight, copy) in enumerate(self._pairs):
            copy.grad = None
            weight.copy_(copy)
            self._versions[index] = weight._version

    def state(self) -> dict[str, Tensor]:
        """The copies, by the positions of their weights."""
        places = {id(copy): index for index, copy in enumerate(self.optimized)}
        return {f"{places[id(copy)]}.{MASTER}": copy.detach() for _, copy in self._pairs}

    @torch.no_grad()
    def load(self, copies: dict[int, Tensor]) -> None:
        """Takes the copies of a state, by position; those that it lacks are made again."""
        places = {id(copy): index for index, copy in enumerate(self.optimized)}
        for number, (weight, copy) in enumerate(self._pairs):
            copy.copy_(copies.get(places[id(copy)], weight))
            self._versions[number] = weight._version
