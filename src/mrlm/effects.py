"""Whether everything that was set changes something in the run it is set for. What decides it
stands beside the fields, as `matters`; what a run is, is found out here."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mrlm.casting import Cast, Parts
from mrlm.config import ExperimentConfig, normal
from mrlm.config.base import Section
from mrlm.config.plugins import accepted
from mrlm.config.problems import InvalidConfig, Problem
from mrlm.core import registry
from mrlm.core.matters import RunFacts, conditions, without_effect
from mrlm.learn.algorithm import Algorithm
from mrlm.play.deck import WorldSpec
from mrlm.samplers import check_engine

ONE_TURN = ("single_turn", "cross")
"""Workflows that end every episode after one joint step."""


@dataclass(frozen=True, slots=True)
class Given:
    """What was set for a run, and what of it changes nothing there.

    Args:
        paths: dotted paths of what differs from its default.
        idle: path -> why it has no effect.
    """

    paths: frozenset[str]
    idle: Mapping[str, str]


def refuse_idle(stages: Sequence[Given]) -> None:
    """Refuse settings that change nothing in any stage for which they are set.

    Raises:
        ConfigError: one line per setting, with the reason.
    """
    problems: dict[str, str] = {}
    for stage in stages:
        for path, why in stage.idle.items():
            if all(path in other.idle for other in stages if path in other.paths):
                problems[path] = f"it changes nothing in this run: {why}"
    if problems:
        raise InvalidConfig([Problem(path, text) for path, text in problems.items()])


def given_of(
    config: ExperimentConfig,
    parts: Parts,
    worlds: Sequence[WorldSpec],
    rows: bool,
    cast: Cast,
) -> Given:
    """What was set for a run, of which `plan_of` says what is played and who plays."""
    settings = config.algorithm_settings()
    facts = facts_of(config, parts, settings, worlds, rows, cast)
    key = normal.section_key(config.training.algorithm)
    changed = normal.changed_fields(settings)
    idle = {f"{key}.{n}": why for n, why in without_effect(settings, changed, facts).items()}
    paths = {f"{key}.{name}" for name in changed}
    for path, section in _sections(config):
        given = _changed(section)
        paths |= {f"{path}.{name}" for name in given}
        for name, why in without_effect(section, given, facts).items():
            idle[f"{path}.{name}"] = why
    for name, why in _of_workflow(config, facts, parts):
        idle[f"workflow.{name}"] = why
    for index, section in enumerate(config.environments):
        for name, why in _of_environment(config, section, facts):
            idle[f"environments.{index}.{name}"] = why
    paths |= {f"workflow.{name}" for name in config.workflow.parameters}
    return Given(frozenset(paths | idle.keys()), idle)


def facts_of(
    config: ExperimentConfig,
    parts: Parts,
    algorithm: Algorithm,
    worlds: Sequence[WorldSpec],
    rows: bool,
    cast: Cast,
) -> RunFacts:
    """What the settings of a run may depend on."""
    trained = [world for world in worlds if world.trained]
    sampling = [
        config.generation.sampling(**section.generation) for section in config.agents.values()
    ]
    here = {name: section for name, section in cast.policies.items() if section.endpoint is None}
    live = {name for name, (model, _) in parts.models.items() if model is not None}
    return RunFacts(
        rows=rows,
        agents=len(cast.policy_of),
        turns=1 if trained and all(_one_turn(world) for world in trained) else None,
        lags=config.training.max_lag > 0,
        truncates=any(each.truncates for each in [config.generation.sampling(), *sampling]),
        values="values" in algorithm.needs
        or algorithm.scalar_head
        or algorithm.topology in ("central", "mixed"),
        loads=any(not section.model and name not in live for name, section in here.items()),
        adapts=any(section.trainable and not section.lora for section in here.values()),
        limits=tuple(world.template.max_turns for world in trained) or (None,),
        engine=frozenset(check_engine(config)[1]),
        config=config,
    )


def _one_turn(world: WorldSpec) -> bool:
    """Whether every episode has one joint step, in which everybody speaks at most once."""
    if type(world.workflow).__module__.rsplit(".", 1)[-1] in ONE_TURN:
        return True
    if not hasattr(world.workflow, "termination_threshold"):  # no workflow over seats
        return False
    return 1 in (getattr(world.workflow, "max_turns", None), world.template.max_turns)


# -- where settings stand --------------------------------------------------------------------------


def _sections(value: Any, path: str = "") -> Iterator[tuple[str, Section]]:
    """Every section inside a value, with its dotted path."""
    if isinstance(value, Section):
        if path:
            yield path, value
        names = [name for name in type(value).model_fields if name in value.model_fields_set]
        inside: list[tuple[str, Any]] = [(name, getattr(value, name)) for name in names]
    elif isinstance(value, Mapping):
        inside = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list):
        inside = [(str(index), each) for index, each in enumerate(value)]
    else:
        return
    for name, each in inside:
        yield from _sections(each, f"{path}.{name}" if path else name)


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


def _of_workflow(
    config: ExperimentConfig, facts: RunFacts, parts: Parts
) -> Iterator[tuple[str, str]]:
    """Settings of the workflow, and the workflow itself where nothing is played."""
    live = parts.workflow
    given = list(config.workflow.parameters)
    if facts.rows and not config.environments and not parts.eval_worlds:
        named = ["name"] if config.workflow.name != "turns" else []
        extra = ["external_transition"] if parts.external_transition is not None else []
        for name in [*given, *named, *extra]:
            yield name, "this run learns from a data set and plays nothing; remove it"
        return
    if live is not None:
        for name in given:
            yield name, "the workflow was handed over as an object; set it there"
        if config.workflow.name != "turns":
            yield "name", "the workflow was handed over as an object; remove it"
    workflow: Any = live
    if live is None:
        plugin = registry.load("workflows", config.workflow.name)
        if not inspect.isclass(plugin):
            return
        workflow = plugin(**config.workflow.constructor_arguments(plugin))
    if not dataclasses.is_dataclass(workflow) or inspect.isclass(workflow):
        return
    if parts.external_transition is not None and hasattr(workflow, "external_transition"):
        workflow = dataclasses.replace(workflow, external_transition=parts.external_transition)  # pyright: ignore
    changed = [
        each.name
        for each in dataclasses.fields(workflow)
        if each.default is not dataclasses.MISSING and getattr(workflow, each.name) != each.default
    ]
    yield from without_effect(workflow, changed, facts).items()


def _of_environment(
    config: ExperimentConfig, section: Any, facts: RunFacts
) -> Iterator[tuple[str, str]]:
    if section.remote:
        return
    plugin = registry.load("environments", section.env_type)
    if section.max_turns is not None:
        yield from _turns_of(config, section, plugin)
    if inspect.isclass(plugin) and conditions(plugin):
        given = section.parameters
        named, _ = accepted(plugin)
        usual = {name: each.default for name, each in named.items()}
        changed = [name for name, value in given.items() if usual.get(name) != value]
        settings = SimpleNamespace(**{**usual, **given})
        table = {n: each for n, each in conditions(plugin).items() if n in changed}
        yield from without_effect(settings, changed, facts, table).items()


def _turns_of(config: ExperimentConfig, section: Any, plugin: Any) -> Iterator[tuple[str, str]]:
    """`max_turns` of an environment, where nothing takes it."""
    if section.max_turns > 1 and config.workflow.name in ONE_TURN:
        yield "max_turns", f"workflow.name={config.workflow.name} ends after one turn; remove it"
        return
    named, open_ended = accepted(plugin)
    if open_ended or {"max_turns", "max_attempts"} & named.keys():
        return
    own = config.workflow.parameters.get("max_turns")
    if own not in (None, section.max_turns):
        yield "max_turns", f"workflow.max_turns={own} counts more; keep one of them"
