"""How often models are asked in a play, and into how many sequences what they say falls: what a
workflow knows of itself, read without playing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mrlm.config import ExperimentConfig
from mrlm.core import registry


@dataclass(slots=True)
class Played:
    """The plays of a task.

    Args:
        turns: most joint steps of an episode.
        calls: completions of an episode at most, where the workflow says so.
        sequences: sequences these fall into, where the workflow says so; else each agent's turns
            continue one another.
        branches: ways every episode goes on after each joint step.
        prunes: whether only one of several answers to a state is followed up.
        notes: what was assumed.
    """

    turns: int = 1
    calls: int | None = None
    sequences: int | None = None
    branches: int = 1
    prunes: bool = False
    notes: list[str] = field(default_factory=list)


def played(config: ExperimentConfig, rows: bool, agents: int, max_turns: int | None) -> Played:
    """What a config says of its plays.

    Args:
        config: one stage of an experiment.
        rows: whether it learns from a data set, and nothing is played.
        agents: how many speak.
        max_turns: most turns of an episode, where the worlds say so and the config does not.
    """
    if rows:
        return Played()
    plugin = registry.load("workflows", config.workflow.name)
    found = Played()
    _count_turns(found, config, plugin, max_turns)
    _count_calls(found, config, plugin, agents)
    given = config.workflow.parameters
    branches = given.get("branches", getattr(plugin, "branches", 1))
    if getattr(plugin, "forks", False) and isinstance(branches, int):
        found.branches = branches
        found.prunes = given.get("select", getattr(plugin, "select", "all")) == "best"
    return found


def _count_turns(
    found: Played, config: ExperimentConfig, plugin: Any, max_turns: int | None
) -> None:
    asked = config.workflow.parameters.get("max_turns")
    fixed = getattr(plugin, "turns", None)
    known = [section.max_turns for section in config.environments if section.max_turns]
    if isinstance(asked, int):
        found.turns = asked
    elif isinstance(fixed, int):
        found.turns = fixed
    elif known:
        found.turns = max(known)
    elif max_turns is not None:
        found.turns = max_turns
    else:
        found.notes.append("one turn per episode is assumed: no max_turns is set")


def _count_calls(found: Played, config: ExperimentConfig, plugin: Any, agents: int) -> None:
    name = config.workflow.name
    if hasattr(plugin, "completions"):
        made = plugin(**config.workflow.constructor_arguments(plugin))
        found.calls = made.completions(agents, found.turns)
        if hasattr(plugin, "sequences"):
            found.sequences = made.sequences(agents, found.turns)
    elif ":" in name:
        found.notes.append(
            f"completions: workflow {name} does not say how often it asks models (a method "
            "completions(agents, turns)); once per agent and turn is assumed, and it may be more"
        )
