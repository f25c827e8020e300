"""The agents of an episode, independent of the model, of each other, and of training. `await
agent.act(messages)` requests a completion from the agent's policy and records the turn."""

import copy
import hashlib
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from mrlm.core.chat import Chat, Prompt
from mrlm.core.episodes import Episode
from mrlm.core.errors import DataError, EpisodeError, MRLMError, well_formed
from mrlm.core.thoughts import CUT, OPENED
from mrlm.core.timing import count, span
from mrlm.core.types import JSON, Message, Role, Rollout, SamplingParams, Turn
from mrlm.play.engine import Batcher, Key, Request

Ask = Callable[[str, Sequence[Message]], str]
"""A function from an agent's name and the conversation it sees to its message."""


class PromptTooLong(MRLMError):
    """The conversation exceeds the limit: it ends as truncated; no text is dropped silently."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The configuration of an agent, constant over episodes.

    Args:
        policy: name of its policy.
        chat: renderer of its conversations, for its policy's tokenizer; `None` for a policy behind
            an API, which reads messages.
        max_prompt_tokens: longest prompt.
        system_prompt: prepended to every conversation without a system message.
        trained: whether its turns are trained on.
        sampler: who writes its messages in place of its policy: `expert`, that of the environment,
            or the name of another policy. Its turns have no log-probs then.
    """

    name: str
    policy: str
    chat: Chat | None
    sampling: SamplingParams
    max_prompt_tokens: int
    system_prompt: str | None = None
    trained: bool = True
    sampler: str | None = None

    def greedy(self) -> "AgentSettings":
        """A copy with greedy decoding."""
        return replace(self, sampling=replace(self.sampling, temperature=0.0))

    def view(self, messages: Sequence[Message]) -> list[Message]:
        """A conversation as the agent sees it: other agents' messages become a user's."""
        seen = [
            replace(message, role=Role.USER)
            if message.role is Role.ASSISTANT and message.agent not in (None, self.name)
            else message
            for message in messages
        ]
        if self.system_prompt and not (seen and seen[0].role is Role.SYSTEM):
            seen.insert(0, Message(self.system_prompt, Role.SYSTEM))
        return seen


def seed_of(key: Key) -> int:
    """A 64-bit seed that depends only on the key."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=8)
def shuffled(key: Key, count: int) -> np.ndarray:
    """The numbers below `count` in an order of the key alone; made once, not to be changed."""
    return np.random.Generator(np.random.Philox(seed_of(key))).permutation(count)


@dataclass(eq=False, repr=False)
class Agent:
    """An agent in one episode.

    Args:
        settings: its configuration.
        episode: the episode that records its turns.
        batcher: batches its requests; `None` for an agent that never samples.
        key: randomness key of the episode.
    """

    settings: AgentSettings
    episode: Episode
    batcher: Batcher | None
    key: Key

    def __post_init__(self) -> None:
        self.name: str = self.settings.name
        self.place: str = self.settings.name
        """The agent of the environment whose role it has, if the environment has several."""
        self.rollout: Rollout = Rollout(self.name, self.settings.policy, self.episode.task.id)
        self._calls = 0
        self._prompts: dict[int, Prompt] = {}
        self._after: list[Message] = []

    async def act(self, messages: Sequence[Message], **sampling: object) -> Message:
        """Produce a message.

        Args:
            messages: the whole conversation from the view of this agent. Its own earlier messages
                keep the tokens they were sampled with; those of other agents become user messages.
            **sampling: overrides of the sampling parameters for this call.

        Returns:
            The message, with the recorded turn in `message.turn`.
        """
        index, self._calls = self._calls, self._calls + 1
        self._after = []
        episode, rollout, settings = self.episode, self.rollout, self.settings
        step = len(episode.step_rewards)
        order = [turn.step for turn in episode.turns].count(step)
        seen = settings.view(messages)
        if self._overflows(seen):
            raise PromptTooLong(
                f"agent {self.name!r}: a conversation of {sum(len(m.content) for m in seen)} "
                f"characters, which exceeds max_prompt_tokens={settings.max_prompt_tokens}; "
                "shorten what the environment shows, or raise max_prompt_tokens"
            )
        with span("prompts", self.name):
            prompt = self._prompt(seen)
        rollout.rewritten |= prompt.forked
        params = replace(settings.sampling, **sampling) if sampling else settings.sampling  # type: ignore[arg-type]
        if len(prompt.ids) > settings.max_prompt_tokens:
            raise PromptTooLong(
                f"agent {self.name!r}: the prompt has {len(prompt.ids)} tokens; "
                f"the limit is {settings.max_prompt_tokens}"
            )
        if settings.chat is not None and not prompt.ids:
            raise EpisodeError(
                f"agent {self.name!r}: its prompt is empty; give it a system_prompt, "
                "or a chat template with a generation prompt"
            )
        turn = Turn(
            self.name,
            settings.policy,
            prompt.ids,
            [],
            step=step,
            index=index,
            node="/".join(map(str, episode.path[:-1])),
            sampling=params,
            trained=settings.trained,
            opening=order == 0,
            order=order,
            read=prompt.text if settings.chat is None else "",
        )
        text, metadata = await self._answer(turn, seen)
        message = Message(text, Role.ASSISTANT, self.name, metadata=metadata, turn=turn)
        turn.message = message
        self._prompts[id(turn)] = prompt
        insort(rollout.turns, turn, key=lambda other: other.index)  # in the order of requests
        episode.rollouts.setdefault(self.name, rollout)
        rollout.messages = [*seen, message]
        return message

    def _overflows(self, seen: Sequence[Message]) -> bool:
        """Whether a conversation cannot fit, whatever its tokens are: checked before tokenisation,
        which would take 250 bytes of memory for each of its characters."""
        chat, limit = self.settings.chat, self.settings.max_prompt_tokens
        size = sum([len(message.content) for message in seen])
        return size > limit and chat is not None and size > limit * chat.longest_token

    def _prompt(self, seen: Sequence[Message]) -> Prompt:
        """The prompt: the conversation in ids, or, for a policy behind an API, only its new text.
        Raises `EpisodeError`: a message is no text."""
        try:
            if self.settings.chat is not None:
                return self.settings.chat.prompt(seen, after=self._last_own(seen))
            own = [at for at, message in enumerate(seen) if id(message.turn) in self._prompts]
            fresh = seen[own[-1] + 1 :] if own else seen
            text = "\n".join(message.content for message in fresh)
            return Prompt(well_formed(text, "a text of a conversation"), [])
        except DataError as error:
            raise EpisodeError(f"agent {self.name!r}: {error}") from error

    async def _answer(self, turn: Turn, seen: Sequence[Message]) -> tuple[str, JSON]:
        """Fill the completion of a turn; returns its text, and the metadata of the message."""
        if self.batcher is None:
            raise EpisodeError(f"agent {self.name!r} has no engine")
        key = self._key(turn)
        policy = self.settings.sampler or turn.policy
        request = Request(policy, turn.prompt_ids, turn.sampling, seed_of(key), key, seen)
        completion = await self.batcher.generate(request)
        count("read", self.name, len(turn.prompt_ids))
        count("sampled", self.name, len(completion.token_ids))
        turn.completion_ids, turn.logprobs = completion.token_ids, completion.logprobs
        turn.version, turn.finish_reason = completion.policy_version, completion.finish_reason
        if self.settings.sampler is not None:
            turn.logprobs = None
        metadata: JSON = {} if completion.usage is None else {"usage": completion.usage}
        if completion.finish_reason == "length":
            metadata[CUT] = "length"
        if self.settings.chat and (mark := self.settings.chat.thoughts.opened(turn.prompt_ids)):
            metadata[OPENED] = mark
        return completion.text, metadata

    def _key(self, turn: Turn) -> Key:
        """The source of randomness of a turn."""
        return (*self.key, self.name, turn.index)

    def fork_key(self, depth: int, branch: int) -> Key:
        """The key of its copy in a branch."""
        return (*self.key, f"fork {depth}.{branch}")

    def fork(self, episode: Episode, branch: int) -> "Agent":
        """A copy of the agent in a forked episode: it keeps its history, and its next message is
        sampled again. Earlier turns are copied there and not trained on."""
        twin = copy.copy(self)
        twin.rollout = replace(
            self.rollout,
            turns=[replace(turn, trained=False) for turn in self.rollout.turns],
            messages=list(self.rollout.messages),
            metrics=dict(self.rollout.metrics),
        )
        depth = len(episode.path) - 1
        twin.episode, twin.key = episode, self.fork_key(depth, branch)
        twin._prompts = dict(self._prompts)
        if self.name in self.episode.rollouts:
            episode.rollouts[self.name] = twin.rollout
        return twin

    def close(self) -> None:
        """Record the observation after the agent's last turn."""
        if self.rollout.turns and self._after:
            seen = self.settings.view([*self.rollout.messages, *self._after])
            last, chat = self._last_own(seen), self.settings.chat
            if last is not None and chat is not None and not self._overflows(seen):
                with span("prompts", self.name):
                    prompt, turn = self._prompt(seen), last[1]
                length = len(turn.prompt_ids) + len(turn.completion_ids)
                self.rollout.tail_ids = [] if prompt.forked else prompt.ids[length:]
                self.rollout.rewritten |= prompt.forked
            self.rollout.messages = seen

    def shown(self, messages: Sequence[Message]) -> None:
        """Called by the episode runner with the observation after a turn of this agent."""
        self._after = list(messages)

    def _last_own(self, messages: Sequence[Message]) -> tuple[Prompt, Turn] | None:
        for message in reversed(messages) if self._prompts else ():
            if message.turn is not None and id(message.turn) in self._prompts:
                return self._prompts[id(message.turn)], message.turn
        return None


@dataclass(eq=False, repr=False)
class TextAgent(Agent):
    """An agent whose messages are tokenised text instead of samples: those of an expert, a human
    player or another function. `write` returns the agent's message for the conversation that the
    workflow shows it."""

    write: Callable[[Agent, Sequence[Message]], str]

    async def act(self, messages: Sequence[Message], **sampling: object) -> Message:
        self._seen = list(messages)
        return await super().act(messages, **sampling)

    async def _answer(self, turn: Turn, seen: Sequence[Message]) -> tuple[str, JSON]:
        text, chat = self.write(self, self._seen), self.settings.chat
        if chat is not None:
            turn.completion_ids = chat.encode_text(text, whole=True)
        return text, {}


class Agents(dict[str, Agent]):
    """The agents of an episode by name: `agents["writer"]`, `agents.writer`, or in order with
    `list(agents.values())`."""

    def fork(self, episode: Episode, branch: int) -> "Agents":
        return Agents({name: agent.fork(episode, branch) for name, agent in self.items()})

    def __getattr__(self, name: str) -> Agent:
        if name.startswith("_") or name not in self:
            raise AttributeError(f"agent {name!r} does not exist; the agents are {', '.join(self)}")
        return self[name]
