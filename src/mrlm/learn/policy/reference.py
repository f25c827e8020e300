"""Reference policies: frozen snapshots of a policy. A whole model is copied; an adapter is compared
with its base while it is a no-op, otherwise with a second adapter on the same base."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from mrlm.learn.policy.loading import import_peft
from mrlm.learn.policy.lora import (
    BASE,
    adapter_weights,
    changes_nothing,
    copy_adapter,
    switch_adapter,
    without_adapters,
)


class Referenced(Protocol):
    """The parts of a policy that its reference depends on: model, adapter and current reference."""

    model: Any
    adapter: str | None
    reference: Any
    reference_adapter: str
    reference_moved: bool

    @property
    def whole(self) -> Referenced:
        """The unsharded policy on this rank."""
        ...

    def forget_pass(self, which: Literal["own", "reference"]) -> None:
        """Rebuilds the fast path at next use."""
        ...


def keep(policy: Referenced) -> None:
    """Ensures that there is a reference: a given one, or the current policy. An adapter that is
    still a no-op uses the base with all adapters disabled."""
    if policy.reference is not None or policy.reference_adapter or policy.adapter == BASE:
        return
    if policy.adapter is None or not changes_nothing(policy.model, policy.adapter):
        freeze(policy)


def freeze(policy: Referenced) -> None:
    """Freezes the current policy as its reference."""
    if policy.adapter is None:
        policy.reference = copy.deepcopy(policy.whole.model).eval().requires_grad_(False)
        policy.forget_pass("reference")
        return
    if not policy.reference_adapter:
        name = f"{policy.adapter}-reference"
        while name in policy.model.peft_config:
            name += "-reference"
        policy.reference_adapter = name
    copy_adapter(policy.model, policy.adapter, policy.reference_adapter)
    policy.forget_pass("reference")


def renew(policy: Referenced) -> None:
    """Updates the reference to the current policy, in place if it has its own copy."""
    if policy.adapter is not None:
        policy.reference = None
        freeze(policy)
    elif policy.reference is None or not policy.reference_moved:
        freeze(policy)  # a reference given by the user is not overwritten
    else:
        policy.reference.load_state_dict(policy.whole.model.state_dict())
    policy.reference_moved = True


@contextmanager
def standing(policy: Referenced) -> Iterator[Any]:
    """Yields the reference model of a policy, ready to compute with."""
    if policy.reference is not None:
        yield policy.reference
        return
    if policy.reference_adapter:
        switch_adapter(policy.model, policy.reference_adapter)
    try:
        with nullcontext() if policy.reference_adapter else without_adapters(policy.model):
            yield policy.model
    finally:
        if policy.adapter:
            switch_adapter(policy.model, policy.adapter)


def save_reference(policy: Referenced, folder: Path) -> None:
    """Writes the reference if it changed during training; an unchanged one is rebuilt on load."""
    from safetensors.torch import save_file, save_model

    if not policy.reference_moved:
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = str(folder / "reference.safetensors")
    if policy.adapter is None:
        save_model(policy.reference, file)
        return
    save_file(adapter_weights(policy.model, policy.reference_adapter), file)


@torch.no_grad()
def load_reference(policy: Referenced, folder: Path) -> None:
    """Loads the reference that `save_reference` wrote, bit by bit, if any."""
    from safetensors.torch import load_file, load_model

    file = folder / "reference.safetensors"
    if not file.is_file():
        return
    renew(policy)
    if policy.adapter is None:
        load_model(policy.reference, file)
        return
    peft, name = import_peft(), policy.reference_adapter
    peft.set_peft_model_state_dict(policy.model, load_file(file), adapter_name=name)
