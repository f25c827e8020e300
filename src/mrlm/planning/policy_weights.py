"""The weights of a run: policies with weights of their own, adapters on shared bases, and their
references, critics and opponents."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.config import ExperimentConfig, LoraConfig, PolicyConfig
from mrlm.config.paths import STAGE
from mrlm.config.policy_sections import lora_of
from mrlm.planning.model_shape import ModelShape, find_shape


@dataclass(slots=True)
class WeightSizes:
    """One policy's weights.

    Args:
        name: name of the policy.
        shape: shape of its model; `None` if only the number of weights is known.
        count: weights of its model.
        base: policy that holds the copy of the model it uses: its own name, or another's.
        lora: its adapter, if it has one.
        trainable: whether it is trained.
        num_agents: number of agents that use it.
        num_opponents: frozen copies that play its agents (`opponents:`).
        reference: weights of the frozen model or adapter that scores its completions, 0 for none.
        critic: weights of its critic network, 0 for none.
        critic_learns: whether that network is trained.
    """

    name: str
    shape: ModelShape | None
    count: int
    base: str
    lora: LoraConfig | None = None
    trainable: bool = True
    num_agents: int = 1
    num_opponents: int = 0
    reference: int = 0
    critic: int = 0
    critic_learns: bool = True

    @property
    def adapter(self) -> int:
        """Weights of its adapter, as far as the shape is known."""
        return self.shape.adapter(self.lora) if self.lora and self.shape else 0

    @property
    def trained(self) -> int:
        if not self.trainable:
            return 0
        return self.count if self.lora is None else self.adapter

    @property
    def owns(self) -> bool:
        """Whether the copy of its model is counted here."""
        return self.base == self.name


def weights_of(
    config: ExperimentConfig,
    spec: Any,
    policies: Mapping[str, PolicyConfig],
    agents_per_policy: Mapping[str, int],
    parameters: Mapping[str, int],
    shapes: Mapping[str, ModelShape] | None,
) -> tuple[list[WeightSizes], list[str]]:
    """Every policy with weights on this machine, and notes on what is unknown; arguments as for
    `plan.arithmetic`."""
    notes: list[str] = []
    sizes: list[WeightSizes] = []
    bases: dict[str, str] = {}
    usual = config.model.model_name_or_path
    paths = {name: policy.model or usual for name, policy in policies.items()}
    for name, section in policies.items():
        if section.endpoint is not None:
            continue
        path = paths[name]
        shape = shapes.get(name) if shapes is not None else find_shape(path)
        count = parameters.get(name) or (shape.parameters if shape else 0)
        if not count:
            notes.append(
                f"memory of {name} is not known: {path} is neither a local folder nor a model that "
                "is known by name; mrlm plan takes --params"
            )
            continue
        lora = lora_of(config.model, section) or None
        shares = lora is not None or not section.trainable
        base = bases.setdefault(path, name) if shares else name
        if lora is not None and shape is None:
            notes.append(f"memory of {name} leaves its adapter out: its shape is not known")
        who = section.trainable, agents_per_policy.get(name, 1)
        sizes.append(WeightSizes(name, shape, count, base, lora, *who))
    _add_beside(config, spec, sizes, paths, notes)
    return sizes, notes


def _add_beside(
    config: ExperimentConfig,
    spec: Any,
    sizes: Sequence[WeightSizes],
    paths: Mapping[str, str],
    notes: list[str],
) -> None:
    """Record references, critics and opponents on their policies."""
    opponents = config.opponents
    learning = [policy for policy in sizes if policy.trainable]
    for policy in learning:
        if spec.has_reference:
            policy.reference = _reference(spec.reference_of(policy.name), policy, paths, notes)
        if opponents.on and (opponents.policies is None or policy.name in opponents.policies):
            policy.num_opponents = opponents.at_once
    if "values" not in spec.columns or spec.critic.topology == "shared" or not learning:
        return
    critic_path = config.training.critic_model
    if spec.critic.topology == "separate":
        critic_shape = None if critic_path is None else find_shape(critic_path)
        for policy in learning:
            policy.critic = policy.trained if critic_shape is None else critic_shape.parameters
        return
    first = learning[0]
    first.critic_learns = spec.critic.topology != "mixed"
    if critic_path is None:  # a frozen copy is the base itself, if there is an adapter
        first.critic = first.trained if first.critic_learns else 0 if first.lora else first.count
    elif (shape := find_shape(critic_path)) is not None:
        first.critic = shape.parameters
    else:
        notes.append(
            "memory leaves the own model of the team's critic out: training.critic_model="
            f"{critic_path} is neither a local folder nor a model that is known by name"
        )


def _reference(
    source: str | None, policy: WeightSizes, paths: Mapping[str, str], notes: list[str]
) -> int:
    """Weights of the reference of a policy: a copy of it, or its teacher."""
    own = policy.count if policy.lora is None else 0
    if source is None:  # of an adapter the base alone
        return own
    if source.startswith(STAGE):  # a model of the same kind
        return own or policy.adapter
    from mrlm.learn.policy.loading import adapter_base, adapter_settings, run_model  # torch

    path = run_model(source)
    base, rank = adapter_base(path), adapter_settings(path).get("r", 0)
    shared = base is not None and os.path.realpath(base) == os.path.realpath(paths[policy.name])
    if shared and policy.lora is not None:
        lora = policy.lora.model_copy(update={"r": rank})
        return policy.shape.adapter(lora) if policy.shape else 0
    shape = find_shape(base or path)
    if shape is None:
        notes.append(f"memory of {policy.name} leaves its teacher out: {source} is not known here")
        return 0
    return shape.parameters
