"""Builds the environments of a run, each with its workflow, from the sections `environments` and
`workflow`."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from mrlm.build.policies import LiveObjects
from mrlm.config import EnvironmentConfig, ExperimentConfig
from mrlm.config.play_sections import REMOTE, WorkflowConfig
from mrlm.core import registry
from mrlm.core.environment import TURN_SETTINGS, Environment, SimulatedEnvironment, as_environment
from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.log import log
from mrlm.play.proof import check_rows
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import Workflow, as_workflow
from mrlm.sandbox import SandboxUnavailableError, open_sandbox


def make_environments(config: ExperimentConfig, parts: LiveObjects) -> list[EnvironmentSpec]:
    """The environments of a run, each with a unique name and its workflow. Those that are only
    evaluated have weight 0."""
    watched = [item.model_copy(update={"weight": 0.0}) for item in config.evaluation.environments]
    sections = [*([] if parts.environments else config.environments), *watched]
    live = EnvironmentConfig(env_type="live"), EnvironmentConfig(env_type="live", weight=0.0)
    made = [(env, live[0]) for env in parts.environments]
    made += [(environment_factory(with_policy(config, parts, item)), item) for item in sections]
    made += [(env, live[1]) for env in parts.eval_environments]
    specs: list[EnvironmentSpec] = []
    for env, section in made:
        template, make = _template(env)
        type_name = type(template).__name__.removesuffix("Environment").lower()
        name = section.name or template.name or type_name or "environment"
        taken = {spec.name for spec in specs}
        if name in taken:
            others = (f"{name}-{number}" for number in itertools.count(2))
            free = next(item for item in others if item not in taken)
            if section.name or any(section is item for item in config.environments):
                raise ConfigError(
                    f"environments: two are called {name!r}, so their metrics and episodes would "
                    f"be mixed; give one another name, such as `name: {free}`"
                )
            log.info("two environments are called %r; the second is %r here", name, free)
            name = free
        workflow = _workflow(config, parts, template, section)
        template, make, workflow = _with_turns(template, make, workflow)
        check_rows(template, name)
        limits = section.weight, section.timeout or template.step_timeout, section.retries
        specs.append(EnvironmentSpec(name, template, make, workflow, *limits))
    return specs


def check_isolation(environments: Sequence[EnvironmentSpec]) -> None:
    """Opens the local sandboxes of a run before its models are loaded. Raises `ConfigError`: an
    environment runs programs of models, and they cannot be isolated here."""
    for spec in environments:
        isolation = spec.template.isolation
        if isinstance(isolation, str) and isolation not in ("docker", "remote"):
            try:
                open_sandbox(isolation)
            except SandboxUnavailableError as error:
                raise ConfigError(
                    f"environment {spec.name!r} runs programs that a model writes: {error}"
                ) from error


def with_policy(
    config: ExperimentConfig, parts: LiveObjects, section: EnvironmentConfig
) -> EnvironmentConfig:
    """A section whose `model` names a frozen policy of the run, with the model of that policy.
    Raises `ConfigError`: the policy does not exist, is trained, or has no weights here."""
    name = section.lent_policy
    if name is None:
        return section
    policy, where = config.policies.get(name), f"environments: model='policy:{name}'"
    if policy is None:
        policy_names = ", ".join(config.policies) or "none"
        raise ConfigError(f"{where}: policy {name!r} does not exist (policies: {policy_names})")
    if policy.trainable:
        raise ConfigError(
            f"{where}: this policy is trained, and environments are not; set "
            f"policies.{name}.trainable: false"
        )
    if policy.endpoint is not None:
        raise ConfigError(f"{where}: this policy is behind an API and cannot be an environment")
    live, tokenizer = parts.models.get(name, (None, None))
    arguments = {"model": policy.model or config.model.model_name_or_path if live is None else live}
    if live is None:
        default_tokenizer = None if policy.model else config.model.tokenizer_name_or_path
        tokenizer = policy.tokenizer or default_tokenizer
    if tokenizer is not None:
        arguments["tokenizer"] = tokenizer
    return EnvironmentConfig(**(section.model_dump(exclude_unset=True) | arguments))


def environment_factory(section: EnvironmentConfig) -> Any:
    """The environment of a section, ready to be spawned."""
    if section.remote:
        return _remote(section)
    plugin = registry.load("environments", section.env_type)
    env = plugin(**section.constructor_arguments(plugin))
    template = as_environment(env)
    if not template.name:
        template.name = section.env_type.rsplit(":", 1)[-1].lower()
    return template


def _remote(section: EnvironmentConfig) -> Environment:
    """The same environment on an environment server."""
    from mrlm.serving.client.environment import RemoteEnvironment

    return RemoteEnvironment(
        section.env_type,
        server=section.server_address,
        **{key: getattr(section, key) for key in REMOTE if key != "server_address"},
        # the server reports its reason before the cut-off here
        deadline=0.95 * (section.timeout or 60.0),
        arguments=section.remote_arguments,
    )


def _template(env: Any) -> tuple[Environment, Any]:
    """An instance whose settings are read, and a factory of fresh ones: by copying it, or by
    calling the class or function again."""
    template = as_environment(env)
    if isinstance(env, Environment | SimulatedEnvironment | LLMEnvironment):
        return template, template.spawn
    return template, lambda: as_environment(env)


def _with_turns(
    template: Environment, make: Callable[[], Environment], workflow: Workflow
) -> tuple[Environment, Callable[[], Environment], Workflow]:
    """Environment and workflow; turns and the prompts between them are left to the environment
    where it has no rules of its own for them."""
    settings = workflow.turn_settings()
    adapted = template.with_turns(settings)
    if adapted is None:
        return template, make, workflow

    def made() -> Environment:
        environment = make()
        return environment.with_turns(settings) or environment

    theirs = {name: usual for name, usual in TURN_SETTINGS.items() if name != "max_turns"}
    if any(settings[name] != usual for name, usual in theirs.items()):
        workflow = workflow.with_turn_settings(theirs)
    return adapted, made, workflow


def _workflow(
    config: ExperimentConfig, parts: LiveObjects, template: Environment, section: EnvironmentConfig
) -> Workflow:
    transition = parts.external_transition
    if template.workflow is not None:
        if parts.workflow is not None or config.workflow != WorkflowConfig():
            raise ConfigError(
                f"environment {section.env_type!r} brings its own workflow; remove workflow"
            )
        return as_workflow(registry.load("workflows", template.workflow))
    if parts.workflow is not None:
        return _with_transition(parts.workflow, transition, "the workflow")
    plugin = registry.load("workflows", config.workflow.name)
    arguments = config.workflow.constructor_arguments(plugin)
    if inspect.isclass(plugin):
        accepts = inspect.signature(plugin).parameters
        counts = template.counts_turns  # the environment derives its steps from it
        if section.max_turns is not None and "max_turns" in accepts and not counts:
            arguments.setdefault("max_turns", section.max_turns)
    workflow = as_workflow(plugin, arguments)
    return _with_transition(workflow, transition, f"workflow.name={config.workflow.name!r}")


def _with_transition(workflow: Workflow, transition: object, name: str) -> Workflow:
    """The workflow with the given external transition, refused where it takes none."""
    if transition is None:
        return workflow
    if not workflow.spec.transitions:
        raise ConfigError(
            f"external_transition: {name} does not call it; use the workflow turns, tree or "
            "self_play, or give it to the environment reward"
        )
    return workflow.with_turn_settings({"external_transition": transition})
