"""The prompts between two turns, written by a user's function: the `external_transition` of CoMLRL.
Independent of its callers."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mrlm.core import registry
from mrlm.core.environment import TURN_SETTINGS, accepted_parameters
from mrlm.core.errors import ConfigError
from mrlm.core.matters import check_choices
from mrlm.core.sync_async import in_thread
from mrlm.core.types import Message, Observation

ARGUMENTS = (
    *("prompt", "agent_completions", "num_agents"),
    *("prompt_history_per_agent", "response_history_per_agent"),
)
"""The arguments of the function, in order; the names are those of CoMLRL 1.4.3."""

Mode = Literal["replace", "append"]
"""`replace`: the returned text is the agent's whole next prompt. `append`: it is added to the
agent's conversation, after its own answer."""


class Transition:
    """An `external_transition`, called by keyword if its parameters have the names of `ARGUMENTS`,
    and by position otherwise. The histories are optional parameters. It may be a coroutine
    function. Copies of an environment share it.

    Args:
        function: the function, or its name as `module:function`.

    Raises:
        ConfigError: it is not callable, or does not accept these arguments.
    """

    def __init__(self, function: Callable[..., Any] | str) -> None:
        self.where: str = "external_transition"
        if isinstance(function, Transition):
            function = function.function
        if isinstance(function, str) and ":" in function:
            self.where += f" {function}"
            function = registry.load("workflows", function)
        if not callable(function):
            raise ConfigError(
                f"{self.where}: expected a function or 'module:function', not {function!r}"
            )
        self.function: Callable[..., Any] = function
        self._by_name, self._count = _calling_form(function, self.where)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transition) and other.function == self.function

    def __deepcopy__(self, memo: dict[int, Any]) -> "Transition":
        return self

    async def __call__(self, dialogue: "Dialogue", prompt: str, task: str) -> dict[str, Any]:
        """The prompts of the next turn: agent -> text or messages.

        Args:
            dialogue: all prompts and answers so far.
            prompt: the task's text.
            task: id of the task, for errors.

        Raises:
            ConfigError: the function raised an error, or did not return one prompt per agent.
        """
        agents = dialogue.agents
        prompt_lists, answer_lists = copy.deepcopy((dialogue.prompts, dialogue.answers))
        last = [texts[-1] if texts else "" for texts in answer_lists.values()]
        histories = list(prompt_lists.values()), list(answer_lists.values())
        arguments = zip(ARGUMENTS, (prompt, last, len(agents), *histories), strict=True)
        try:
            result = await self._called(dict(arguments))
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(f"{self.where}, task {task!r}: it raised {error!r}") from error
        listed = isinstance(result, Sequence) and not isinstance(result, str)
        if not listed or len(result) != len(agents):
            raise ConfigError(
                f"{self.where}, task {task!r}: it returned {result!r}; return a list with one "
                f"prompt for each of {', '.join(agents)}"
            )
        return dict(zip(agents, result, strict=True))

    async def _called(self, arguments: Mapping[str, Any]) -> Any:
        named = {name: arguments[name] for name in self._by_name}
        listed = () if named else tuple(arguments.values())[: self._count]
        if inspect.iscoroutinefunction(self.function):
            return await self.function(*listed, **named)
        result = await in_thread(lambda: self.function(*listed, **named))
        return await result if inspect.isawaitable(result) else result


def _calling_form(function: Callable[..., Any], where: str) -> tuple[tuple[str, ...], int]:
    """The arguments that are passed by keyword, or else the number that is passed by position."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of C have no signature
        return (), len(ARGUMENTS)

    def binds(*listed: str, **named: str) -> bool:
        try:
            signature.bind(*listed, **named)
        except TypeError:
            return False
        return True

    accepted = accepted_parameters(function, ARGUMENTS)
    by_name = tuple(name for name in ARGUMENTS if name in accepted)
    if by_name and binds(**dict.fromkeys(by_name, "")):
        return by_name, 0
    for count in range(len(ARGUMENTS), 0, -1):
        if binds(*ARGUMENTS[:count]):
            return (), count
    raise ConfigError(
        f"{where}: it is called with {', '.join(ARGUMENTS)}, by these names or in this order, "
        f"and its parameters are ({', '.join(signature.parameters)})"
    )


class Dialogue:
    """The prompts and answers of every agent of one episode, as texts; the agents are in the order
    of the function's arguments."""

    def __init__(self, agents: Sequence[str]) -> None:
        self.agents: tuple[str, ...] = tuple(agents)
        self.prompts: dict[str, list[str]] = {name: [] for name in agents}
        self.answers: dict[str, list[str]] = {name: [] for name in agents}

    def show(self, agent: str, messages: Sequence[Message]) -> None:
        self.prompts[agent].append("\n".join(message.content for message in messages))

    def answer(self, agent: str, message: Message) -> None:
        self.answers[agent].append(message.content)


def observed(messages: Sequence[Message], mode: Mode) -> Observation:
    """An agent's observation in the next turn."""
    return Observation(list(messages), info={"new_conversation": mode == "replace"})


@dataclass
class Turning:
    """The turn settings of an environment without turn rules of its own.

    Args:
        max_turns: turns of an episode; 1 if `None`.
        external_transition: writes the prompts between two turns.
        transition_mode, external_prompt_passthrough: how these prompts are shown.
    """

    max_turns: int | None = None
    external_transition: Any = None
    transition_mode: Mode = "replace"
    external_prompt_passthrough: bool = False

    def __post_init__(self) -> None:
        check_choices(self, "environment reward")
        most, transition = self.max_turns, self.external_transition
        if most is not None and (isinstance(most, bool) or most < 1):
            raise ConfigError(f"environment reward: max_turns must be at least 1, not {most}")
        self.external_transition = None if transition is None else Transition(transition)
        self.count: int = most or 1
        replaces = self.transition_mode == "replace"
        self.formatted: bool = replaces and not self.external_prompt_passthrough

    def joined(self, others: Mapping[str, Any]) -> "Turning":
        """These settings, with defaults replaced by those of the workflow. Raises `ConfigError`: a
        setting has two values."""
        workflow = Turning(**others)
        settings: dict[str, Any] = {}
        for name, default in TURN_SETTINGS.items():
            value, other = getattr(self, name), getattr(workflow, name)
            if default not in (value, other) and value != other:
                raise ConfigError(
                    f"environment reward: {name} is {value!r} here and {other!r} in the workflow; "
                    "it is one setting, so keep one of them"
                )
            settings[name] = other if value == default else value
        return Turning(**settings)

    def check(self) -> None:
        """Refuse several turns without prompts for them, and prompts that no turn reads. Raises
        `ConfigError`: the setting to change."""
        if self.count > 1 and self.external_transition is None:
            raise ConfigError(
                f"environment reward: max_turns (num_turns)={self.count} needs "
                "external_transition, the function that writes the prompts of the next turn; "
                "give one, or set 1"
            )
        if self.count == 1 and self.external_transition is not None:
            raise ConfigError(
                "environment reward: external_transition writes the prompts of later turns, and "
                "max_turns (num_turns) is 1, so it would never be called; set num_turns=2 or more"
            )
