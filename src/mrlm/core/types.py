"""The basic types, from environments to gradients. No torch, no I/O.

A *rollout* is one agent's part of one episode; an *episode* is one attempt at a task by all agents;
a *group* contains the episodes that start from one state and are compared with each other.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, Self

import numpy as np

from mrlm.core.errors import EpisodeError
from mrlm.core.owners import role_of
from mrlm.core.sampling import SamplingParams as SamplingParams

JSON = dict[str, Any]
Column = float | Sequence[float] | np.ndarray
"""A number for every token of a turn, or one number for all of them."""

Status = Literal["running", "done", "truncated", "error"]


class Role(StrEnum):
    """The role of a message; `MESSAGE` and `MODEL` are aliases of `USER` and `ASSISTANT`."""

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
        role: its role; a string such as `"user"` is accepted.
        agent: the name of the agent that wrote it, if any.
        tool_calls: tool calls in the form of chat templates: `{"function": {"name": ...,
            "arguments": {...}}}`, with `id` and `type` where they have them.
        metadata: any other data of the message.
        turn: the model call that produced it; set by the sampling agent, never by hand.
        tool_call_id: of a tool's result, the id of its call.
        name: of a tool's result, the name of the tool; of other messages, that of the writer.
        reasoning: the thoughts before the text, if they are apart from it.
        weight: 0 for an assistant's message that is context, not trained on; 1 or `None` otherwise.

    Examples:
        >>> Message("2+3?", MessageType.MESSAGE) == Message(role="user", content="2+3?")
        True
    """

    content: str
    role: Role = Role.USER
    agent: str | None = None
    tool_calls: tuple[JSON, ...] = ()
    metadata: JSON = field(default_factory=dict, hash=False)
    turn: "Turn | None" = field(default=None, repr=False, compare=False)
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    weight: float | None = None

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
    """A task: a row of a data set or a generated problem.

    Args:
        id: stable name; episodes of one group share it.
        prompt: the opening messages; a string becomes one user message.
        answer: the reference answer for grading, if there is one.
        seed: the seed with which environments of this task are reset.
        info: all other columns of the row.

    Examples:
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
    """An observation of one agent.

    Args:
        messages: the new messages since its last turn.
        done: the agent does not act any more in this episode.
        info: data for logs; with `new_conversation` the agent reads nothing from before.
    """

    messages: list[Message] = field(default_factory=list)
    done: bool = False
    info: JSON = field(default_factory=dict)


@dataclass(slots=True)
class Reward:
    """A reward of one agent for one joint step.

    Args:
        components: its components by name, which are logged and not added again.
        info: data for logs.
        known: `False` is a missing reward, whatever its value: it is not trained on.
    """

    value: float
    components: dict[str, float] = field(default_factory=dict)
    info: JSON = field(default_factory=dict)
    known: bool = True


@dataclass(slots=True)
class StepResult:
    """The result of a step of an environment. **The agents in `observations` act next**, so that
    turn-based and simultaneous environments have the same type.

    Args:
        observations: agent -> its observation.
        rewards: agent -> its reward for the step; `None` if unknown, so that the agent's part of
            the episode is not trained on.
        done: the environment has ended by its own rules.
        truncated: the episode was truncated (a budget ran out).
        info: data for logs.

    Awaiting a result returns the result itself, so that environments with and without coroutine
    methods are stepped in the same way.
    """

    observations: dict[str, Observation] = field(default_factory=dict)
    rewards: dict[str, Reward] = field(default_factory=dict)
    done: bool = False
    truncated: bool = False
    info: JSON = field(default_factory=dict)

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield  # makes this function a generator

    def __iter__(self) -> Iterator[Observation | Reward]:
        """Observation and reward of an environment with one agent: `obs, reward = env.step(...)`.
        Raises `EpisodeError`: it has several agents."""
        agents = {*self.observations, *self.rewards}
        if len(agents) > 1:
            raise EpisodeError(
                f"a step of {len(agents)} agents ({', '.join(sorted(agents))}) has a result for "
                "each of them; read result.observations and result.rewards"
            )
        for name in agents or {""}:
            ended = self.done or self.truncated
            yield self.observations.get(name) or Observation([], done=ended)
            yield self.rewards.get(name) or Reward(0.0)

    @property
    def messages(self) -> list[Message]:
        """The new messages of the agent that acts next; with several agents, those of all of them,
        one after the other."""
        return [message for seen in self.observations.values() for message in seen.messages]

    @property
    def reward(self) -> float:
        """The sum of the rewards."""
        return float(sum(reward.value for reward in self.rewards.values()))


@dataclass(slots=True)
class Completion:
    """A completion of an engine.

    Args:
        token_ids: the sampled ids, including the end token.
        logprobs: log-prob in nats of each id under the sampling distribution.
        text: the ids as text.
        finish_reason: `stop` (the end token or a stop text), `length` (the limit) or `abort`.
        policy_version: number of updates of the weights it was sampled with.
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length", "abort"] = "stop"
    policy_version: int = 0
    usage: tuple[int, int] | None = None
    """Numbers of input and output tokens reported by a server without token ids (`token_ids` is
    then empty)."""


@dataclass(slots=True)
class Turn:
    """A turn: one model call, the record from which all training data are computed.

    Args:
        agent: the agent that acted.
        prompt_ids: input tokens of the policy.
        completion_ids: sampled tokens; these are trained on.
        logprobs: log-prob of each completion token under the sampling distribution; `None` for text
            that no engine sampled.
        message: the completion as text.
        reward: reward of the agent for this turn.
        components: components of the reward by name.
        step: index of the turn's joint step.
        index: number of earlier turns of this agent in the episode.
        node: name of the state it was sampled from (`Episode.path` up to there).
        version: version of the weights.
        lag: updates of the policy between sampling and training.
        finish_reason: `stop`, `length` or `abort`.
        sampling: the sampling parameters; the loss divides logits by the temperature.
        trained: `False` for turns that are context only (a frozen policy, an excluded agent, a copy
            in a forked episode).
        opening: it was requested before any agent had acted in its joint step.
        order: number of turns taken in its joint step when it was requested; concurrent requests
            have the same number.
        read: new messages of a policy behind an API, whose turns have no ids: `prompt_ids` and
            `completion_ids` are empty.
        fed: a replay's turn that was not sampled: that of the replayed episode, or a given text.
        teacher_ids: the prompt of a teacher that reads more than the policy; `None`: the same.

    A column (`COLUMNS`) has one number per completion token (or one for all of them). It says `by`
    whom it is written: the `sampler`; before credit the `policy` or its `reference`; `credit`; or
    the `update`. `old_logprobs` are the training engine's log-probs at the start of the update;
    without them, `logprobs` are used. `new_logprobs` are those after the update of the turn's
    policy, for policies that are updated later. `full_kl` is the divergence from the reference over
    the whole vocabulary at each token, and `entropies` (in nats) of the sampling distributions.
    """

    agent: str
    policy: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float] | None = field(default=None, metadata={"by": "sampler", "recorded": True})
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
    fed: bool = False
    teacher_ids: list[int] | None = None
    components: dict[str, float] = field(default_factory=dict)
    old_logprobs: Column | None = field(default=None, metadata={"by": "policy", "recorded": True})
    ref_logprobs: Column | None = field(
        default=None, metadata={"by": "reference", "recorded": True}
    )
    values: Column | None = field(default=None, metadata={"by": "policy", "recorded": True})
    returns: Column | None = field(default=None, metadata={"by": "credit", "recorded": True})
    advantages: Column | None = field(default=None, metadata={"by": "credit", "recorded": True})
    entropies: Column | None = field(default=None, metadata={"by": "policy", "recorded": True})
    new_logprobs: Column | None = field(default=None, metadata={"by": "update", "recorded": False})
    full_kl: Column | None = field(default=None, metadata={"by": "reference", "recorded": False})
    why: str | None = None
    """The computation of its advantage in words, if it is traced."""
    trace: dict[str, Column] | None = None
    """Columns of its update, if it is traced for the record: `last_logprobs` and `entropies` of the
    last pass."""

    @property
    def role(self) -> str:
        """Its agent without the number of the instance."""
        return role_of(self.agent)

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def depth(self) -> int:
        """Number of forks between the first state and the one it was sampled from."""
        return self.node.count("/") + 1 if self.node else 0


COLUMNS: dict[str, Mapping[str, Any]] = {
    f.name: f.metadata for f in fields(Turn) if f.metadata or f.type == Column | None
}
"""Column of a turn -> `by` whom it is written, and whether it is `recorded`."""
ANNOTATED = tuple(name for name, of in COLUMNS.items() if of["by"] in ("policy", "reference"))
"""Those that are written before credit assignment."""
COMPUTED = tuple(name for name, of in COLUMNS.items() if of["by"] != "sampler")
"""Those that algorithms, learners and critics write."""


@dataclass(slots=True, weakref_slot=True)
class Rollout:
    """One agent's part of one episode.

    A sampled rollout is a list of turns. A rollout built by hand is a transcript of added messages,
    of which only those with role `MODEL` are trained on.

    Examples:
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
    """Observation tokens after the agent's last turn: context, kept for training world models."""
    rewritten: bool = False
    """Whether the chat template rewrote earlier turns, so that the next prompt does not continue
    the tokens of the turn."""

    def add_messages(self, *messages: Message) -> Self:
        """Append to the transcript; returns the rollout, so that calls can be chained."""
        self.messages.extend(messages)
        return self

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)


class EnvironmentMode(StrEnum):
    """`SERVER`: a trained language model. `CLIENT`: a frozen one."""

    SERVER = "server"
    CLIENT = "client"
