"""What a policy is compared with: itself as it was at some moment, frozen. A whole model is copied;
an adapter is compared with its base while it adds nothing to it, and with a second adapter on the
same base otherwise."""

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
    """What a reference is kept of: a policy's model, its adapter and the reference it has now."""

    model: Any
    adapter: str | None
    reference: Any
    reference_adapter: str
    reference_moved: bool

    @property
    def whole(self) -> Referenced:
        """The policy with all of its weights in this process."""
        ...

    def forget_pass(self, which: Literal["own", "reference"]) -> None:
        """Make a fast path again when it is next used."""
        ...


def keep(policy: Referenced) -> None:
    """See to it that there is a reference: one that was handed over, or the policy as it is now.
    The base with all adapters off serves an adapter that adds nothing to it yet."""
    if policy.reference is not None or policy.reference_adapter or policy.adapter == BASE:
        return
    if policy.adapter is None or not changes_nothing(policy.model, policy.adapter):
        freeze(policy)


def freeze(policy: Referenced) -> None:
    """Keep the policy as it is now as its reference."""
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
    """Make the policy as it is now its reference, in place where it has one of its own."""
    if policy.adapter is not None:
        policy.reference = None
        freeze(policy)
    elif policy.reference is None or not policy.reference_moved:
        freeze(policy)  # one that somebody handed over stays as it is
    else:
        policy.reference.load_state_dict(policy.whole.model.state_dict())
    policy.reference_moved = True


@contextmanager
def standing(policy: Referenced) -> Iterator[Any]:
    """The model that stands for the reference of a policy, as it is to be read."""
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
    """Write a reference that moved; one that did not is there again when the policy is loaded."""
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
    """Take the reference that `save_reference` wrote, bit by bit, if it wrote one."""
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
