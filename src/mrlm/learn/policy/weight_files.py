"""The weights of a policy as one safetensors file, to be taken by a copy of the policy elsewhere:
all of them, or none."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import first_line, import_peft, load_model
from mrlm.learn.policy.lora import BASE, adapter_weights
from mrlm.learn.policy.policy import Policy

SHOWN = 3
"""Names that an error lists."""


def spoken_weights(policy: Policy) -> dict[str, Tensor]:
    """What a policy speaks with, by name: the parameters of its model, or those of its adapter
    under the names they are saved with. Heads are left out: they say nothing."""
    if policy.adapter:
        return adapter_weights(policy.model, policy.adapter)
    if policy.adapter == BASE:
        raise ModelError(
            f"policy {policy.name!r} is the base of adapters, which never changes; send theirs"
        )
    return {name: value.detach() for name, value in policy.model.named_parameters()}


def write_weights(policy: Policy, file: Path) -> None:
    """Write them to a file."""
    tensors = {name: value.contiguous() for name, value in spoken_weights(policy).items()}
    save_file(tensors, file, metadata={"format": "pt"})


@torch.no_grad()
def take_file(policy: Policy, file: Path) -> None:
    """Take the weights that `write_weights` wrote for a policy of the same shape, in place.

    Raises:
        ModelError: they are not those of such a policy; nothing has changed then.
    """
    own = spoken_weights(policy)
    try:
        with safe_open(file, "pt") as saved:
            shapes = {name: tuple(saved.get_slice(name).get_shape()) for name in saved.keys()}  # noqa: SIM118
        _check(policy, shapes, {name: tuple(value.shape) for name, value in own.items()})
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"policy {policy.name!r}: no readable safetensors file: {first_line(error)}"
        ) from error
    _take(policy, found)


@torch.no_grad()
def take_folder(policy: Policy, folder: Path) -> None:
    """Take the weights of a Hugging Face folder: of a model, or, for an adapter, of one of the same
    shape.

    Raises:
        ModelError: they do not fit; nothing has changed then.
    """
    if policy.adapter:
        take_file(policy, folder / "adapter_model.safetensors")
        return
    dtype = str(policy.model.dtype).removeprefix("torch.")
    model = load_model(str(folder), dtype=dtype, device="cpu")
    found = {name: value.detach() for name, value in model.named_parameters()}
    own = {name: tuple(value.shape) for name, value in spoken_weights(policy).items()}
    _check(policy, {name: tuple(value.shape) for name, value in found.items()}, own)
    _take(policy, found)


def _check(
    policy: Policy, found: dict[str, tuple[int, ...]], own: dict[str, tuple[int, ...]]
) -> None:
    missing, strange = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    other = [name for name in sorted(own.keys() & found.keys()) if own[name] != found[name]]
    for kind, names in (("lacks", missing), ("has too much:", strange), ("reshapes", other)):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ModelError(
                f"policy {policy.name!r}: what was sent {kind} {', '.join(names[:SHOWN])}{more}; "
                "send the weights of the same model, or of an adapter of the same rank"
            )


def _take(policy: Policy, found: dict[str, Tensor]) -> None:
    if policy.adapter:
        import_peft().set_peft_model_state_dict(policy.model, found, adapter_name=policy.adapter)
        return
    for name, value in policy.model.named_parameters():
        value.copy_(found[name])
