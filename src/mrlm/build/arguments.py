"""Reads the arguments of a trainer: environments or rows, models and the agents they act for."""

import difflib
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from mrlm.config import ExperimentConfig, LoraConfig
from mrlm.config.aliases import WORDS
from mrlm.config.base import Section
from mrlm.config.errors import InvalidConfig, Problem
from mrlm.config.normalize import SECTIONS, known_fields, section_key
from mrlm.config.other_libraries import refused_text
from mrlm.core import registry
from mrlm.core.environment import Environment, SimulatedEnvironment
from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.types import EnvironmentMode
from mrlm.learn.policy.incoming import ABOUT, check_kind
from mrlm.learn.policy.lora import FROM_PEFT

Sections = dict[str, dict[str, Any]]
"""Sections of a config by name."""
Models = dict[str, tuple[Any, Any]]
"""policy -> (model, tokenizer), of policies that a config cannot name."""


def references_of(
    agent_ids: Sequence[str],
    env_agents: Sequence[str],
    model: Any,
    agents: Mapping[str, Any] | Sequence[Any] | None,
    num_agents: int | None,
) -> dict[str, Any]:
    """agent -> its model, or the name or path of one, by the arguments of a trainer; `agent_ids`
    and `env_agents` are the agents of the config and of the environments. Raises `ConfigError`:
    their numbers differ."""
    env_agents = list(dict.fromkeys(env_agents))
    if isinstance(agents, Mapping):
        references = dict(agents)
    elif agents is not None:
        names = env_agents or agent_names(len(agents))
        if len(names) != len(agents):
            raise ConfigError(f"{len(agents)} models for {len(names)} agents ({', '.join(names)})")
        references = dict(zip(names, agents, strict=True))
    else:
        references = dict.fromkeys(agent_ids or env_agents or agent_names(num_agents or 1), model)
    if num_agents is not None and len(references) != num_agents:
        raise ConfigError(
            f"num_agents={num_agents}, but there are {len(references)} agents: "
            f"{', '.join(references)}"
        )
    return references


@cache
def paths_of_words() -> Mapping[str, list[str]]:
    """The last word of a setting's path -> the path, or those of several settings, none of them of
    `training`."""
    paths: dict[str, list[str]] = {}
    for section, field in ExperimentConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for name in kind.model_fields:
                paths.setdefault(name, []).append(f"{section}.{name}")
    own = {name: [p for p in full if p.startswith("training.")] for name, full in paths.items()}
    return {name: own[name] or full for name, full in paths.items()}


def last_words() -> Mapping[str, str]:
    """The last word of a setting's path -> the path, where that is one."""
    return {name: paths[0] for name, paths in paths_of_words().items() if len(paths) == 1}


def with_paths(
    words: Mapping[str, Any], arguments: Sequence[str], algorithm: str
) -> dict[str, Any]:
    """Keywords of a trainer, with the paths of settings that were named by their last word. The
    trainer's own `arguments` come first, as do the words of other libraries, the algorithm's
    settings and the names of sections."""
    first = {*arguments, *WORDS, *(known_fields(algorithm) or ()), *SECTIONS}
    first |= {section_key(algorithm), *registry.names("algorithms")}
    first |= {word for word in words if any(name.endswith(f"_{word}") for name in arguments)}
    paths = {word: word if word in first else last_words().get(word, word) for word in words}
    return {paths[word]: value for word, value in words.items()}


def refuse_unknown(words: Iterable[str], arguments: Sequence[str], algorithm: str) -> None:
    """Refuse keywords (dotted ones and names of other libraries are checked later) that are neither
    settings, nor sections, nor the trainer's own `arguments`. Raises `ConfigError`: an unknown
    keyword; names the nearest known one."""
    accepted = [*arguments, *WORDS, *(known_fields(algorithm) or ()), *SECTIONS]
    passed = {*accepted, "eval_envs", section_key(algorithm), *registry.names("algorithms")}
    problems = []
    for word in words:
        if word in passed or "." in word or refused_text(word):
            continue
        longer = [name for name in accepted if name.endswith(f"_{word}")]
        near = longer or difflib.get_close_matches(word, accepted, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "docs/trainers.md has the known ones"
        sections = [path.split(".")[0] for path in paths_of_words().get(word, ())]
        if len(sections) > bool(longer):
            hint = "give " + " or ".join(f"{section}={{{word!r}: ...}}" for section in sections)
        problems.append(Problem(word, f"unknown argument; {hint}"))
    if problems:
        raise InvalidConfig(problems)


def assign_references(
    references: Mapping[str, Any], tokenizer: Any, together: bool, lora: bool
) -> tuple[Sections, Sections, Models]:
    """Sections `policies` and `agents`, and models: one policy per agent, or with `together` one
    per distinct reference."""
    policies: Sections = {}
    agents: Sections = {}
    models: Models = {}
    of: dict[str, str] = {}
    by_reference: dict[Any, str] = {}
    for agent, argument in references.items():
        reference, own_tokenizer, frozen, agents[agent] = _opened(agent, argument, tokenizer)
        named = isinstance(reference, str | os.PathLike)
        key = (str(reference) if named else id(reference), frozen)
        name = by_reference.get(key) if together else None
        if name is None:
            name = by_reference[key] = "policy" if len(references) == 1 else agent
            if isinstance(reference, LLMEnvironment) and isinstance(reference.model, Mapping):
                policies[name] = {"endpoint": dict(reference.model)}
            else:
                section = {"trainable": False} if frozen else {"lora": {}} if lora else {}
                policies[name] = section | ({"model": str(reference)} if named else {})
                if own_tokenizer is not None or not (named or reference is None):
                    models[name] = (reference, own_tokenizer)
        of[agent] = name
    if len(policies) == 1 and len(of) > 1:
        ((only, section),) = policies.items()
        policies = {"policy": section}
        models = {"policy": models[only]} if only in models else {}
        of = dict.fromkeys(of, "policy")
    agents = {agent: {"policy": name, **agents[agent]} for agent, name in of.items()}
    return policies, agents, models


def _opened(agent: str, reference: Any, tokenizer: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
    """Model, tokenizer, whether it is frozen, and the section of its agent."""
    if isinstance(reference, tuple):
        return *reference, False, {}
    if not isinstance(reference, LLMEnvironment) or isinstance(reference.model, Mapping):
        return reference, tokenizer, False, {}
    reference.check_policy()
    if reference.reward_fn is not None:
        raise ConfigError(
            f"agents[{agent!r}]: the reward_fn of an LLMEnvironment of one agent is not used; give "
            "the trainer reward_func, or the environment its own reward"
        )
    section: dict[str, Any] = {}
    if reference.generation_config:
        section["generation"] = dict(reference.generation_config)
    if reference.system_prompt:
        section["system_prompt"] = reference.system_prompt
    frozen = reference.mode is EnvironmentMode.CLIENT
    return reference.model, reference.tokenizer or tokenizer, frozen, section


def refuse_unplayed(**parts: Any) -> None:
    """Refuses arguments that need prompts to be sampled from."""
    key = next((name for name, part in parts.items() if part is not None), None)
    if key is not None:
        raise ConfigError(
            f"{key}= needs a run that samples completions; set train_dataset=, reward_func= and "
            "an online algorithm"
        )


def adapter_words(peft_config: Any) -> dict[str, Any]:
    """Dotted words of the section `lora` for a `peft.LoraConfig`. Raises `ConfigError`: it sets
    something that is not trained, copied or saved as PEFT would."""
    if peft_config is None:
        return {}
    if not hasattr(peft_config, "peft_type"):
        kind = type(peft_config).__name__
        raise ConfigError(f"peft_config is a {kind}; give a peft.LoraConfig, or lora={{...}}")
    check_kind(peft_config, "peft_config")
    usual = type(peft_config)()
    setting_names = {FROM_PEFT.get(key, key): key for key in LoraConfig.model_fields}
    words: dict[str, Any] = {"use_peft": True}
    for name, value in vars(peft_config).items():
        always = name in ("r", "lora_alpha", "target_modules")  # whose defaults are others here
        if name in ABOUT or not (always or value != getattr(usual, name, None)):
            continue
        if name not in setting_names:
            raise ConfigError(
                f"peft_config.{name}={value!r}: the section `lora` has only "
                f"{', '.join(setting_names)}; pass a PEFT model as model= for others"
            )
        value = sorted(value) if isinstance(value, set) else value
        words[f"model.lora.{setting_names[name]}"] = value
    return words


def joined_words(args: Any, words: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Flat words of keywords and of `args`, if that is a mapping, which must not contradict each
    other; and `args` otherwise."""
    if not isinstance(args, Mapping):
        return words, args
    twice = args.keys() & words.keys()
    both = {name: one_of(name, args[name], words[name]) for name in twice}
    return {**args, **words, **both}, None


def names_of(
    agents: Mapping[str, Any] | Sequence[Any] | None, num_agents: int | None, app: Any = None
) -> Sequence[str]:
    """Names of the agents that a trainer's arguments describe; a list has models, or, of an
    app, names."""
    if agents and (app is not None or isinstance(agents, Mapping)):
        return list(agents)
    return agent_names(num_agents or (1 if agents is None else len(agents)))


def one_of(name: str, *values: Any) -> Any:
    """The one value that is given. Raises `ConfigError`: two different values are given."""
    first, *others = [value for value in values if value is not None] or [None]
    for other in others:
        if other is not first and not _same(other, first):
            raise ConfigError(
                f"{name} is given twice, with different values: {first!r} and {other!r}"
            )
    return first


def _same(first: Any, second: Any) -> bool:
    plain = (str, int, float, bool)
    return isinstance(first, plain) and isinstance(second, plain) and first == second


def environments_or_rows(data: Any, environment: Any = None) -> tuple[list[Any], Any]:
    """The second argument of a trainer, environments or rows, with its argument `environment`, as
    (environments, rows)."""
    first, more = listed(data), listed(environment)
    if first and all(map(_is_environment, first)):
        return [*first, *more], None
    return more, data


def _is_environment(value: Any) -> bool:
    return (
        isinstance(value, Environment | SimulatedEnvironment | LLMEnvironment)
        or inspect.isclass(value)
        or inspect.isfunction(value)
    )


def listed(environments: Any) -> list[Any]:
    """Environments as a list."""
    if environments is None:
        return []
    return list(environments) if isinstance(environments, list | tuple) else [environments]


def agent_names(count: int) -> list[str]:
    """Default names of agents."""
    return ["agent"] if count == 1 else [f"agent_{i}" for i in range(count)]
