"""The nouns of the house: what flows from a world to a gradient. No torch, no I/O.

A *rollout* is what one agent did in one play; an *episode* is the play of all agents; a *group*
holds the episodes that started from one state and are compared with each other.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np

JSON = dict[str, Any]
Column = float | Sequence[float] | np.ndarray
"""A number for every token of a turn, or one number that stands for all of them."""

Status = Literal["running", "done", "truncated", "error"]


class Role(StrEnum):
    """Who a message comes from; `MESSAGE` and `MODEL` are other names of `USER`, `ASSISTANT`."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    ENVIRONMENT = "environment"
    MESSAGE = "user"
    MODEL = "assistant"


MessageRole = Role
MessageType = Role


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        content: the text.
        role: who speaks; a string such as `"user"` is accepted.
        agent: the name of the agent that wrote it, if one did.
        tool_calls: calls of tools as the chat template takes them.
        metadata: anything else that travels with the message.
        turn: the model call that produced it; set by the agent that sampled it, never by hand.

    Example:
        >>> Message("2+3?", MessageType.MESSAGE) == Message(role="user", content="2+3?")
        True
    """

    content: str
    role: Role = Role.USER
    agent: str | None = None
    tool_calls: tuple[JSON, ...] = ()
    metadata: JSON = field(default_factory=dict, hash=False)
    turn: Turn | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise TypeError(
                f"Message content must be a str, not {type(self.content).__name__}: "
                f"{self.content!r}"
            )
        if not isinstance(self.role, Role):
            object.__setattr__(self, "role", Role(self.role))


@dataclass(slots=True)
class Task:
    """What is to be done: any row of a dataset or product of a generator.

    Args:
        id: stable name; episodes of one group share it.
        prompt: the opening messages; a string becomes one user message.
        answer: what a grader compares with, if there is one.
        seed: the seed that worlds of this task are reset with.
        info: every other column of the row.

    Example:
        >>> Task("add-7", "What is 2+3?", answer="5").prompt[0].content
        'What is 2+3?'
    """

    id: str
    prompt: list[Message] = field(default_factory=list)
    answer: Any = None
    seed: int = 0
    info: JSON = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.prompt, str):
            self.prompt = [Message(self.prompt)]


@dataclass(slots=True)
class Observation:
    """What one agent sees next: the messages that are new since its last turn."""

    messages: list[Message] = field(default_factory=list)
    done: bool = False
    info: JSON = field(default_factory=dict)


@dataclass(slots=True)
class Reward:
    """A number, and by name what it was made of (the components are logged, not added again).
    `known=False` is a reward that is missing, whatever its value: nothing is learned from it."""

    value: float
    components: dict[str, float] = field(default_factory=dict)
    info: JSON = field(default_factory=dict)
    known: bool = True


@dataclass(slots=True)
class StepResult:
    """What a world answers. **Whoever is in `observations` speaks next**, so that turn-based and
    simultaneous worlds are one type.

    Args:
        observations: agent -> what it sees.
        rewards: agent -> what it earned in this step; `None` where that is unknown, so that the
            agent's part of the episode is not trained.
        done: the world has ended by its own rules.
        truncated: the world was cut short (a budget ran out).
        info: for logs.

    A result may be awaited and is itself then, so that environments whose methods are coroutines
    and others are stepped in the same way.
    """

    observations: dict[str, Observation] = field(default_factory=dict)
    rewards: dict[str, Reward] = field(default_factory=dict)
    done: bool = False
    truncated: bool = False
    info: JSON = field(default_factory=dict)

    def __await__(self) -> Generator[Any, None, StepResult]:
        return self
        yield  # what makes this a generator

    @property
    def messages(self) -> list[Message]:
        """What is new to the agent that acts next; of several, all that they see, one after the
        other."""
        return [message for seen in self.observations.values() for message in seen.messages]

    @property
    def reward(self) -> float:
        """The sum of the rewards."""
        return float(sum(reward.value for reward in self.rewards.values()))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. `temperature=0` is greedy; `top_p=1`, `top_k=0`, `min_p=0` are off."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether tokens are drawn from a cut distribution, whose log-probs are not the model's."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


@dataclass(slots=True)
class Completion:
    """What an engine returns: the sampled ids (the end token included) and the log-prob of each
    under the distribution it was drawn from."""

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length", "abort"] = "stop"
    policy_version: int = 0
    usage: tuple[int, int] | None = None
    """Tokens that were read and written, as a server counts them whose tokens are not known here
    (`token_ids` is empty then)."""


@dataclass(slots=True)
class Turn:
    """One model call: the record everything is computed from.

    Args:
        agent: the seat that spoke.
        policy: the weights that spoke.
        prompt_ids: what the policy read.
        completion_ids: what it wrote; these are the tokens that are trained on.
        logprobs: log-prob of each completion token under the sampling distribution; `None` for text
            no engine sampled.
        message: the text view of the completion.
        reward: what the agent was paid for this turn.
        components: by name, what the world says the reward was made of.
        step: index of the joint step of the world this turn belongs to.
        index: how many turns this agent had before in the episode.
        node: name of the state it was sampled from (`Episode.path` up to there).
        version: version of the weights.
        lag: updates that the policy had seen since, when its groups were taken to be learned from.
        finish_reason: `stop`, `length` or `abort`.
        sampling: how the tokens were drawn; the loss divides logits by its temperature.
        trained: `False` for turns that are context only (a frozen policy, an agent left out, a copy
            in an episode that was forked later).
        opening: it was asked for before anybody had spoken in its joint step.
        order: turns of its joint step that had been taken when it was asked for; those asked for at
            the same time have the same number.
        read: what was new to a policy behind an API, whose turns have no ids: there `prompt_ids`
            and `completion_ids` are empty.

    The credit columns are written by an algorithm or a learner: `advantages`, `returns`, `values`,
    `ref_logprobs`, `old_logprobs`, `new_logprobs`, `full_kl` and `entropies`, each one number per
    completion token (or one for all of them). `old_logprobs` is the training engine's own view at
    the start of the update; where it is absent, `logprobs` serves. `new_logprobs` is its view after
    the update of the turn's policy, for those who learn after it. `full_kl` is the divergence from
    the reference, over the whole vocabulary, where each token was drawn, and `entropies` (in nats)
    are those of the distributions they were drawn from.
    """

    agent: str
    policy: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float] | None = None
    message: Message | None = None
    reward: float = 0.0
    step: int = 0
    index: int = 0
    node: str = ""
    version: int = 0
    lag: int = 0
    finish_reason: str = "stop"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    trained: bool = True
    opening: bool = True
    order: int = 0
    read: str = ""
    components: dict[str, float] = field(default_factory=dict)
    advantages: Column | None = None
    returns: Column | None = None
    values: Column | None = None
    ref_logprobs: Column | None = None
    old_logprobs: Column | None = None
    new_logprobs: Column | None = None
    full_kl: Column | None = None
    entropies: Column | None = None

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def depth(self) -> int:
        """Forks between the first state and the one it was sampled from."""
        return self.node.count("/") + 1 if self.node else 0


@dataclass(slots=True, weakref_slot=True)
class Rollout:
    """One agent's part of one episode.

    Built by an engine it is a list of turns. Built by hand it is one transcript: add messages, and
    only those with role `MODEL` are trained on.

    Example:
        >>> rollout = Rollout()
        >>> rollout.add_messages(Message("What is 2+3?"), Message("5", MessageType.MODEL))
        >>> [message.content for message in rollout.messages]
        ['What is 2+3?', '5']
    """

    agent: str | None = None
    policy: str | None = None
    task_id: str | None = None
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    tail_ids: list[int] = field(default_factory=list)
    """What the agent was shown after its last turn: context, kept for those who model the world."""
    rewritten: bool = False
    """Whether the chat template rewrote earlier turns, so that what the agent read next does not
    continue the tokens of its turn."""

    def add_messages(self, *messages: Message) -> Rollout:
        """Append to the transcript; returns the rollout, so that calls can be chained."""
        self.messages.extend(messages)
        return self

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)


class EnvironmentMode(StrEnum):
    """`SERVER`: a language model that is trained here. `CLIENT`: one that is only asked."""

    SERVER = "server"
    CLIENT = "client"
