"""Weights of a policy as one file, loaded all or none into a copy elsewhere."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import first_line, load_model
from mrlm.learn.policy.lora import BASE, adapter_weights, set_adapter_weights
from mrlm.learn.policy.policy import Policy

SHOWN = 3
"""Number of names that an error lists."""


def spoken_weights(policy: Policy) -> dict[str, Tensor]:
    """The weights that a policy samples with, by name: the model's parameters, or those of its
    adapter under their checkpoint names. Heads are left out."""
    if policy.adapter:
        return adapter_weights(policy.model, policy.adapter)
    if policy.adapter == BASE:
        raise ModelError(
            f"policy {policy.name!r} is the base of adapters and never changes; send "
            "the weights of the adapters"
        )
    return {name: value.detach() for name, value in policy.model.named_parameters()}


def write_weights(policy: Policy, file: Path) -> None:
    """Writes the weights to a file."""
    tensors = {name: value.contiguous() for name, value in spoken_weights(policy).items()}
    save_file(tensors, file, metadata={"format": "pt"})


@torch.no_grad()
def take_file(policy: Policy, file: Path) -> None:
    """Loads weights written by `write_weights` for a policy of the same shape, in place; a
    `ModelError`, and no change, if they do not match."""
    current = spoken_weights(policy)
    try:
        with safe_open(file, "pt") as saved:
            shapes = {name: tuple(saved.get_slice(name).get_shape()) for name in saved.keys()}  # noqa: SIM118
        _check(policy, shapes, {name: tuple(value.shape) for name, value in current.items()})
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"policy {policy.name!r}: cannot read the safetensors file: {first_line(error)}"
        ) from error
    _take(policy, weights)


@torch.no_grad()
def take_folder(policy: Policy, folder: Path) -> None:
    """The same from a Hugging Face folder: of a model, or of an adapter of the same shape."""
    if policy.adapter:
        take_file(policy, folder / "adapter_model.safetensors")
        return
    dtype = str(policy.model.dtype).removeprefix("torch.")
    model = load_model(str(folder), dtype=dtype, device="cpu")
    weights = {name: value.detach() for name, value in model.named_parameters()}
    shapes = {name: tuple(value.shape) for name, value in spoken_weights(policy).items()}
    _check(policy, {name: tuple(value.shape) for name, value in weights.items()}, shapes)
    _take(policy, weights)


def _check(
    policy: Policy, shapes: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]
) -> None:
    wrong = {"lack": expected.keys() - shapes, "have unknown": shapes.keys() - expected}
    both = expected.keys() & shapes
    wrong["reshape"] = {name for name in both if expected[name] != shapes[name]}
    for kind, names in ((kind, sorted(found)) for kind, found in wrong.items()):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ModelError(
                f"policy {policy.name!r}: the weights {kind} {', '.join(names[:SHOWN])}{more}; "
                "send those of the same model, or of an adapter of the same rank"
            )


def _take(policy: Policy, weights: dict[str, Tensor]) -> None:
    if policy.adapter:
        set_adapter_weights(policy.model, policy.adapter, weights)
        return
    for name, value in policy.model.named_parameters():
        value.copy_(weights[name])
