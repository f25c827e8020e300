"""Numbers of model calls and training sequences of an episode, from the declarations of its
workflow, without playing."""

from __future__ import annotations

from dataclasses import dataclass, field

from mrlm.config import ExperimentConfig
from mrlm.core import registry
from mrlm.play.workflow import Workflow, as_workflow


@dataclass(slots=True)
class Played:
    """Counts for the episodes of a task.

    Args:
        turns: most joint steps of an episode.
        calls: most completions of an episode, if the workflow declares them.
        sequences: most training sequences of them, if the workflow declares them; else each agent's
            turns form one.
        branches: continuations of every episode after each joint step.
        prunes: whether only one of several answers to a state is continued.
        notes: assumptions.
    """

    turns: int = 1
    calls: int | None = None
    sequences: int | None = None
    branches: int = 1
    prunes: bool = False
    notes: list[str] = field(default_factory=list)


def played(config: ExperimentConfig, rows: bool, agents: int, max_turns: int | None) -> Played:
    """The counts that follow from a config.

    Args:
        config: one stage of an experiment.
        rows: whether it trains on a data set, without episodes.
        agents: number of agents.
        max_turns: most turns of an episode, if the environments declare it and the config does not.
    """
    if rows:
        return Played()
    plugin = registry.load("workflows", config.workflow.name)
    workflow = as_workflow(plugin, config.workflow.constructor_arguments(plugin))
    found = Played(branches=workflow.spec.branches, prunes=workflow.spec.prunes)
    _count_turns(found, config, workflow, max_turns)
    _count_calls(found, config, workflow, agents)
    return found


def _count_turns(
    found: Played, config: ExperimentConfig, workflow: Workflow, max_turns: int | None
) -> None:
    asked = config.workflow.parameters.get("max_turns")
    known = [section.max_turns for section in config.environments if section.max_turns]
    if isinstance(asked, int):
        found.turns = asked
    elif workflow.spec.turns is not None:
        found.turns = workflow.spec.turns
    elif known:
        found.turns = max(known)
    elif max_turns is not None:
        found.turns = max_turns
    else:
        found.notes.append("one turn per episode is assumed: no max_turns is set")


def _count_calls(found: Played, config: ExperimentConfig, workflow: Workflow, agents: int) -> None:
    name = config.workflow.name
    found.calls = workflow.completions(agents, found.turns)
    found.sequences = workflow.sequences(agents, found.turns)
    if found.calls is None and ":" in name:
        found.notes.append(
            f"completions: workflow {name} does not declare its model calls (a method "
            "completions(agents, turns)); once per agent and turn is assumed; it may be more"
        )
