"""`check_workflow`: a test of a workflow without a model, before a run."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrlm.core import registry
from mrlm.core.environment import Environment, SimulatedEnvironment, as_environment
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, SamplingParams
from mrlm.play.agent import AgentSettings
from mrlm.play.failure_log import AllFailedError
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import AnyWorkflow, FunctionWorkflow, Workflow, as_workflow, not_a_workflow

Answers = str | Mapping[str, str] | Callable[[str, Sequence[Message]], str]


def check_workflow(
    workflow: AnyWorkflow | str,
    environment: object,
    agents: Sequence[str] | None = None,
    answers: Answers = "yes",
    seed: int = 0,
) -> None:
    """Play one task with fixed answers and check the contract of the workflow: it can be awaited,
    an agent speaks, the environment is stepped, and two plays with one seed are identical. No model
    is loaded.

    Args:
        workflow: a coroutine function `(task, agents, env)`, an instance or class with such a
            `__call__`, or a workflow's name.
        environment: its environment, in any form that a trainer accepts.
        agents: names of the agents; by default those of the workflow, else of the environment.
        answers: the answer of every agent, or a mapping from agent to answer, or a function
            `(agent, messages) -> str`.
        seed: seed of the task.

    Raises:
        ConfigError: the problem and its place (a non-finite reward, too); an exception of the
            workflow or the environment is the cause.

    Examples:
        check_workflow(two_drafts, Spell, agents=("editor", "writer"))
    """
    checked = _awaitable(workflow)
    title = checked.label
    how = checked, environment, agents, answers, seed
    (first, steps), (second, _) = _played(*how), _played(*how)
    if not steps:
        raise ConfigError(
            f"workflow {title!r} ended without a step of the environment, so no agent gets a "
            "reward: end with `await env.finish({agent: message})`, or `await env.step(...)`"
        )
    if _transcript(first) != _transcript(second):
        raise ConfigError(
            f"workflow {title!r}: two plays with seed {seed} differ; everything must follow from "
            "the task, so draw random numbers from random.Random(task.seed)"
        )


def _awaitable(value: AnyWorkflow | str) -> Workflow:
    """Convert the workflow, and refuse anything but a coroutine function."""
    workflow = as_workflow(registry.load("workflows", value) if isinstance(value, str) else value)
    called = workflow.function if isinstance(workflow, FunctionWorkflow) else workflow
    if not (inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(called.__call__)):
        raise not_a_workflow(value)
    return workflow


def _played(
    workflow: Workflow,
    environment: object,
    agents: Sequence[str] | None,
    answers: Answers,
    seed: int,
) -> tuple[Episode, int]:
    """One episode with fixed answers, and the number of steps of its environment."""
    template = as_environment(environment)
    live = isinstance(environment, Environment | SimulatedEnvironment)
    fresh = template.spawn if live else lambda: as_environment(environment)
    steps: list[None] = []

    def make() -> Environment:
        made = fresh()

        class Counted(type(made)):  # also of the copies that a workflow makes
            def step(self, actions: dict[str, Message]) -> Any:
                steps.append(None)
                return super().step(actions)

        Counted.__name__ = Counted.__qualname__ = type(made).__name__
        made.__class__ = Counted
        return made

    name = template.name or type(template).__name__
    env = EnvironmentSpec(name, template, make, workflow)
    names = tuple(agents or env.agents)
    alone = None, SamplingParams(max_new_tokens=1), 0
    settings_of = {who: AgentSettings(who, who, *alone, trained=False) for who in names}

    def ask(agent: str, messages: Sequence[Message]) -> str:
        if callable(answers):
            return answers(agent, messages)
        return answers if isinstance(answers, str) else answers[agent]

    play = Play([env], settings_of, {}, 1, seed, persons=dict.fromkeys(names, ask))
    try:
        (group,) = run_async(play.take(1))
    except AllFailedError as error:
        raise ConfigError(str(error.episodes[0].error)) from error.__cause__
    return group.episodes[0], len(steps)


def _transcript(episode: Episode) -> list[tuple[str, float, list[str]]]:
    """The messages, rewards and prompts of an episode."""
    rollouts = episode.rollouts.items()
    return [(agent, x.reward, [m.content for m in x.messages]) for agent, x in rollouts]
