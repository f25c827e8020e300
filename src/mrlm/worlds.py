"""From the sections `environments` and `workflow` to what is played: the worlds of a run, each with
the workflow that plays it."""

from __future__ import annotations

import inspect
from typing import Any

from mrlm.casting import Parts
from mrlm.config import EnvironmentConfig, ExperimentConfig
from mrlm.core import registry
from mrlm.core.environment import Environment, SimulatedEnvironment, as_environment
from mrlm.core.errors import ConfigError
from mrlm.play.deck import WorldSpec


def make_worlds(config: ExperimentConfig, parts: Parts) -> list[WorldSpec]:
    """The worlds of a run, each with a name of its own and its workflow. Those that are evaluated
    and never trained on have the weight 0."""
    watched = [each.model_copy(update={"weight": 0.0}) for each in config.evaluation.environments]
    sections = [*([] if parts.worlds else config.environments), *watched]
    live = EnvironmentConfig(env_type="live"), EnvironmentConfig(env_type="live", weight=0.0)
    made = [(world, live[0]) for world in parts.worlds]
    made += [(environment_factory(section), section) for section in sections]
    made += [(world, live[1]) for world in parts.eval_worlds]
    specs: list[WorldSpec] = []
    for world, section in made:
        template, make = _template(world)
        name = section.name or template.name or _class_name(template)
        taken = {spec.name for spec in specs}
        if name in taken:
            if section.name:
                raise ConfigError(
                    f"two environments are called {name!r}; give each a name of its own"
                )
            name = next(
                f"{name}-{i}" for i in range(2, len(made) + 2) if f"{name}-{i}" not in taken
            )
        workflow = _workflow(config, parts, template, section)
        specs.append(
            WorldSpec(
                name=name,
                template=template,
                make=make,
                workflow=workflow,
                weight=section.weight,
                timeout=section.timeout,
                retries=section.retries,
            )
        )
    return specs


def environment_factory(section: EnvironmentConfig) -> Any:
    """The world a section describes, ready to be spawned."""
    if section.remote:
        return _remote(section)
    plugin = registry.load("environments", section.env_type)
    world = plugin(**section.constructor_arguments(plugin))
    template = as_environment(world)
    if not template.name:
        template.name = section.env_type.rsplit(":", 1)[-1].lower()
    return template


def _remote(section: EnvironmentConfig) -> Environment:
    """The same world on an environment server."""
    from mrlm.serving.client.environment import RemoteEnvironment

    given = section.parameters
    if section.max_turns is not None:
        given["max_turns"] = section.max_turns
    return RemoteEnvironment(
        section.env_type,
        server=section.server_address,
        token_env=section.token_env,
        tls_ca=section.tls_ca,
        tls_cert=section.tls_cert,
        tls_key=section.tls_key,
        servers_file=section.servers_file,
        deadline=0.95 * section.timeout,  # so that why it failed is told before it is cut short
        arguments=given,
    )


def _template(world: Any) -> tuple[Environment, Any]:
    """An instance that answers for its settings, and how to make a fresh one: by copying it, or by
    calling the class or function again."""
    template = as_environment(world)
    if isinstance(world, Environment | SimulatedEnvironment):
        return template, template.spawn
    return template, lambda: as_environment(world)


def _class_name(template: Environment) -> str:
    return type(template).__name__.removesuffix("Environment").lower() or "environment"


def _workflow(
    config: ExperimentConfig, parts: Parts, template: Environment, section: EnvironmentConfig
) -> Any:
    if parts.workflow is not None:
        return parts.workflow() if inspect.isclass(parts.workflow) else parts.workflow
    plugin = registry.load("workflows", config.workflow.name)
    if not inspect.isclass(plugin):
        return plugin
    arguments = config.workflow.constructor_arguments(plugin)
    accepts = inspect.signature(plugin).parameters
    counts = template.counts_turns  # the world says how many steps that makes
    if section.max_turns is not None and "max_turns" in accepts and not counts:
        arguments.setdefault("max_turns", section.max_turns)
    return plugin(**arguments)
