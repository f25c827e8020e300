"""The calls of one episode of an app: the agent that speaks, the rollout that a conversation
continues, and the rewards from inside."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from mrlm.core.chat import Chat
from mrlm.core.environment import validated_reward
from mrlm.core.errors import ENDS_RUN, DataError, MRLMError
from mrlm.core.log import log
from mrlm.core.messages import read_message
from mrlm.core.sampling import FIELDS
from mrlm.core.types import Completion, Message, Role, Turn
from mrlm.play.agent import Agent, PromptTooLong
from mrlm.play.engine import Request
from mrlm.play.episode_runner import EpisodeRunner, join
from mrlm.serving.policies.admission import Refusal
from mrlm.serving.policies.openai_fields import Fields, spoken

CURRENT: ContextVar["AppSession | None"] = ContextVar("session", default=None)
"""The episode of the running code."""
TURNS: ContextVar[list[Turn]] = ContextVar("turns")
"""The turns of the call that is being answered."""
NOTES: dict[str, None] = {}
"""Sentences about what apps of this process did and cannot be trained or reproduced."""


def note(sentence: str) -> None:
    """Note, and log once, what an app did."""
    if sentence not in NOTES:
        NOTES[sentence] = None
        log.info("app: %s", sentence)


Answer = tuple[Any, list[Turn]]
"""The answer that a client gets, and the turns that it was made of."""
ENDED = "this episode has ended; an app calls agents while it runs"


@dataclass(frozen=True, slots=True)
class Call:
    """A model call: what was read, the answer as the client has it, and the recorded one."""

    seen: list[Message]
    answer: Message
    message: Message


class Speaker:
    """An agent as its client calls it."""

    def __init__(self, session: "AppSession", agent: Agent) -> None:
        self.session = session
        self.agent = agent
        self.name: str = agent.name
        self.chat: Chat | None = agent.settings.chat
        batcher, policy = agent.batcher, agent.settings.policy
        self.max_context: int = batcher.engines[policy].max_context if batcher else 1 << 20
        self.calls: list[Call] = []

    def continued(self, messages: list[Message]) -> list[Message]:
        """A conversation with the recorded turns of the longest earlier call that it extends; any
        other conversation as it is."""
        for call in sorted(self.calls, key=lambda call: -len(call.seen)):
            length = len(call.seen)
            extends = len(messages) > length and messages[:length] == call.seen
            if extends and _same(messages[length], call.answer):
                return [*call.seen, call.message, *messages[length + 1 :]]
        return messages

    async def say(self, fields: Fields) -> tuple[list[Request], list[Completion]]:
        """One turn for each choice of a request."""
        messages = self.continued(fields.messages(self.max_context))
        sampling = self._sampling(fields)
        said = await asyncio.gather(
            *(self.agent.act(messages, **sampling) for _ in range(fields.choices()))
        )
        sent, completions, tools = [], [], fields.tools()
        for message in said:
            turn = cast("Turn", message.turn)
            sent.append(Request(self.name, turn.prompt_ids, turn.sampling, 0))
            completion = Completion(
                turn.completion_ids,
                turn.logprobs or [],
                message.content,
                cast("Any", turn.finish_reason),
                turn.version,
            )
            completions.append(completion)
            opened = self.chat is not None and self.chat.thoughts.opened(turn.prompt_ids)
            shown, _ = spoken(completion, tools, bool(opened))
            self.calls.append(Call(messages, read_message(shown, "an answer"), message))
            TURNS.get().append(turn)
        return sent, completions

    def _sampling(self, fields: Fields) -> dict[str, Any]:
        """The settings of a request, within the limit of the agent; a greedy agent stays so."""
        usual, who = self.agent.settings.sampling, f"agent {self.name.partition('#')[0]!r}"
        asked = fields.limit(usual.max_new_tokens)
        limit = min(usual.max_new_tokens, asked)
        read = fields.sampling(limit)
        values = {name: getattr(read, name) for name in FIELDS if fields.body.get(name) is not None}
        if fields.body.get("seed") is not None:
            fields.seed()
            note(f"{who} is called with a seed, which is not used: the run's own counts")
        if asked > limit:
            note(
                f"{who} is asked for {asked} tokens; generation.max_new_tokens={limit} is the limit"
            )
        if usual.greedy:
            values.pop("temperature", None)
        elif values.get("temperature") == 0:
            note(f"{who} is called with temperature 0: its answers to a prompt are all the same")
        return {**values, "max_new_tokens": limit}


def _same(message: Message, answer: Message) -> bool:
    """Whether a message of a request is an earlier answer, as its client had it."""
    calls = [call["function"] for call in message.tool_calls]
    return (
        message.role is Role.ASSISTANT
        and message.content == answer.content
        and calls == [call["function"] for call in answer.tool_calls]
    )


@dataclass(eq=False, repr=False)
class AppSession:
    """The endpoint of one episode.

    Args:
        id: its part of the address.
        names: names of the agents.
        many: agents of which there may be several instances, `NAME#1` -> who spawns them.
        agent_of: rule for the speaker of a request: system prompt -> name.
    """

    id: str
    env: EpisodeRunner
    names: Sequence[str]
    many: Mapping[str, str | None]
    agent_of: Callable[[str], str] | None = None
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24), init=False)

    def __post_init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.speakers: dict[str, Speaker] = {}
        self.spawned: dict[str, tuple[str, Turn | None]] = {}
        """Instance -> who spawned it, and the last turn before."""
        self.rewards: list[tuple[str | None, Turn | None, float]] = []
        """Rewards during the episode: agent (`None`: the team), turn, amount."""
        self.responses: dict[str, list[Turn]] = {}
        self.failure: MRLMError | None = None
        """The first error of a call that is not the app's."""
        self.open: int = 0
        """Calls that are being answered."""
        self.changed: asyncio.Event = asyncio.Event()
        """Set when that number changes."""
        self._answers: dict[Any, list[asyncio.Task[Answer]]] = {}
        self._lost: set[asyncio.Task[Answer]] = set()
        """Those whose client does not wait any more."""

    # -- who speaks --------------------------------------------------------------------------------

    def speaker(self, fields: Fields, path: str | None) -> Speaker:
        """The agent of a request: by the path, by the rule, or by the name of the model."""
        name = path
        if name is None and self.agent_of is not None:
            prompts = (m for m in fields.messages(1 << 20) if m.role is Role.SYSTEM)
            name = self.agent_of("\n".join(message.content for message in prompts))
        if name is None and len(self.names) == 1 and not self.many:
            name = self.names[0]
        return self.agent(fields.text("model") if name is None else name)

    def agent(self, name: str) -> Speaker:
        """The agent of a name; a new instance of a role joins the episode."""
        if name in self.speakers:
            return self.speakers[name]
        role, sign, number = name.partition("#")
        if role not in self.names or (sign and not (number and role in self.many)):
            known = [f"{n}, {n}#1, {n}#2, ..." if n in self.many else n for n in self.names]
            hint = (
                f"; {role!r} has no instances: add it to `instances`" if role in self.names else ""
            )
            text = f"agent {name[:100]!r} does not exist{hint}; the agents are "
            raise Refusal("unknown", text + ", ".join(known), "model")
        agents = self.env.agents
        self.speakers[name] = Speaker(
            self, agents[name] if not sign else join(self.env, role, name)
        )
        spawner = self._spawner(role, number) if role in self.many else None
        if spawner is not None and spawner != name:
            rollout = self.env.episode.rollouts.get(spawner)
            self.spawned[name] = (spawner, rollout.turns[-1] if rollout else None)
        return self.speakers[name]

    def _spawner(self, role: str, number: str) -> str | None:
        """The agent that spawned an instance; of a role that spawns itself, `NAME#2.1` is spawned
        by `NAME#2`."""
        spawner = self.many[role]
        if spawner != role:
            return spawner
        above = number.rpartition(".")[0]
        return f"{role}#{above}" if above else role

    # -- calls -------------------------------------------------------------------------------------

    async def answered(
        self, key: Any, again: bool, answer: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> Any:
        """The answer of a call; for a repeated call, that of the first attempt. An answer that is
        not awaited any more is no turn to train on."""
        attempts = self._answers.setdefault(key, [])
        if not (again and attempts):
            attempts.append(self.loop.create_task(self._counted(answer())))
        lost = (task for task in attempts if task in self._lost)
        task = next(lost, attempts[-1]) if again else attempts[-1]
        self._lost.discard(task)
        try:
            result, turns = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Refusal("gone", ENDED) from None
            self._lost.add(task)
            task.add_done_callback(self._forgotten)
            raise
        for turn in turns:
            turn.trained = self.env.agents[turn.agent].settings.trained
        return result

    def _forgotten(self, task: asyncio.Task[Answer]) -> None:
        if not task.cancelled() and task.exception() is None and task in self._lost:
            for turn in task.result()[1]:
                turn.trained = False

    async def _counted(self, answer: Coroutine[Any, Any, Answer]) -> Answer:
        self.open += 1
        self.changed.set()
        try:
            return await answer
        except PromptTooLong as error:
            self.failure = self.failure or error
            raise Refusal("long", str(error), "messages") from error
        except Refusal:
            raise
        except MRLMError as error:
            self.failure = self.failure if isinstance(self.failure, ENDS_RUN) else error
            raise Refusal("failed", str(error)) from error
        finally:
            self.open -= 1
            self.changed.set()

    def close(self) -> None:
        """Refuse further calls, and cancel those in progress."""
        for attempts in self._answers.values():
            for task in attempts:
                task.cancel()

    # -- rewards -----------------------------------------------------------------------------------

    def reward(self, amount: Any, agent: str | None = None, turn: int | str | None = None) -> None:
        """Note a reward for an agent's turn (its last one, its number or the id of a response), or
        for the team."""
        where = f"episode {self.env.episode.id!r}, reward"
        value = validated_reward(amount, where)
        if not value.known:
            raise DataError(f"{where}: give a number")
        place = self._turn(agent, turn)
        self.rewards.append((place.agent if place else None, place, value.value))

    def _turn(self, agent: str | None, turn: int | str | None) -> Turn | None:
        if isinstance(turn, str):
            if turn not in self.responses:
                raise DataError(f"reward: no response of this episode has the id {turn!r}")
            return self.responses[turn][0]
        if agent is None:
            if turn is not None:
                raise DataError("reward: the number of a turn needs its agent")
            return None
        rollout = self.env.episode.rollouts.get(agent)
        turns = rollout.turns if rollout else []
        number = len(turns) - 1 if turn is None else turn
        if not 0 <= number < len(turns):
            spoke = ", ".join(self.env.episode.rollouts) or "none"
            raise DataError(
                f"reward: agent {agent!r} has no turn {number if turns else ''}".rstrip()
                + f"; those that have spoken: {spoke}"
            )
        return turns[number]

    def place(self) -> None:
        """After the rewards are booked on last turns: move those of other turns, and credit the
        agent that spawned another with its own reward."""
        for agent, turn, amount in self.rewards:
            last = self.env.episode.rollouts[agent].turns[-1] if agent else None
            if turn is not None and last is not None and turn is not last:
                last.reward -= amount
                turn.reward += amount
        world: Any = self.env.environment
        alone = dict(world.own_rewards)
        for name in reversed(self.spawned):  # the youngest first: all the way up
            spawner, turn = self.spawned[name]
            amount = alone.get(name, 0.0)
            alone[spawner] = alone.get(spawner, 0.0) + amount
            rollout = self.env.episode.rollouts.get(spawner)
            turn = turn or (rollout.turns[0] if rollout else None)
            if turn is not None:
                turn.reward += amount
