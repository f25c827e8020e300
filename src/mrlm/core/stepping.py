"""A uniform way for user code to step environments: `reset(seed)`, then `step(message)` with one
agent or `step({agent: message})` with several, awaited inside a running event loop and synchronous
outside of one."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import in_background, is_by_hand
from mrlm.core.types import Message, StepResult


def is_async(method: Any) -> bool:
    """Whether a method of an environment is a coroutine function."""
    return _known_async(method.__func__) if isinstance(method, MethodType) else _is_async(method)


def _is_async(method: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(method))


_known_async = functools.lru_cache(maxsize=1024)(_is_async)
"""The same for functions of classes, which are asked about at every step of every episode."""


def is_pending(answer: Any) -> bool:
    """Whether the result of a method of an environment has to be awaited."""
    return not isinstance(answer, StepResult) and inspect.isawaitable(answer)


def by_hand(kind: type) -> None:
    """Wrap the `reset` and `step` of an environment class to accept a user's arguments, and to
    return a result even if they are coroutines and no event loop is running."""
    for name, forms in (("reset", _reset_arguments), ("step", _step_arguments)):
        method = vars(kind).get(name)
        if inspect.isfunction(method):
            setattr(kind, name, _wrapped(method, forms))


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call, by position and by name."""


def _wrapped(method: Callable[..., Any], forms: Callable[..., Call]) -> Any:
    takes_task = "task" in inspect.signature(method).parameters

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if takes_task or forms is _step_arguments:
            arguments, named = forms(self, arguments, named)
        answer = method(self, *arguments, **named)
        if inspect.iscoroutine(answer) and is_by_hand():
            return in_background(answer)
        return answer

    return call


def _reset_arguments(environment: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """The arguments of `reset`, where `reset(7)` and `reset(seed=7)` select the task of seed 7."""
    if len(arguments) == 1 and isinstance(arguments[0], int) and "seed" not in named:
        return (environment.task(arguments[0]), arguments[0]), named
    if not arguments and named.get("task") is None and isinstance(named.get("seed"), int):
        return (), {**named, "task": environment.task(named["seed"])}
    return arguments, named


def _step_arguments(environment: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """The arguments of `step`, where `step(message)` is the message of the only agent, or of the
    one it names."""
    action = arguments[0] if arguments else named.get("actions")
    if isinstance(action, Mapping) or action is None:
        return arguments, named
    agents: tuple[str, ...] = tuple(environment.agents)
    if not isinstance(action, Message):
        raise ConfigError(
            f"{type(environment).__name__}.step takes a Message or a dict agent -> Message, not "
            f"{type(action).__name__}: step(Message('text'))"
        )
    if action.agent not in agents and len(agents) > 1:
        raise ConfigError(
            f"{type(environment).__name__} has the agents {', '.join(agents)}; give "
            "step({agent: message}), or name the agent in the message: Message(text, agent=...)"
        )
    agent = action.agent if action.agent in agents else next(iter(agents))
    return ({agent: action}, *arguments[1:]), {k: v for k, v in named.items() if k != "actions"}
