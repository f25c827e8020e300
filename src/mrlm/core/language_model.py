"""A language model as a user hands it over: to a trainer, to be asked, or to be an environment. It
knows neither torch nor engines; the registry makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.types import EnvironmentMode, Message, Role, SamplingParams, Task

AS_ENVIRONMENT = ("dataset", "max_turns", "done_text", "done_func")
"""Fields that have a meaning for an environment alone."""


@dataclass(slots=True)
class LLMEnvironment:
    """A language model: a live one, or a path, with its tokenizer. As a policy it is trained or
    speaks for an agent; `respond` asks it; with `reset` and `step` it is an environment (a world
    model), which writes what the agent sees next.

    Args:
        model: a loaded causal language model, a folder or a hub id; a mapping with the keys of
            `policies.<name>.endpoint` (`base_url`, `model`, ...) for one behind an API, which is
            only ever a `CLIENT`.
        tokenizer: its tokenizer; loaded from the model's path when `None`.
        mode: `SERVER` is trained, `CLIENT` is frozen.
        generation_config: overrides of the `generation` section for this model (a mapping).
        reward_fn: `reward_fn(prompts, completions, **columns)` that replaces the reward of the
            environment it is trained in; the reward, where it is the environment.
        system_prompt: put before every conversation of this model's agents.
        dataset, max_turns, done_text, done_func: of an environment, as those of `env_type:
            world_model`.
    """

    model: Any
    tokenizer: Any = None
    mode: EnvironmentMode = EnvironmentMode.SERVER
    generation_config: Mapping[str, Any] | None = None
    reward_fn: Any = None
    system_prompt: str | None = None
    dataset: Any = None
    max_turns: int | None = None
    done_text: str | None = None
    done_func: Any = None
    _environment: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.mode = EnvironmentMode(self.mode)
        if isinstance(self.model, Mapping):  # nothing behind an API is trained here
            self.mode = EnvironmentMode.CLIENT

    # -- asked -------------------------------------------------------------------------------------

    def respond(self, messages: Message | Sequence[Message], **sampling: Any) -> Message:
        """What the model says to a conversation (or to one message).

        Args:
            messages: the conversation so far.
            **sampling: fields of `SamplingParams`, over those of `generation_config`.
        """
        seen = [messages] if isinstance(messages, Message) else list(messages)
        if self.system_prompt and not (seen and seen[0].role is Role.SYSTEM):
            seen.insert(0, Message(self.system_prompt, Role.SYSTEM))
        params = SamplingParams(**{**(self.generation_config or {}), **sampling})
        if isinstance(self.model, Mapping):
            return registry.load("engines", "openai").of(self.model).respond(seen, params)
        return registry.load("engines", "lean").of(self.model, self.tokenizer).respond(seen, params)

    # -- an environment ----------------------------------------------------------------------------

    @property
    def environment(self) -> Any:
        """The model as an environment (`env_type: world_model`), made at first use.

        Raises:
            ConfigError: it is behind an API, or a field is not one of an environment's.
        """
        if self._environment is None:
            given = {name: getattr(self, name) for name in AS_ENVIRONMENT}
            given = {name: value for name, value in given.items() if value is not None}
            self._environment = registry.load("environments", "world_model")(
                self.model,
                tokenizer=self.tokenizer,
                system_prompt=self.system_prompt,
                reward_func=self.reward_fn,
                **given,
                **(self.generation_config or {}),
            )
        return self._environment

    def reset(self, task: Task | int | None = None, seed: int | None = None) -> Any:
        """Start an episode, as every environment does: `reset(seed)` or `reset(task, seed)`."""
        given = () if task is None else (task,)
        named = {} if seed is None else {"seed": seed}
        return self.environment.reset(*given, **named)

    def step(self, action: Message | Mapping[str, Message]) -> Any:
        """What follows a message of the agent: a `StepResult`, awaited inside an event loop.

        Raises:
            ConfigError: it is given a conversation; `respond` answers those.
        """
        if not isinstance(action, Message | Mapping):
            raise ConfigError(
                "LLMEnvironment.step takes the message of an agent, as every environment does; "
                "respond(messages) answers a conversation"
            )
        if self._environment is None:
            raise ConfigError(
                "LLMEnvironment.step: call reset first; to ask the model something, use "
                "respond(message)"
            )
        return self.environment.step(action)

    def check_policy(self) -> None:
        """Refuse the fields of an environment where the model is a policy.

        Raises:
            ConfigError: one of them is set.
        """
        given = [name for name in AS_ENVIRONMENT if getattr(self, name) is not None]
        if given:
            raise ConfigError(
                f"LLMEnvironment: {given[0]} is for a model that is the environment, and this one "
                "is a policy; remove it"
            )
