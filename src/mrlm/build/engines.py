"""Builds the engine of every policy from the sections `engine` and `policies`."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from mrlm.build.policies import PlayPlan
from mrlm.config import ExperimentConfig, PolicyConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Engine


def make_engines(plan: PlayPlan, policies: Mapping[str, Policy]) -> dict[str, Engine]:
    """policy -> its engine: one for all policies with weights here, and one for each behind an API,
    whose limits are split among the processes."""
    remote = {
        name: _remote_engine(name, section, plan.peers.size)
        for name, section in plan.assignment.policies.items()
        if section.endpoint is not None
    }
    if not policies:
        return remote
    engine = engine_of(plan.config, policies)
    return {name: engine for name in policies} | remote  # noqa: C420


def engine_of(config: ExperimentConfig, policies: Mapping[str, Policy]) -> Engine:
    """The engine of policies with weights here, with the settings of the section `engine`."""
    plugin, accepts = check_engine(config)
    arguments: dict[str, Any] = {
        "batch_size": config.engine.batch_size,
        "cache_mib": config.engine.cache_mib,
        "int8": config.engine.int8,
        "kv_mib": config.engine.kv_mib,
        "timeout": config.engine.timeout,
        "unseen_writes": False,  # all writers of weights in a run call `load_weights`
    }
    settings = {key: value for key, value in arguments.items() if key in accepts}
    settings |= config.engine.of_server()
    return plugin(policies=policies, **settings)


def check_engine(config: ExperimentConfig) -> tuple[Any, Collection[str]]:
    """The engine plug-in for policies with weights here, and the arguments it takes. Raises
    `ConfigError`: it does not exist, or does not take its settings."""
    name = config.engine.name
    plugin = registry.load("engines", name)
    accepts = inspect.signature(plugin).parameters
    if "policies" not in accepts:
        raise ConfigError(f"engine.name={name!r} cannot be used from a config; use 'lean'")
    for key in config.engine.of_server():
        if key not in accepts:
            raise ConfigError(
                f"engine.{key}: the engine {name!r} takes no {key}; remove it, or use one that "
                "is a server (vllm, sglang, mrlm)"
            )
    if "base_url" in accepts and not (config.engine.base_url or config.engine.servers):
        raise ConfigError(
            f"engine.name={name!r} is a server elsewhere; set engine.base_url to where it is"
        )
    return plugin, accepts


def _remote_engine(name: str, section: PolicyConfig, size: int) -> Engine:
    """The engine for the endpoint of a policy; no request is sent yet."""
    kind = section.engine or "openai"
    plugin, endpoint = registry.load("engines", kind), section.endpoint
    assert endpoint is not None
    rate = endpoint.requests_per_minute
    if "base_url" not in inspect.signature(plugin).parameters:
        raise ConfigError(f"policies.{name}.engine={kind!r} has no endpoint; use 'openai'")
    if "policies" in inspect.signature(plugin).parameters:
        raise ConfigError(
            f"policies.{name}.engine={kind!r} samples for policies with weights here; for an "
            "endpoint of such a server use 'openai', whose protocol all of them serve"
        )
    arguments = {key: getattr(endpoint, key) for key in type(endpoint).model_fields}
    arguments |= {
        "requests_per_minute": rate and rate / size,
        "max_concurrent": max(1, endpoint.max_concurrent // size),
        "price": {"prompt": endpoint.price.prompt, "completion": endpoint.price.completion},
    }
    return plugin(name, **arguments)
