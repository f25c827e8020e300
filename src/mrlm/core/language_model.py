"""A user's language model: as a policy of a trainer, for direct queries, or as an environment.
Without torch; engines are loaded by the registry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.types import EnvironmentMode, Message, Role, SamplingParams, Task

AS_ENVIRONMENT = ("dataset", "max_turns", "done_text", "done_func")
"""Fields that apply only to an environment."""


@dataclass(slots=True)
class LLMEnvironment:
    """A language model, live or by its path, with its tokenizer. As a policy it is trained or plays
    an agent; `respond` queries it; with `reset` and `step` it is an environment (a world model),
    which writes the agent's observations.

    Args:
        model: a loaded causal language model, a folder or a hub id; a mapping with the keys of
            `policies.<name>.endpoint` (`base_url`, `model`, ...) for one behind an API, which is
            always a `CLIENT`.
        tokenizer: its tokenizer; loaded from the model's path when `None`.
        mode: `SERVER` is trained, `CLIENT` is frozen.
        generation_config: overrides of the `generation` section for this model (a mapping).
        reward_fn: `reward_fn(prompts, completions, **columns)` that replaces the reward of the
            training environment; for a model as an environment, its reward function.
        system_prompt: system prompt of every conversation of this model's agents.
        dataset, max_turns, done_text, done_func: settings of an environment, as those of `env_type:
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
        if isinstance(self.model, Mapping):  # a model behind an API cannot be trained
            self.mode = EnvironmentMode.CLIENT

    def respond(self, messages: Message | Sequence[Message], **sampling: Any) -> Message:
        """The model's response to a conversation (or to one message).

        Args:
            messages: the conversation so far.
            **sampling: fields of `SamplingParams`, which override `generation_config`.
        """
        seen = [messages] if isinstance(messages, Message) else list(messages)
        if self.system_prompt and not (seen and seen[0].role is Role.SYSTEM):
            seen.insert(0, Message(self.system_prompt, Role.SYSTEM))
        params = SamplingParams(**{**(self.generation_config or {}), **sampling})
        if isinstance(self.model, Mapping):
            return registry.load("engines", "openai").of(self.model).respond(seen, params)
        return registry.load("engines", "lean").of(self.model, self.tokenizer).respond(seen, params)

    @property
    def environment(self) -> Any:
        """The model as an environment (`env_type: world_model`), created on first use. Raises
        `ConfigError`: it is behind an API, or a field does not apply to an environment."""
        if self._environment is None:
            arguments = {name: getattr(self, name) for name in AS_ENVIRONMENT}
            arguments = {name: value for name, value in arguments.items() if value is not None}
            self._environment = registry.load("environments", "world_model")(
                self.model,
                tokenizer=self.tokenizer,
                system_prompt=self.system_prompt,
                reward_func=self.reward_fn,
                **arguments,
                **(self.generation_config or {}),
            )
        return self._environment

    def reset(self, task: Task | int | None = None, seed: int | None = None) -> Any:
        """Start an episode, like any environment: `reset(seed)` or `reset(task, seed)`."""
        positional = () if task is None else (task,)
        named = {} if seed is None else {"seed": seed}
        return self.environment.reset(*positional, **named)

    def step(self, action: Message | Mapping[str, Message]) -> Any:
        """Process a message of the agent; returns a `StepResult`, awaited inside an event loop.
        Raises `ConfigError`: it is called with a conversation; use `respond` for those."""
        if not isinstance(action, Message | Mapping):
            raise ConfigError(
                "LLMEnvironment.step takes the message of an agent, as every environment does; "
                "use respond(messages) for a conversation"
            )
        if self._environment is None:
            raise ConfigError(
                "LLMEnvironment.step: call reset first; to query the model, use respond(message)"
            )
        return self.environment.step(action)

    def check_policy(self) -> None:
        """Check that a model used as a policy has no fields of an environment. Raises
        `ConfigError`: one of them is set."""
        for name in AS_ENVIRONMENT:
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"LLMEnvironment: {name} applies to a model used as an environment, and this "
                    "one is a policy; remove it"
                )
