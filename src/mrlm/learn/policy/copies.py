"""Copies of policies, to sample from or to train separately."""

import copy
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import adapter_base, load_model, run_model
from mrlm.learn.policy.lora import BASE, copy_adapter, unused_name
from mrlm.learn.policy.policy import Policy


def opponent_copy(policy: Policy, name: str) -> Policy:
    """A frozen copy: another adapter on the same base, or a copy of the whole model."""
    model, adapter = policy.model, policy.adapter
    if adapter is None:
        return policy.over(copy.deepcopy(model).eval().requires_grad_(False), None, name)
    taken = name in model.peft_config or name == BASE
    adapter_name = unused_name(model, name, "-") if taken else name
    copy_adapter(model, adapter or BASE, adapter_name)
    return policy.over(model, adapter_name, name)


def beside(policy: Policy) -> Policy:
    """A copy that is trained separately; for an adapter, a second one on the same base."""
    if not policy.adapter:
        return policy.over(copy.deepcopy(policy.model), policy.adapter)
    adapter = unused_name(policy.model, policy.adapter, "-critic")
    copy_adapter(policy.model, policy.adapter, adapter, trainable=True)
    return policy.over(policy.model, adapter)


def frozen_beside(policy: Policy) -> Policy:
    """A frozen network for reading: the base under an adapter, or a copy of the model."""
    if policy.adapter is None:
        return policy.over(copy.deepcopy(policy.model), None)
    return policy.over(policy.model, BASE)


def mirrored(policies: Mapping[str, Policy], trained: Collection[str]) -> dict[str, Policy]:
    """Policies to sample from during training, by name; several may share a model. Weights of the
    `trained` ones are copied and stay fixed until `catch_up`; frozen weights are shared."""
    learned = {id(x) for name in trained for x in policies[name].named_parameters().values()}
    moving = {id(policies[name].model) for name in trained}
    memo: dict[int, object] = {}
    mirrors: dict[str, Policy] = {}
    for name, policy in policies.items():
        if id(policy.model) not in moving:
            mirrors[name] = policy
            continue
        memo |= {id(x): x for x in policy.model.parameters() if id(x) not in learned}
        mirrors[name] = policy.over(copy.deepcopy(policy.model, memo).eval(), policy.adapter, name)
    return mirrors


@torch.no_grad()
def catch_up(mirror: Policy, policy: Policy) -> None:
    """Copies the current weights into a policy made by `mirrored`."""
    if policy.value_head is not None:
        mirror.value_head = copy.deepcopy(policy.value_head)
    mirror_weights = mirror.named_parameters()
    for name, weight in policy.named_parameters().items():
        if mirror_weights[name] is not weight:
            mirror_weights[name].copy_(weight)


@torch.no_grad()
def adopt(policy: Policy, source: str) -> None:
    """Loads the weights of another run or model (a hub id, model folder, adapter folder or run
    folder) into a copy made by `opponent_copy`; a `ModelError` if they do not have its shapes."""
    path = run_model(source)
    if policy.adapter is not None and adapter_base(path) is None:
        raise ModelError(
            f"opponents.source={source!r}: policy {policy.name!r} is an adapter on a shared "
            "base, and this is not an adapter folder; give one, or play against a whole model "
            "as a policy of its own (policies.<name>: {model: ..., trainable: false})"
        )
    loaded = None
    if policy.adapter is None:
        dtype = str(policy.model.dtype).removeprefix("torch.")
        loaded = load_model(path, dtype, device=str(policy.device))
    try:
        if loaded is None:
            policy.load(Path(path))
        else:
            policy.model.load_state_dict(loaded.state_dict())
    except (RuntimeError, OSError) as error:
        lines = str(error).strip().split("\n")
        raise ModelError(
            f"opponents.source={source!r} does not fit the weights of the policy it plays against: "
            f"{lines[min(1, len(lines) - 1)].strip()}"
        ) from error
