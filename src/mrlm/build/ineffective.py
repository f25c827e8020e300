"""Checks that every setting has an effect on its run. The conditions are declared beside the
fields, as `matters`; the facts of a run that they read are gathered here."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from mrlm.build.engines import check_engine
from mrlm.build.policies import LiveObjects
from mrlm.build.run_plan import RunPlan
from mrlm.config import EnvironmentConfig, ExperimentConfig, normalize
from mrlm.config.base import Section
from mrlm.config.errors import InvalidConfig, Problem
from mrlm.config.plugins import accepted
from mrlm.core import registry
from mrlm.core.matters import RunFacts, conditions, judged
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import Workflow, as_workflow

Verdicts = Mapping[str, str | None]
"""Dotted path of a setting -> why it has no effect; `None`: it has one."""


def refuse_idle(*stages: Verdicts) -> None:
    """Refuses settings that have no effect in any stage for which they are set."""
    reasons: dict[str, str | None] = {}
    for path, why in (item for stage in stages for item in stage.items()):
        if why is None or path not in reasons:
            reasons[path] = why
    idle = {path: f"changes nothing because {why}" for path, why in reasons.items() if why}
    if idle:
        raise InvalidConfig([Problem(path, text) for path, text in idle.items()])


def verdicts(plan: RunPlan) -> Verdicts:
    """The settings of a run, each with the reason why it has no effect there, if any."""
    config, algorithm, facts = plan.config, plan.algorithm, facts_of(plan)
    key = normalize.section_key(config.training.algorithm)
    reasons = _placed(key, judged(algorithm, normalize.changed_fields(algorithm), facts))
    for path, section in _sections(config):
        reasons |= _placed(path, judged(section, _changed(section), facts))
    reasons |= _placed("workflow", _of_workflow(config, facts, plan.parts))
    for index, section in enumerate(config.environments):
        if not section.remote:
            reasons |= _placed(f"environments.{index}", _of_environment(config, section, facts))
    return reasons


def facts_of(plan: RunPlan) -> RunFacts:
    """The facts of a run that conditions on settings read."""
    config, spec, assignment = plan.config, plan.spec, plan.assignment
    trained, usual = plan.trained_environments, config.generation
    sampling = [usual.sampling(**section.generation) for section in config.agents.values()]
    here = {name: policy for name, policy in assignment.policies.items() if policy.endpoint is None}
    models = {name: model for name, (model, _) in plan.parts.models.items()}
    live = {name for name, model in models.items() if model and not isinstance(model, str)}
    return RunFacts(
        rows=plan.rows is not None,
        agents=len(assignment.policy_of),
        turns=1 if trained and all(_one_turn(env) for env in trained) else None,
        lags=config.training.max_lag > 0,
        truncates=any(policy.truncates for policy in [usual.sampling(), *sampling]),
        values="values" in spec.columns or spec.scalar_head or spec.critic.of_team,
        policies=here,
        loaded=[name for name in here if name not in live],
        limits=tuple(env.template.max_turns for env in trained) or (None,),
        engine=check_engine(config)[1],
        config=config,
    )


def _one_turn(env: EnvironmentSpec) -> bool:
    """Whether every episode has one joint step with at most one action per agent."""
    workflow = env.workflow
    limited = 1 in (workflow.max_turns, env.template.max_turns)
    return workflow.spec.one_step or (workflow.spec.speaks_once and limited)


# -- settings by place -----------------------------------------------------------------------------


def _placed(path: str, verdicts: Verdicts) -> dict[str, str | None]:
    return {f"{path}.{name}": why for name, why in verdicts.items()}


def _sections(value: Any, path: str = "") -> Iterator[tuple[str, Section]]:
    """Every section inside a value, with its dotted path."""
    if isinstance(value, Section):
        if path:
            yield path, value
        names = [name for name in type(value).model_fields if name in value.model_fields_set]
        inside: list[tuple[str, Any]] = [(name, getattr(value, name)) for name in names]
    elif isinstance(value, Mapping):
        inside = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        inside = [(str(index), item) for index, item in enumerate(value)]
    else:
        return
    for name, item in inside:
        yield from _sections(item, f"{path}.{name}" if path else name)


def _changed(section: Section) -> list[str]:
    """Fields of a section that differ from their defaults."""
    fields = type(section).model_fields
    return [
        name
        for name in section.model_fields_set
        if name in fields
        and not fields[name].is_required()
        and getattr(section, name) != fields[name].get_default(call_default_factory=True)  # pyright: ignore[reportCallIssue]
    ]


def _of_workflow(config: ExperimentConfig, facts: RunFacts, parts: LiveObjects) -> Verdicts:
    """Settings of the workflow, and the workflow itself in a run without rollouts."""
    names = list(config.workflow.parameters)
    named = names + ["name"] * (config.workflow.name != "turns")
    extra = ["external_transition"] * (parts.external_transition is not None)
    if facts.rows and not config.environments and not parts.eval_environments:
        why = "this run trains on a data set and samples no episodes; remove it"
        return dict.fromkeys([*named, *extra], why)
    if parts.workflow is not None:
        why = "the workflow was given as an object; remove it, and set the argument of the object"
        return {**dict.fromkeys(named, why), **_of_instance(parts.workflow, facts, parts)}
    plugin = registry.load("workflows", config.workflow.name)
    if not inspect.isclass(plugin):
        return {}
    made = as_workflow(plugin, config.workflow.constructor_arguments(plugin))
    return _of_instance(made, facts, parts)


def _of_instance(workflow: Workflow, facts: RunFacts, parts: LiveObjects) -> Verdicts:
    if parts.external_transition is not None and workflow.spec.transitions:
        argument = {"external_transition": parts.external_transition}
        workflow = workflow.with_turn_settings(argument)
    if not dataclasses.is_dataclass(workflow):
        return {}
    changed = [
        field.name
        for field in dataclasses.fields(workflow)
        if field.default is not dataclasses.MISSING
        and getattr(workflow, field.name) != field.default
    ]
    return judged(workflow, changed, facts)


def _of_environment(
    config: ExperimentConfig, section: EnvironmentConfig, facts: RunFacts
) -> Verdicts:
    """Arguments of an environment's constructor, and its `max_turns`."""
    plugin = registry.load("environments", section.env_type)
    turns = _of_turns(config, section, plugin)
    named, _ = accepted(plugin)
    usual = {name: parameter.default for name, parameter in named.items()}
    changed = [name for name, value in section.parameters.items() if usual.get(name) != value]
    settings = SimpleNamespace(**{**usual, **section.parameters})
    rules = conditions(plugin) if inspect.isclass(plugin) else {}
    return turns | judged(settings, changed, facts, rules)


def _of_turns(
    config: ExperimentConfig, section: EnvironmentConfig, plugin: Any
) -> dict[str, str | None]:
    """`max_turns` of an environment, where neither it nor the workflow takes it."""
    limit, workflow = section.max_turns, config.workflow
    if limit is None:
        return {}
    played = registry.load("workflows", workflow.name)
    one_step = isinstance(played, type) and issubclass(played, Workflow) and played.spec.one_step
    if limit > 1 and one_step:
        return {"max_turns": f"workflow.name={workflow.name} ends after one turn; remove it"}
    named, open_ended = accepted(plugin)
    workflow_turns = workflow.parameters.get("max_turns")
    takes = open_ended or {"max_turns", "max_attempts"} & named.keys()
    if takes or workflow_turns in (None, limit):
        return {}
    return {"max_turns": f"workflow.max_turns={workflow_turns} takes precedence; keep one of them"}
