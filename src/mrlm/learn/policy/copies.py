"""Copies of policies, allocated once beside the trained policy and overwritten with the weights to
sample from."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import adapter_base, load_model, run_model
from mrlm.learn.policy.lora import BASE, copy_adapter
from mrlm.learn.policy.policy import Policy


def stand_in(policy: Policy, name: str) -> Policy:
    """Creates a frozen policy of the same shape: another adapter on the same base if `policy` is an
    adapter, else a copy of the model.

    Args:
        policy: the trained policy.
        name: of the copy.
    """
    model, adapter = policy.model, policy.adapter
    if adapter is None:
        model = copy.deepcopy(model).eval().requires_grad_(False)
    else:
        adapter = name
        while adapter in model.peft_config or adapter == BASE:
            adapter += "-"
        copy_adapter(model, policy.adapter or BASE, adapter)
    return Policy(
        name,
        model,
        policy.tokenizer,
        adapter=adapter,
        precision=policy.precision,
        chat=policy.chat,
        lean=policy.lean,
    )


def mirrored(policies: Mapping[str, Policy], trained: Collection[str]) -> dict[str, Policy]:
    """Policies to sample from during training. Trained weights are copied and stay fixed until
    `catch_up`; frozen weights are shared.

    Args:
        policies: name -> policy; several may share a model.
        trained: names of the trained policies.
    """
    learned = {id(each) for name in trained for each in policies[name].named_parameters().values()}
    moving = {id(policies[name].model) for name in trained}
    memo: dict[int, object] = {}
    found: dict[str, Policy] = {}
    for name, policy in policies.items():
        if id(policy.model) not in moving:
            found[name] = policy
            continue
        memo |= {id(each): each for each in policy.model.parameters() if id(each) not in learned}
        found[name] = Policy(
            name,
            copy.deepcopy(policy.model, memo).eval(),
            policy.tokenizer,
            adapter=policy.adapter,
            precision=policy.precision,
            chat=policy.chat,
            lean=policy.lean,
        )
    return found


@torch.no_grad()
def catch_up(mirror: Policy, policy: Policy) -> None:
    """Copies the current weights into a policy made by `mirrored`."""
    if policy.value_head is not None:
        mirror.value_head = copy.deepcopy(policy.value_head)
    own = mirror.named_parameters()
    for name, weight in policy.named_parameters().items():
        if own[name] is not weight:
            own[name].copy_(weight)


@torch.no_grad()
def adopt(policy: Policy, source: str) -> None:
    """Loads the weights of another run or model into a copy.

    Args:
        policy: a copy made by `stand_in`.
        source: hub id, model folder, adapter folder or run folder.

    Raises:
        ModelError: its weights do not have the shapes of `policy`.
    """
    path = run_model(source)
    if policy.adapter is not None:
        if adapter_base(path) is None:
            raise ModelError(
                f"opponents.source={source!r}: policy {policy.name!r} is an adapter on a shared "
                "base, and this is not an adapter folder; give one, or play against a whole model "
                "as a policy of its own (policies.<name>: {model: ..., trainable: false})"
            )
        try:
            policy.load(Path(path))
        except (RuntimeError, OSError) as error:
            raise _other_shape(source, error) from error
        return
    dtype = str(policy.model.dtype).removeprefix("torch.")
    loaded = load_model(path, dtype, device=str(policy.device))
    try:
        policy.model.load_state_dict(loaded.state_dict())
    except RuntimeError as error:
        raise _other_shape(source, error) from error


def _other_shape(source: str, error: Exception) -> ModelError:
    lines = str(error).strip().split("\n")
    return ModelError(
        f"opponents.source={source!r} does not fit the weights of the policy it plays against: "
        f"{lines[min(1, len(lines) - 1)].strip()}"
    )
