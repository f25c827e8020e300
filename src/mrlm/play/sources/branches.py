"""Branches of a recorded episode: its turns are fed back as they were up to a change, and the rest
is played on. Workflows are coroutines, which cannot be copied, so every branch steps its
environment again from the reset."""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from mrlm.core.environment import Environment, Split
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.types import JSON, Completion, Message, Turn
from mrlm.play.agent import Agent, AgentSettings
from mrlm.play.engine import Key
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec, PlannedTask

TurnPlace = tuple[str, int]
"""(agent, `Turn.index`): a turn of an episode."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A recorded turn.

    Args:
        asked: ids of its prompt; of a policy behind an API the new text that it read.
        completion: the answer.
        when: (joint step, turns taken before it there): concurrent turns have the same.
        trained: whether it was trained on.
    """

    asked: list[int] | str
    completion: Completion
    when: tuple[int, int]
    trained: bool = True


Past = Mapping[TurnPlace, PastTurn]


def past_of(episode: Episode) -> dict[TurnPlace, PastTurn]:
    """The turns of a played episode."""
    return {(turn.agent, turn.index): _past(turn) for turn in episode.turns}


def _past(turn: Turn) -> PastTurn:
    text = "" if turn.message is None else turn.message.content
    ended = cast("Literal['stop', 'length', 'abort']", turn.finish_reason)
    completion = Completion(turn.completion_ids, turn.logprobs or [], text, ended, turn.version)
    asked, when = turn.prompt_ids or turn.read, (turn.step, turn.order)
    return PastTurn(asked, completion, when, turn.trained)


@dataclass(frozen=True, slots=True)
class Script:
    """The changes of a branch; an empty one plays the episode as it was.

    Args:
        number: of the branch: the source of its new random numbers.
        turns: the turns that are changed.
        agents: agents of which all turns are changed.
        how: a changed turn is sampled again, sampled greedily, the `text`, or the message of the
            environment's expert.
        text: see `how`.
        policy: appended to the name of the policy of changed turns, if there is one of that name.
        rest_policy: the same for turns after the first change.
        own_turns: changed turns are sampled with the random numbers of the run, not with new ones.
        own_rest: the same for later turns that are not changed.
        feed: later turns that read the same as in the record are fed back, too.
    """

    number: int = 0
    turns: frozenset[TurnPlace] = frozenset()
    agents: frozenset[str] = frozenset()
    how: Literal["sample", "greedy", "text", "expert"] = "sample"
    text: str = ""
    policy: str = ""
    rest_policy: str = ""
    own_turns: bool = False
    own_rest: bool = True
    feed: bool = True

    def changes(self, place: TurnPlace) -> bool:
        return place in self.turns or place[0] in self.agents

    def start(self, past: Past) -> tuple[int, int] | None:
        """When the first changed turn is taken; `None` if no recorded turn is changed."""
        return min((turn.when for place, turn in past.items() if self.changes(place)), default=None)


@dataclass(eq=False, repr=False)
class BranchAgent(Agent):
    """An agent in a branch.

    Args:
        script: the changes.
        past: the recorded turns of all agents.
        environment: that of the branch.
        calm: turns that are not changed are sampled greedily.
    """

    script: Script
    past: Past
    environment: Environment
    calm: bool

    async def act(self, messages: Sequence[Message], **sampling: object) -> Message:
        self._shown = list(messages)
        return await super().act(messages, **sampling)

    async def _answer(self, turn: Turn, seen: Sequence[Message]) -> tuple[str, JSON]:
        place, script = (self.name, turn.index), self.script
        was, changed = self.past.get(place), script.changes(place)
        same = was is not None and was.asked == (turn.prompt_ids or turn.read)
        if was is not None and not changed:
            if self._settled(was):
                if not same:
                    raise ConfigError(
                        f"episode {self.episode.id!r}: turn {turn.index} of agent {self.name!r} "
                        "read something else than when it was played, before any change; its "
                        "environment is not reproducible, or the run's data have changed"
                    )
                return await self._fed(turn, was)
            if same and (script.feed or self.settings.chat is None):
                return await self._fed(turn, was)
        if changed and script.how in ("text", "expert"):
            text = script.text if script.how == "text" else self._expert()
            if was is not None and same and text == was.completion.text:
                return await self._fed(turn, was)
            return await self._written(turn, text)
        if self.settings.chat is None:
            raise ConfigError(
                f"agent {self.name!r}: policy {turn.policy!r} is behind an API, of which only the "
                "recorded answers are known, and this turn is another one; change a later turn, or "
                "use --message"
            )
        assert self.batcher is not None
        other = turn.policy + (script.policy if changed else script.rest_policy)
        turn.policy = other if other in self.batcher.engines else turn.policy
        greedy = self.calm and (script.own_turns or not changed)
        if greedy or (changed and script.how == "greedy"):
            turn.sampling = replace(turn.sampling, temperature=0.0)
        return await super()._answer(turn, seen)

    def _settled(self, was: PastTurn) -> bool:
        """Whether a recorded turn is before the first change, or concurrent with it."""
        start = self.script.start(self.past)
        return start is not None and was.when <= start

    def _expert(self) -> str:
        text = self.environment.expert(self.place, self._shown)
        if text is None:
            raise ConfigError(
                f"environment {self.episode.environment!r} has no expert for agent {self.name!r}; "
                "compare with 'resample', 'silence' or 'checkpoint:N'"
            )
        return text

    async def _fed(self, turn: Turn, was: PastTurn) -> tuple[str, JSON]:
        """The recorded answer, after all concurrent requests have been made."""
        assert self.batcher is not None
        await self.batcher.linger()
        completion = was.completion
        turn.completion_ids = list(completion.token_ids)
        turn.logprobs = list(completion.logprobs) or None
        turn.version, turn.finish_reason = completion.policy_version, completion.finish_reason
        turn.trained, turn.fed = was.trained, True
        return completion.text, {}

    async def _written(self, turn: Turn, text: str) -> tuple[str, JSON]:
        """A text that is not sampled, as tokens."""
        assert self.batcher is not None
        await self.batcher.linger()
        chat = self.settings.chat
        if chat is not None:
            turn.completion_ids = chat.encode_text(text, whole=True)
        turn.trained, turn.fed = False, True
        return text, {}

    def _key(self, turn: Turn) -> Key:
        branched = self.script.own_rest
        if self.script.changes((self.name, turn.index)):
            branched = self.script.own_turns
        branch = () if branched else (f"branch {self.script.number}",)
        return (*self.key, *branch, self.name, turn.index)


def scripted(
    made: Agent, key: Key, script: Script, past: Past, environment: Environment, calm: bool = False
) -> BranchAgent:
    """An agent that follows a script; the arguments are those of `BranchAgent`."""
    settings, episode, batcher = made.settings, made.episode, made.batcher
    return BranchAgent(settings, episode, batcher, key, script, past, environment, calm)


@dataclass(frozen=True, slots=True)
class EpisodePlace:
    """The place of an episode in its run, from its id."""

    env: EnvironmentSpec
    split: Split
    index: int
    number: int

    @classmethod
    def of(cls, episode: str, environments: Sequence[EnvironmentSpec]) -> "EpisodePlace":
        """Parse an id: split, environment, number of the task, number in the group, branches.
        Raises `ConfigError`: it is not the id of an episode in these environments."""
        split, _, rest = episode.partition("/")
        for env in sorted(environments, key=lambda spec: -len(spec.name)):
            numbers = rest.removeprefix(f"{env.name}/").split("/")
            fits = rest.startswith(f"{env.name}/") and len(numbers) > 1
            if fits and split in ("train", "eval") and (numbers[0] + numbers[1]).isdigit():
                return cls(env, cast("Split", split), int(numbers[0]), int(numbers[1]))
        names = ", ".join(env.name for env in environments) or "none"
        raise ConfigError(
            f"episode {episode!r} was not played in an environment of the run ({names}), so there "
            "is nothing to play on"
        )


@dataclass(eq=False, repr=False)
class Branches(Play):
    """Plays branches of one recorded episode. Arguments after those of `Play` are of the episode.

    Args:
        place: its place in the run.
        past: its turns.
        path: its branches (`Episode.path`).
        answers: its combination of answers, if combinations are played.
        calm: it was played greedily.
        script: the changes of a branch.
    """

    place: EpisodePlace | None = None
    past: Past = field(default_factory=dict)
    path: tuple[int, ...] = ()
    answers: Mapping[str, int] = field(default_factory=dict)
    calm: bool = False
    script: Script = field(default_factory=Script)

    async def branches(self, scripts: Sequence[Script]) -> list[Episode]:
        return list(await asyncio.gather(*map(self._branch, scripts)))

    async def _branch(self, script: Script) -> Episode:
        one, origin = copy.copy(self), self.place
        assert origin is not None
        if not origin.env.template.seeded:
            raise ConfigError(
                f"environment {origin.env.name!r}: its reset takes neither seed nor task, so its "
                "episodes cannot be played again; give its reset a parameter seed"
            )
        one.script, one.follow = script, () if self.answers else self.path
        job = PlannedTask(origin.env, origin.split, origin.index, [self.settings_of])
        key, task = (*self.task_sampler.key(job), origin.number), self.task_sampler.task(job)
        (episode,) = await one._episode(origin.env, task, None, key, self.settings_of)
        episode.greedy = self.calm and origin.split == "train"
        if self.answers:
            episode.answers, episode.path = dict(self.answers), self.path
        return episode

    def _agent(
        self, settings: AgentSettings, episode: Episode, environment: Environment, key: Key
    ) -> Agent:
        made = super()._agent(settings, episode, environment, key)
        branch = self.answers.get(settings.name, 0)
        key = made.fork_key(0, branch) if branch else key
        return scripted(made, key, self.script, self.past, environment, self.calm)
