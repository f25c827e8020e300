"""Pairs for self-play on a data set: the answers in its rows against answers sampled from the
policies."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from mrlm.core.chat import Chat
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.rounds import Rounds
from mrlm.core.types import Message, Role, Rollout, SamplingParams, Turn
from mrlm.play.agent import AgentSettings, seed_of, shuffled
from mrlm.play.engine import Batcher, Engine, ExternalCalls, Request
from mrlm.play.sources.rows import RowSource
from mrlm.play.sources.source import EpisodeSource

AT_ONCE = 256
"""Rows that are answered at the same time."""
Said = dict[int, dict[str, list[int]]]
"""row -> agent -> token ids of its answer."""


@dataclass(eq=False, repr=False)
class SelfPlayPairs(EpisodeSource):
    """Pairs of a row's answer (chosen, reward 1) and a sampled one (rejected, reward 0).

    At the start of a round the policies, as they are then, answer the round's rows; the pairs of
    the round (and of the one before) are handed out in random order. Both answers of a pair end
    with the same end token, and are scored at temperature 1.

    Args:
        rows: the data set.
        settings_of: the agents that answer, with their sampling settings.
        engines: policy -> its engine.
        rounds: how long a round is; `take` is called once per iteration.
        seed: of the run.
        timeout: seconds one engine call may take.
        peers: the processes that share the rows; every one gets all answers.
    """

    rows: RowSource
    settings_of: Mapping[str, AgentSettings]
    engines: InitVar[Mapping[str, Engine]]
    rounds: Rounds
    seed: int
    timeout: InitVar[float] = 600.0
    peers: Peers = ALONE
    calls: int = field(default=0, init=False)
    said: dict[int, Said] = field(default_factory=dict, init=False)
    """round -> its answers; of the current round and the one before."""

    rewarded = False

    def __post_init__(self, engines: Mapping[str, Engine], timeout: float) -> None:
        self.batcher: Batcher = Batcher(engines, timeout, ExternalCalls())

    def num_tasks(self) -> int | None:
        return self.rows.num_tasks()

    async def take(self, count: int) -> list[Group]:
        number, done = self.rounds.at(self.calls)
        if number not in self.said:
            await self._begin(number)
        pool = [(of, row) for of in sorted(self.said) for row in self.said[of]]
        first = done * self.rounds.batch
        left = len(pool) * self.rounds.passes - first
        chosen = [pool[self._place(number, first + i, len(pool))] for i in range(min(count, left))]
        self.calls += 1
        return [self._pair(of, row) for of, row in chosen]

    def state_dict(self) -> dict[str, Any]:
        said = [[of, row, by] for of, rows in self.said.items() for row, by in rows.items()]
        return {"calls": self.calls, "said": said, "tokens": self.batcher.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls, self.batcher.tokens = state["calls"], state["tokens"]
        self.said = {}
        for number, row, by in state["said"]:
            self.said.setdefault(number, {})[row] = by

    def _place(self, number: int, index: int, size: int) -> int:
        """The pair at position `index` of a round's pool: a new order in every pass."""
        turn, position = divmod(index, size)
        return int(shuffled((self.seed, "pairs", number, turn), size)[position])

    async def _begin(self, number: int) -> None:
        """Samples the answers of a round; answers older than the round before are dropped."""
        first = number * self.rounds.rows
        places = [self.rows.place(first + i) for i in range(self.rounds.rows)]
        own: Said = {}
        mine = places[self.peers.rank :: self.peers.size]
        for start in range(0, len(mine), AT_ONCE):
            chunk = dict.fromkeys(mine[start : start + AT_ONCE])
            results = await asyncio.gather(*(self._answers(number, row) for row in chunk))
            own |= zip(chunk, results, strict=True)
        everywhere: Said = {}
        for part in await self.peers.exchange(own):
            everywhere |= part
        kept = (number - 1,) if self.rounds.previous else ()
        self.said = {of: self.said[of] for of in kept if of in self.said}
        self.said[number] = {row: everywhere[row] for row in places}

    async def _answers(self, number: int, row: int) -> dict[str, list[int]]:
        """The sampled answers of the agents of a row."""
        rollouts = self.rows.group(row).episodes[0].rollouts
        last = {agent: part.turns[-1] for agent, part in rollouts.items() if part.turns}
        jobs = (self._answer(number, row, self.settings_of[a], turn) for a, turn in last.items())
        return dict(zip(last, await asyncio.gather(*jobs), strict=True))

    async def _answer(
        self, number: int, row: int, settings: AgentSettings, turn: Turn
    ) -> list[int]:
        if len(turn.prompt_ids) > settings.max_prompt_tokens:
            raise ConfigError(
                f"{self.rows.where}, row {row + 1}: a prompt of {len(turn.prompt_ids)} tokens, but "
                f"policy {settings.policy!r} answers {settings.max_prompt_tokens} at most; shorten "
                "the row, or let data.on_long_row=truncate cut its prompt"
            )
        key = (self.seed, "opponent", number, row, settings.name)
        request = Request(settings.policy, turn.prompt_ids, settings.sampling, seed_of(key), key)
        completion = await self.batcher.generate(request)
        return completion.token_ids if completion.finish_reason != "abort" else []

    def _pair(self, number: int, row: int) -> Group:
        """The group of a row: its own answer, and the one that was sampled in a round."""
        group = self.rows.group(row)
        episode = group.episodes[0]
        parts: tuple[dict[str, Rollout], ...] = (dict(episode.rollouts), {})
        for agent, ids in self.said[number][row].items():
            rollout = episode.rollouts[agent]
            real, chat = rollout.turns[-1], self.settings_of[agent].chat
            assert chat is not None
            body, end = parted(chat, real.completion_ids)
            end = end or chat.encode_text("", whole=True)
            turns = [
                replace(real, completion_ids=[*body, *end], reward=1.0),
                replace(real, completion_ids=[*parted(chat, ids)[0], *end], reward=0.0),
            ]
            texts = [real.message.content if real.message else "", chat.decode(ids)]
            for part, turn, text in zip(parts, turns, texts, strict=True):
                turn.sampling = SamplingParams()
                turn.message = Message(text, Role.ASSISTANT, agent=agent)
                messages = [*rollout.messages[:-1], turn.message]
                part[agent] = replace(rollout, turns=[turn], messages=messages)
        stem, task = episode.id[:-1], episode.task
        pair = [
            Episode.recorded(episode.id, task, parts[0], 1.0),
            Episode.recorded(f"{stem}{number + 1}", task, parts[1], 0.0),
        ]
        return Group(pair, group.task_id)


def parted(chat: Chat, ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """The text of an answer and its end token; whitespace that a template adds is dropped."""
    for index in range(len(ids) - 1, -1, -1):
        text = chat.decode(ids[index : index + 1])
        if not text:
            return list(ids[:index]), [ids[index]]
        if text.strip():
            break
    return list(ids), []
