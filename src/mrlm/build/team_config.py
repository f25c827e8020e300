"""The config of a team by itself: who plays with which policy, in what; nothing of its training."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mrlm.build.policies import PlayPlan, origin_of
from mrlm.build.quantization import section_of
from mrlm.config import normalize
from mrlm.config.comparison import plain
from mrlm.core.registry import source_of
from mrlm.play.workflow import FunctionWorkflow, Workflow

SECTIONS = ("environments", "workflow", "generation")
"""Sections that a team keeps as they were given."""
MODEL = (
    *("torch_dtype", "quantization", "trust_remote_code", "attn_implementation", "lean"),
    "chat_template_kwargs",
)
"""Settings of `model` that do not name one."""


def team_config(plan: PlayPlan) -> dict[str, Any]:
    """The sections of a config that play the team of a plan, as plain data: its agents with their
    policies and prompts, its workflow and its environments. All policies are frozen; those with
    weights name the model they begin with. Environments given as objects are left out."""
    config, set_values = plan.config, normalize.as_mappings(plan.config.given())
    if kind := section_of(plan).quantization:
        set_values.setdefault("model", {})["quantization"] = kind
    training: dict[str, Any] = {"seed": config.training.seed}
    if ":" not in config.training.algorithm:
        training["algorithm"] = config.training.algorithm
    held_out = set_values.get("evaluation", {}).get("environments")
    sections: dict[str, Any] = {
        "experiment_name": config.experiment_name,
        "training": training,
        "model": {key: value for key, value in set_values.get("model", {}).items() if key in MODEL},
        "policies": {name: _policy(plan, name) for name in _named(plan)},
        "agents": {
            agent: _agent(plan, agent) | _formatter(plan, agent)
            for agent in plan.assignment.policy_of
        },
        **{key: set_values[key] for key in SECTIONS if key in set_values},
        **({"evaluation": {"environments": held_out}} if held_out else {}),
    }
    if plan.parts.workflow is not None:
        sections["workflow"] = workflow_section(plan.parts.workflow)
    return plain(sections)


def _named(plan: PlayPlan) -> list[str]:
    """The policies of agents, and those that environments use as models."""
    lent = (environment.lent_policy for environment in plan.config.environments)
    names = [*plan.assignment.policies, *(name for name in lent if name in plan.config.policies)]
    return list(dict.fromkeys(names))


def _policy(plan: PlayPlan, name: str) -> dict[str, Any]:
    if name not in plan.assignment.policies:
        section = plan.config.policies[name]
        path = section.model or plan.config.model.model_name_or_path
        return {"trainable": False, "model": path}
    section = plan.assignment.policies[name]
    if section.endpoint is not None:
        return normalize.as_mappings(section)
    live, path, _, source = origin_of(plan, name)
    path = str(getattr(live, "name_or_path", "")) if live is not None else path
    tokenizer = {} if source in (path, "") else {"tokenizer": source}
    return {"trainable": False, "model": path, **tokenizer}


def _agent(plan: PlayPlan, agent: str) -> dict[str, Any]:
    section = plan.agent(agent)
    settings: dict[str, Any] = {"policy": plan.assignment.policy_of[agent]}
    if section.system_prompt is not None:
        settings["system_prompt"] = section.system_prompt
    if section.generation:
        settings["generation"] = dict(section.generation)
    return settings


def _formatter(plan: PlayPlan, agent: str) -> dict[str, str]:
    """The formatter of an agent: its template, or the name of a function. An environment of one
    agent has one for all."""
    for env in plan.environments:
        inside: Any = env.template
        while inside is not None and not hasattr(inside, "formatters"):  # a wrapper
            inside = getattr(inside, "environment", None)
        formatters: Mapping[str, Any] = getattr(inside, "formatters", None) or {}
        only = next(iter(formatters.values())) if len(formatters) == 1 else None
        formatter = formatters.get(agent, only)
        if formatter is None:
            continue
        if not isinstance(formatter, str):
            formatter = getattr(formatter, "__qualname__", repr(formatter))
        elif not (":" in formatter and "{" not in formatter):
            return {"formatter": formatter}
        return {"formatter_function": formatter.replace(":", ".")}
    return {}


def workflow_section(workflow: Workflow) -> dict[str, Any]:
    """The section of a workflow given as an object: its class, and the fields that were set."""
    if isinstance(workflow, FunctionWorkflow):
        return {"name": source_of(workflow.function)}
    fields = dataclasses.fields(workflow) if dataclasses.is_dataclass(workflow) else ()
    changed = [x.name for x in fields if x.init and getattr(workflow, x.name) != x.default]
    return {"name": source_of(workflow)} | {name: getattr(workflow, name) for name in changed}
