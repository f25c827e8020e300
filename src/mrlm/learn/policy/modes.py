"""Modes of a model's modules: evaluation for scoring, and training with or without dropout."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Context of the modules of a model, each of which has its own mode again afterwards."""
    modules = list(model.modules())
    before = [module.training for module in modules]
    try:
        yield modules
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.training = mode


@contextmanager
def update_mode(model: nn.Module, dropout: bool, checkpointing: bool) -> Iterator[None]:
    """Context of a model for updates.

    Args:
        dropout: whether its own dropout acts; that of adapters, which a user has to set, does.
        checkpointing: whether blocks recompute activations, which they do in training mode only.
    """
    with restored_modes(model) as modules:
        model.train(dropout)
        rates: list[tuple[dict[str, Any], str, float]] = []
        for module in () if dropout else modules:
            adapters = vars(module)["_modules"].get("lora_dropout")
            if isinstance(adapters, nn.ModuleDict):
                adapters.train()
            if checkpointing and hasattr(module, "gradient_checkpointing"):
                module.training = True
                attributes = vars(module)
                rates += [
                    (attributes, name, value)
                    for name, value in attributes.items()
                    if "drop" in name and isinstance(value, float) and value > 0
                ]
        for attributes, name, _ in rates:
            attributes[name] = 0.0
        try:
            yield
        finally:
            for attributes, name, rate in rates:
                attributes[name] = rate
