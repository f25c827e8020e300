"""References, frozen snapshots of policies: a copy of a model, or a second adapter (the base alone
while the adapter is still a no-op)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from mrlm.learn.policy.lora import copy_adapter, switch_adapter, unused_name, without_adapters
from mrlm.learn.policy.weights import PolicyWeights


def freeze(policy: PolicyWeights) -> None:
    """Freezes the current policy as its reference."""
    if policy.adapter is None:
        policy.reference = copy.deepcopy(policy.storage.whole.model).eval().requires_grad_(False)
        policy.passes.pop("reference", None)
        return
    if not policy.reference_adapter:
        policy.reference_adapter = unused_name(policy.model, policy.adapter, "-reference")
    copy_adapter(policy.model, policy.adapter, policy.reference_adapter)
    policy.passes.pop("reference", None)


def renew(policy: PolicyWeights) -> None:
    """Updates the reference to the current policy, in place if it has its own copy."""
    if policy.adapter is not None:
        policy.reference = None
        freeze(policy)
    elif policy.reference is None or not policy.reference_moved:
        freeze(policy)  # a reference given by the user is not overwritten
    else:
        policy.reference.load_state_dict(policy.storage.whole.model.state_dict())
    policy.reference_moved = True


@contextmanager
def standing(policy: PolicyWeights) -> Iterator[Any]:
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
