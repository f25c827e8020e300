"""The workflow interface: plain async Python over named agents and an environment. It defines who
speaks and who sees what, independent of models and algorithms."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

from mrlm.core.environment import TURN_SETTINGS
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner

WorkflowFunction = Callable[[Task, Agents, EpisodeRunner], Awaitable[object]]
"""`async def my_workflow(task, agents, env)`."""


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """The capabilities of a workflow, read before any episode. Defaults are of a plain function.

    Args:
        branches: continuations of an episode after a joint step (`env.fork`); above 1 the episodes
            of a task form a tree.
        prunes: only one of several answers to a state is continued.
        opens: all episodes of a group share one reset, which the workflow opens (`env.open`).
        combines: every combination of the agents' answers is played (`env.joined`).
        repeats: a task is reset and played more than once in an episode.
        single_agent: several agents play environments with one agent.
        one_step: every episode is one joint step, in which every agent speaks at most once.
        speaks_once: an agent speaks at most once in a joint step.
        transitions: it calls an `external_transition` between two joint steps.
        turns: turns of an episode for estimates, if no setting changes them.
    """

    branches: int = 1
    prunes: bool = False
    opens: bool = False
    combines: bool = False
    repeats: bool = False
    single_agent: bool = False
    one_step: bool = False
    speaks_once: bool = False
    transitions: bool = False
    turns: int | None = None

    @property
    def forks(self) -> bool:
        """Whether several answers to one state are played."""
        return self.branches > 1


class Workflow(ABC):
    """Lets agents act and the environment answer, until `env.finish(...)` or the environment is
    done. Concurrent `act` calls are sampled in one batch.

    A subclass implements `__call__`; the other names have defaults that fit a plain function.
    Settings are the fields of a dataclass. `async def my_workflow(task, agents, env)` needs no
    class: `as_workflow` wraps it.
    """

    spec: WorkflowSpec = WorkflowSpec()
    """Its capabilities; an instance whose settings change them has its own."""
    agents: tuple[str, ...] = ()
    """Agents that the workflow names itself; empty: one for each agent of the environment."""
    max_turns: int | None = None
    """Joint steps after which an episode is truncated; `None`: the environment's own limit."""

    @abstractmethod
    def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> Awaitable[object]:
        """Play one episode, which `env` records; the return value is ignored."""

    @property
    def label(self) -> str:
        """Its name in error messages."""
        return type(self).__name__

    def completions(self, agents: int, turns: int) -> int | None:
        """Most model calls of an episode of `turns` turns; `None`: one per agent and turn."""
        return None

    def sequences(self, agents: int, turns: int) -> int | None:
        """Most training sequences of these calls; `None`: turns of an agent form one sequence."""
        return None

    def check_size(self, group_size: int, turns: int) -> None:
        """Refuse settings that give too many episodes of a task. Raises `ConfigError`: the setting,
        and a value that works."""
        return

    def turn_settings(self) -> Mapping[str, object]:
        """The settings of `TURN_SETTINGS`, for an environment without turn rules of its own."""
        return {**TURN_SETTINGS, "max_turns": self.max_turns}

    def with_turn_settings(self, settings: Mapping[str, object]) -> "Workflow":
        """A copy with other turn settings; only for a workflow with `spec.transitions`."""
        raise NotImplementedError(f"workflow {self.label} has no turn settings")


@dataclass(frozen=True)
class FunctionWorkflow(Workflow):
    """A plain function as a workflow, awaited once for every episode."""

    function: WorkflowFunction

    def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> Awaitable[object]:
        return self.function(task, agents, env)

    @property
    def label(self) -> str:
        return _name_of(self.function)


DECLARED = ("spec", "agents", "max_turns", "completions", "sequences", "check_size")
"""Attributes that count only if the class is a `Workflow`."""


AnyWorkflow = Workflow | WorkflowFunction | type[object]
"""The forms of a workflow that users pass: an instance, a plain function, or a class of either."""


def as_workflow(workflow: AnyWorkflow, settings: Mapping[str, object] | None = None) -> Workflow:
    """Convert a workflow that is given as an instance, a class or a plain function.

    Args:
        workflow: the workflow, or its class.
        settings: arguments of the class.

    Raises:
        ConfigError: it is not callable, or its class declares what only a `Workflow` may declare.
    """
    made = workflow(**(settings or {})) if inspect.isclass(workflow) else workflow
    if isinstance(made, Workflow):
        return made
    if not callable(made):
        raise not_a_workflow(workflow)
    ignored = [name for name in DECLARED if not inspect.isfunction(made) and hasattr(made, name)]
    if ignored:
        raise ConfigError(
            f"workflow {_name_of(made)!r}: {', '.join(ignored)} would be ignored, because its "
            f"class is not a Workflow; write `class {type(made).__name__}(mrlm.Workflow)`"
        )
    return FunctionWorkflow(cast("WorkflowFunction", made))


def not_a_workflow(value: object) -> ConfigError:
    """The error for an object that cannot be awaited with `(task, agents, env)`."""
    form = "`async def my_workflow(task, agents, env)`"
    return ConfigError(f"{value!r} is not a workflow: write {form}")


def _name_of(function: object) -> str:
    return function.__name__ if inspect.isfunction(function) else type(function).__name__


def silent(workflow: Workflow, env: EpisodeRunner) -> EpisodeError:
    """The error of an episode in which no agent spoke."""
    if env.result.done:
        return EpisodeError(
            f"environment {env.episode.environment!r} is done after its reset, so no agent could "
            "speak; its first StepResult (or Observation) must have done=False"
        )
    return EpisodeError(
        f"workflow {workflow.label!r} ended and no agent had spoken, so there is nothing to train "
        "on; write `message = await agents.NAME.act(messages)` for at least one agent of "
        f"{', '.join(env.agents)}"
    )
