"""Policies for a server, from folders, runs or a config, with the engine that samples for them."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects, PlayPlan, assign, load_policies
from mrlm.config import ExperimentConfig, load_config
from mrlm.core import registry
from mrlm.core.errors import ConfigError, ModelError
from mrlm.learn.policy.incoming import load_adapter
from mrlm.learn.policy.loading import adapter_base, load_model, load_tokenizer, run_model
from mrlm.learn.policy.lora import BASE
from mrlm.learn.policy.policy import Policy, scored
from mrlm.learn.policy.quantized import kind_of, trained_on
from mrlm.learn.policy.weight_files import take_file, take_folder
from mrlm.play.engine import Engine
from mrlm.serving.policies.hub import ServedPolicy


@dataclass(slots=True)
class ServedWeights:
    """The weights of a served policy."""

    policy: Policy

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        tensors = self.policy.named_parameters().values() or self.policy.model.parameters()
        return sum(parameter.numel() * parameter.element_size() for parameter in tensors)

    def fingerprint(self) -> tuple[float, ...]:
        return self.policy.fingerprint()

    def take_file(self, file: Path) -> None:
        take_file(self.policy, file)

    def take_folder(self, folder: Path) -> None:
        take_folder(self.policy, folder)

    def score(self, ids: Sequence[int], most: int) -> list[list[tuple[int, float, int]]]:
        return scored(self.policy, ids, most)

    def tokenizer_files(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            self.policy.tokenizer.save_pretrained(folder)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@dataclass(slots=True)
class HostedPolicies:
    """Policies in this process by name (adapters of one base share a model), and the engine that
    samples for all of them, with `settings`. `models` has the name of each one's model, `prompts`
    the system prompt of chats without one."""

    policies: dict[str, Policy]
    models: dict[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, str | None] = field(default_factory=dict)

    def served(self) -> list[ServedPolicy]:
        """All policies, with a new engine."""
        lean = registry.load("engines", "lean")  # to which weights come through `load_weights`
        engine: Engine = lean(self.policies, **self.settings, unseen_writes=False)
        return [
            ServedPolicy(
                name,
                engine,
                policy.chat,
                ServedWeights(policy),
                self.models[name],
                policy.max_context,
                parent=self._parent(policy),
                system_prompt=self.prompts.get(name),
            )
            for name, policy in self.policies.items()
        ]

    def _parent(self, policy: Policy) -> str | None:
        if not policy.adapter:
            return None
        for candidate in self.policies.values():
            if candidate.model is policy.model and candidate.adapter == BASE:
                return candidate.name
        return policy.model.get_base_model().name_or_path

    def add_adapter(self, name: str, folder: Path) -> list[ServedPolicy]:
        """Adds policy `name`: the adapter of a folder on the only whole model here. Returns it with
        all others, which have a new engine. Raises `ModelError`: the server has no single base, or
        the adapter does not fit."""
        bases = [policy for policy in self.policies.values() if not policy.adapter]
        if len(bases) != 1:
            raise ModelError(
                f"adapter {name!r}: the server has {len(bases)} base models; adapters can be added "
                "only to a server with exactly one"
            )
        base = bases[0]
        if (kind := trained_on(str(folder))) and kind != kind_of(base.model):
            base_of = f"was trained on a base in {kind}, and that of the server is not"
            raise ModelError(f"adapter {name!r} {base_of}; serve it with --policy {name}={folder}")
        model = load_adapter(base.model, name, folder)
        if base.adapter is None:
            self.policies[base.name] = _twin(base, base.name, model, BASE)
        self.policies[name] = _twin(base, name, model, name)
        self.models[name] = name
        return self.served()


def _twin(policy: Policy, name: str, model: Any, adapter: str) -> Policy:
    same = {"precision": policy.precision, "chat": policy.chat, "lean": policy.lean}
    return Policy(name, model, policy.tokenizer, adapter=adapter, **same)


def house_of(
    named: Mapping[str, str],
    dtype: str = "float32",
    device: str = "auto",
    prompts: Mapping[str, str | None] | None = None,
    quantization: str | None = None,
) -> HostedPolicies:
    """Policies, by name, from folders, hub ids or runs: an adapter folder stays an adapter, and
    those of one base share it, as do equal folders. A base is quantised as in the adapter's
    training, or as given. `prompts` are as in `HostedPolicies`. Raises `ConfigError`: none is
    given, or one cannot be loaded."""
    if not named:
        raise ConfigError("no policy to serve is given; use --policy NAME=FOLDER")
    policies: dict[str, Policy] = {}
    bases: dict[tuple[str, str | None], Any] = {}
    for name, path in named.items():
        folder, tokenizer = run_model(path), load_tokenizer(path)
        base = adapter_base(folder)
        source, adapter = (path, None) if base is None else (base, name)
        at = source, quantization or (base and trained_on(folder)) or None
        if at not in bases:
            bases[at] = load_model(source, dtype, device=device, quantization=at[1])
        if adapter is not None:
            bases[at] = load_adapter(bases[at], name, Path(folder))
        policies[name] = Policy(name, bases[at], tokenizer, adapter=adapter)
    return HostedPolicies(policies, dict(named), prompts=prompts or {})


def house_of_team(folder: Path, dtype: str, device: str) -> HostedPolicies:
    """The agents of a trained team under their names; those of one policy share its model. Raises
    `ConfigError`: the folder has no team, or a policy cannot be loaded."""
    file = Path(run_model(str(folder))) / "team.yaml"
    if not file.is_file():
        raise ConfigError(f"--team {folder}: {file} does not exist; give a run or a pulled team")
    config = load_config(file)
    policies = {name: config.policies[x.policy or name] for name, x in config.agents.items()}
    named = {name: str(x.model) for name, x in policies.items() if x.model is not None}
    prompts = {agent: section.system_prompt for agent, section in config.agents.items()}
    return house_of(named, dtype, device, prompts, config.model.quantization)


def house_of_config(config: ExperimentConfig) -> HostedPolicies:
    """The policies of an experiment that have weights, with their initial ones. Raises
    `ConfigError`: they cannot be assigned or loaded."""
    parts = LiveObjects()
    assignment = assign(config, make_environments(config, parts), parts)
    policies = load_policies(PlayPlan(config=config, parts=parts, assignment=assignment))
    if not policies:
        raise ConfigError("the config has no policy with weights to serve")
    usual, sections = config.model.model_name_or_path, assignment.policies
    models = {name: sections[name].model or usual for name in policies}
    return HostedPolicies(policies, models, settings={"batch_size": config.engine.batch_size})
