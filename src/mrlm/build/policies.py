"""The policy assignment of a run (agent -> policy), decided once and logged, and the loading of its
policies with every base shared that can be."""

import copy
import difflib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrlm.build.precision import set_tf32
from mrlm.config import AgentConfig, ExperimentConfig, ModelConfig, PolicyConfig
from mrlm.config.policy_sections import lora_of
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.learn.fast.cpu_backends import keep_freed_memory, limit_kept_kernels
from mrlm.learn.policy.incoming import Incoming, changes_base, is_peft, live_adapter, take_adapter
from mrlm.learn.policy.loading import (
    adapter_base,
    adapter_settings,
    load_model,
    load_tokenizer,
    run_model,
)
from mrlm.learn.policy.lora import BASE
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.quantized import kind_of, trained_on
from mrlm.play.agent import AgentSettings, seed_of
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import Workflow
from mrlm.training.run import Callback

MUCH = 100_000_000  # bytes of the copies of a model that are worth a warning


@dataclass(slots=True)
class LiveObjects:
    """Live objects that a program passes in place of names in a config file.

    Args:
        models: policy -> (model or path, tokenizer or None).
        environments: instances, classes or functions, instead of `config.environments`.
        eval_environments: the same, which are evaluated and never trained on.
        workflow: instead of `config.workflow`.
        external_transition: instead of `config.workflow.external_transition`.
        rows: instead of `config.data.dataset`.
        system_prompt: of agents that have none.
        callbacks: hooks of the run.
        critics: policy (or team) -> model and tokenizer that its critic starts from.
        usual: config paths with another library's defaults, which need no effect.
    """

    models: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    environments: list[Any] = field(default_factory=list)
    eval_environments: list[Any] = field(default_factory=list)
    workflow: Workflow | None = None
    external_transition: Any = None
    rows: Any = None
    system_prompt: str | None = None
    callbacks: Sequence[Callback] = ()
    critics: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    usual: frozenset[str] = frozenset()


@dataclass(slots=True)
class PolicyAssignment:
    """The policy of each agent, and the settings of each policy."""

    policy_of: dict[str, str]
    policies: dict[str, PolicyConfig]

    @property
    def trained(self) -> dict[str, str]:
        """agent -> policy, for agents whose policies are trained."""
        return {a: name for a, name in self.policy_of.items() if self.policies[name].trainable}

    def rotated(self, roles: Sequence[str], places: int) -> "PolicyAssignment":
        """The assignment after the policies have moved `places` places along `roles`."""
        names = [self.policy_of[role] for role in roles]
        moved = {role: names[(i + places) % len(names)] for i, role in enumerate(roles)}
        return PolicyAssignment(self.policy_of | moved, self.policies)


@dataclass(kw_only=True)
class PlayPlan:
    """The parts of a run that are known before a model is loaded and needed for playing.

    Args:
        config: one stage of an experiment.
        parts: live objects in place of sections of the config.
        assignment: the policy of every agent.
        peers: the processes that play and train together.
    """

    config: ExperimentConfig
    parts: LiveObjects
    environments: Sequence[EnvironmentSpec] = ()
    assignment: PolicyAssignment
    peers: Peers = ALONE

    def agent(self, name: str) -> AgentConfig:
        """The section of an agent, with the system prompt of agents that have none."""
        section = self.config.agents.get(name) or AgentConfig()
        if section.system_prompt is not None:
            return section
        return section.model_copy(update={"system_prompt": self.parts.system_prompt})

    def only(self, agents: Collection[str], policies: Collection[str]) -> "PlayPlan":
        """The plan of some agents and policies alone."""
        of = {agent: name for agent, name in self.assignment.policy_of.items() if agent in agents}
        chosen = {name: item for name, item in self.assignment.policies.items() if name in policies}
        models = {name: item for name, item in self.parts.models.items() if name in policies}
        parts = LiveObjects(models=models, system_prompt=self.parts.system_prompt)
        return PlayPlan(config=self.config, parts=parts, assignment=PolicyAssignment(of, chosen))


def assign(
    config: ExperimentConfig, environments: Sequence[EnvironmentSpec], parts: LiveObjects
) -> "PolicyAssignment":
    """Assigns policies to agents: as the config names them; else one agent per agent of the
    environments, and one policy per agent. A workflow may name its agents itself."""
    wide = [env for env in environments if len(env.agents) > 1 or not config.agents]
    env_agents = [agent for env in wide for agent in env.agents]
    agents = list(dict.fromkeys([*config.agents, *env_agents])) or ["agent"]
    policies = dict(config.policies)
    if not policies:
        names = [section.policy for section in config.agents.values() if section.policy]
        names = names or (["policy"] if len(agents) == 1 else agents)
        policies = {name: PolicyConfig() for name in names}
    sections = [*config.environments, *config.evaluation.environments]
    named = {section.policy for section in config.agents.values()}
    lent = {item.lent_policy for item in sections} - named - set(agents)
    policies = {name: item for name, item in policies.items() if name not in lent}
    trainable = [name for name, settings in policies.items() if settings.trainable]
    policy_of: dict[str, str] = {}
    for agent in agents:
        section = config.agents.get(agent)
        named = section.policy if section else None
        if named is not None and named not in policies:
            raise ConfigError(registry.unknown(named, list(policies), f"agents.{agent}.policy"))
        if named is None:
            named = agent if agent in policies else trainable[0] if len(trainable) == 1 else None
        if named is None:
            raise ConfigError(
                f"agents.{agent}: no policy is set, and none can be inferred; set "
                f"agents.{agent}.policy to one of {', '.join(policies)}"
            )
        policy_of[agent] = named
    idle = [name for name in policies if name not in policy_of.values()]
    if idle:
        raise ConfigError(
            f"policies.{idle[0]}: no agent uses it; name it in agents.<agent>.policy or remove it"
        )
    _check_agents(config, environments, agents, parts)
    return PolicyAssignment(policy_of, policies)


def _check_agents(
    config: ExperimentConfig,
    environments: Sequence[EnvironmentSpec],
    agents: Sequence[str],
    parts: LiveObjects,
) -> None:
    """Checks that every agent of the environments is configured; in an environment with one agent
    the only configured one acts, or those that the workflow names."""
    all_agents = list(dict.fromkeys(agent for env in environments for agent in env.agents))
    idle = [agent for agent in agents if environments and agent not in all_agents]
    if idle and all(env.workflow.agents for env in environments):
        raise ConfigError(
            f"agents.{idle[0]}: workflow.name={config.workflow.name!r} uses only the agents "
            f"{', '.join(all_agents)}; give the workflow the names of your agents, or rename them"
        )
    for agent in idle:
        others = set(all_agents) - set(config.agents)
        if near := difflib.get_close_matches(agent, others, n=1, cutoff=0.75):
            text = "no environment has an agent of this name; did you mean"
            raise ConfigError(f"agents.{agent}: {text} {near[0]!r}?")
    for env in environments:
        env_agents = env.template.agents
        if env.workflow.agents and len(env_agents) > 1:
            raise ConfigError(
                f"workflow.name={config.workflow.name!r} needs environments with one agent, and "
                f"{env.name!r} has {len(env_agents)} ({', '.join(env_agents)}); use 'turns'"
            )
        if env.workflow.spec.repeats and not env.template.seeded:
            raise ConfigError(
                f"workflow.name={config.workflow.name!r} plays every task more than once, and the "
                f"reset of environment {env.name!r} takes neither task nor seed, so each episode "
                "would be of another task; give its reset a parameter seed"
            )
        missing = [agent for agent in env_agents if agent not in agents]
        if missing and len(env_agents) > 1:
            raise ConfigError(
                f"environment {env.name!r} has an agent {missing[0]!r}, but the agents are "
                f"{', '.join(agents)}"
            )
        if len(env_agents) == 1 and len(agents) > 1 and parts.workflow is None:
            name = config.workflow.name
            if name in ("turns", "single_turn") and missing:
                raise ConfigError(
                    f"environment {env.name!r} has one agent and the config has {len(agents)} "
                    f"({', '.join(agents)}), but the workflow {name!r} does not decide whose "
                    "answer counts; use a workflow that does, or one agent"
                )


def load_policies(plan: PlayPlan) -> dict[str, Policy]:
    """All policies that have weights here; those of one base share one copy of it."""
    config, section = plan.config, plan.config.model
    tokenizers: dict[str, Any] = {}
    taken: dict[int, int] = {}
    live_models: dict[int, Any] = {}
    policies: dict[str, Policy] = {}
    for names in bases_of(plan):
        live, path, *_ = origin_of(plan, names[0])
        if live is None:
            kind = quantizations(plan)[names[0]]
            model = load_with(section, base_of(plan, names[0]) or path, kind)
        else:  # a model given to several policies that change it is copied for all but the first
            model = copy.deepcopy(live) if id(live) in taken else live
            taken[id(live)] = taken.get(id(live), 0) + 1
            live_models[id(live)] = live
        lent = None if live is None else live_adapter(model)
        sections = plan.assignment.policies
        order = sorted(names, key=lambda x: (not is_adapter(plan, x), not sections[x].trainable))
        for position, name in enumerate(order):
            _, _, tokenizer, source = origin_of(plan, name)
            if tokenizer is None and source not in tokenizers:
                tokenizers[source] = load_tokenizer(source, section.trust_remote_code)
            tokenizer = tokenizers[source] if tokenizer is None else tokenizer
            seed = seed_of((config.training.seed, "adapter", name)) >> 1
            model, adapter = take_adapter(model, _incoming(plan, name), lent, position > 0, seed)
            if adapter is None and is_adapter(plan, order[0]):
                adapter = BASE
            chat = Chat(tokenizer, section.chat_template_kwargs)
            chat.check()
            same = {"precision": config.training.precision, "lean": section.lean}
            policies[name] = Policy(name, model, tokenizer, adapter=adapter, chat=chat, **same)
    for key, live in live_models.items():
        _note_copies(live, taken[key] - 1)
    limit_kept_kernels()
    kinds = {policy.device.type for policy in policies.values()}
    if kinds <= {"cpu"}:
        keep_freed_memory()
    elif "cuda" in kinds:
        set_tf32(config.training.precision)
    return {name: policies[name] for name in plan.assignment.policies if name in policies}


def _note_copies(model: Any, count: int) -> None:
    """Says how much memory the copies of a given model take, and how to do without."""
    if not count:
        return
    size = count * sum(one.numel() * one.element_size() for one in model.parameters())
    log.log(
        logging.WARNING if size >= MUCH else logging.INFO,
        "the given model was copied %d times, since every agent has a policy of its own: %.3g GB, "
        "and gradients and optimiser state for each; share_policy=True trains one policy for all "
        'agents, share_policy="lora" an adapter for each on one base',
        count,
        size / 1e9,
    )


def bases_of(plan: PlayPlan) -> list[list[str]]:
    """The policies that have weights here, grouped by base: adapters and frozen policies of one
    model share it, except for an adapter that changes its base."""
    every = plan.assignment.policies
    here = quantizations(plan)
    paths = {name: (base_of(plan, name) or origin_of(plan, name)[1], here[name]) for name in here}
    bases = {paths[name] for name in here if is_adapter(plan, name)}
    grouped: dict[Any, list[str]] = {}
    for name in here:
        live = origin_of(plan, name)[0]
        kind = "path" if paths[name] in bases else "frozen"
        key = ("live", id(live)) if live is not None else (kind, paths[name])
        shares = is_adapter(plan, name) or not every[name].trainable
        shares = shares and not changes_base(start_of(plan, name))
        grouped.setdefault(key if shares else ("own", name), []).append(name)
    return list(grouped.values())


def _incoming(plan: PlayPlan, name: str) -> Incoming:
    """The adapter that a policy is to be."""
    section = plan.assignment.policies[name]
    lora = lora_of(plan.config.model, section)
    folder = None if base_of(plan, name) is None else Path(run_model(origin_of(plan, name)[1]))
    if not lora:
        return Incoming(name, section.trainable, folder=folder)
    explicit = lora.model_dump(include=lora.model_fields_set)
    if len(explicit) == len(type(lora).model_fields):  # of a run's folder, with all defaults
        explicit = lora.model_dump(exclude_defaults=True)
    return Incoming(name, section.trainable, lora.model_dump(), explicit, folder)


def is_adapter(plan: PlayPlan, name: str) -> bool:
    """Whether a policy is an adapter: a new one, a saved one, or that of a live PEFT model."""
    lora = lora_of(plan.config.model, plan.assignment.policies[name])
    live = is_peft(origin_of(plan, name)[0])
    return bool(lora) or live or base_of(plan, name) is not None


def base_of(plan: PlayPlan, name: str) -> str | None:
    """The base of a policy whose model is the folder of an adapter, else `None`. With `lora: false`
    all weights are trained, and the adapter is merged into its base."""
    live, path, *_ = origin_of(plan, name)
    section = plan.assignment.policies[name]
    whole = lora_of(plan.config.model, section) is False
    return adapter_base(run_model(path)) if live is None and not whole else None


def quantizations(plan: PlayPlan) -> dict[str, str | None]:
    """Policy -> the quantisation of its model, of those with weights here: that of a live one, the
    configured one, else that of its adapter's training."""
    kinds: dict[str, str | None] = {}
    for name, section in plan.assignment.policies.items():
        if section.endpoint is None:
            live, path, *_ = origin_of(plan, name)
            kinds[name] = kind_of(live) if live is not None else plan.config.model.quantization
            if live is None and kinds[name] is None and base_of(plan, name) is not None:
                kinds[name] = trained_on(run_model(path)) or None
    return kinds


def start_of(plan: PlayPlan, name: str) -> Any:
    """`init_lora_weights` of the adapter of a policy."""
    live, path, *_ = origin_of(plan, name)
    if live is not None and (adapter := live_adapter(live)):
        return live.peft_config[adapter].init_lora_weights
    if live is None and base_of(plan, name) is not None:
        return adapter_settings(run_model(path)).get("init_lora_weights")
    lora = lora_of(plan.config.model, plan.assignment.policies[name])
    return lora.init_lora_weights if lora else True


def origin_of(plan: PlayPlan, name: str) -> tuple[Any, str, Any, str]:
    """The initial model of a policy: live or `None`, and its path; and its tokenizer, the same."""
    section = plan.assignment.policies[name]
    live, tokenizer = plan.parts.models.get(name, (None, None))
    path = section.model or plan.config.model.model_name_or_path
    source = section.model or plan.config.model.tokenizer_name_or_path or path
    source = section.tokenizer or source
    if isinstance(live, str | os.PathLike):
        path, live = str(live), None
        source = source if section.tokenizer else path
    elif live is not None:
        source = getattr(live, "name_or_path", "") or source
    return live, path, tokenizer, source


def load_with(section: ModelConfig, path: str, quantization: str | None = None) -> Any:
    """Loads the model of a folder or hub id with the settings of a section."""
    how = section.torch_dtype, section.trust_remote_code, section.attn_implementation
    return load_model(path, *how, section.device, quantization=quantization)


def make_settings(
    plan: PlayPlan, policies: Mapping[str, Policy], assignment: PolicyAssignment | None = None
) -> dict[str, AgentSettings]:
    """Settings of every agent that are the same in all episodes, with the policies of `assignment`
    (by default the plan's)."""
    settings_of: dict[str, AgentSettings] = {}
    config, assignment = plan.config, assignment or plan.assignment
    for agent, policy_name in assignment.policy_of.items():
        section = plan.agent(agent)
        sampling = config.generation.sampling(**section.generation)
        if assignment.policies[policy_name].endpoint is not None:  # only its server tokenises
            alone = policy_name, None, sampling, 0, section.system_prompt
            settings_of[agent] = AgentSettings(agent, *alone, trained=False)
            continue
        policy = policies[policy_name]
        room = policy.max_context - sampling.max_new_tokens
        limit = config.generation.max_prompt_tokens or room
        if room < 1:
            raise ConfigError(
                f"generation.max_new_tokens={sampling.max_new_tokens} (agent {agent!r}) leaves no "
                f"room for a prompt: policy {policy_name!r} has {policy.max_context} positions in "
                f"all; use fewer than {policy.max_context}"
            )
        if limit > room:
            raise ConfigError(
                f"agent {agent!r}: generation.max_prompt_tokens={limit} and "
                f"max_new_tokens={sampling.max_new_tokens} together "
                f"exceed the {policy.max_context} positions of policy {policy_name!r}"
            )
        settings_of[agent] = AgentSettings(
            name=agent,
            policy=policy_name,
            chat=policy.chat,
            sampling=sampling,
            max_prompt_tokens=limit,
            system_prompt=section.system_prompt,
            trained=assignment.policies[policy_name].trainable,
        )
    return settings_of
