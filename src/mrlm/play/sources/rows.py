"""Groups made of the rows of a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any, Literal

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ChatTemplateError, ConfigError, DataError
from mrlm.core.log import log
from mrlm.core.messages import read_tools, without_nulls
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Message, Role, Rollout, Task, Turn
from mrlm.data.tasks import row_messages
from mrlm.play.agent import AgentSettings, shuffled
from mrlm.play.sources.source import EpisodeSource

PAIR = ("prompt", "chosen", "rejected")
ROW_FORMS: list[tuple[str, ...]] = [("messages",), ("prompt", "completion"), PAIR]
"""Sets of columns that a row may have."""
OnLongRow = Literal["raise", "truncate"]
READ = {
    *("messages", "prompt", "completion", "chosen", "rejected", "agent", "reward"),
    *("system", "tools", "chat_template_kwargs", "loss_mask"),
}
"""Columns that are used."""


@dataclass(eq=False, repr=False)
class Grouping:
    """Makes a group of a row: a preference pair becomes a group of two (chosen first), any other
    row a group of one. A row has `messages`, or `prompt` and `completion`, or `prompt`, `chosen`
    and `rejected`; `agent` names the agent that writes them. A pair of conversations needs no
    `prompt`: it is their common beginning.

    Args:
        settings_of: settings of the trained agents; a row without `agent` is for those that its
            messages name, or for one agent of every trained policy.
        pairs: whether every row must be a preference pair.
        where: name of the data in errors.
        on_long_row: for rows that exceed the context of their policy: `raise`, or `truncate`: cut
            the beginning of the prompt, never an answer.
    """

    settings_of: InitVar[Mapping[str, AgentSettings]]
    pairs: bool = False
    where: str = "the data set"
    on_long_row: OnLongRow = "raise"

    def __post_init__(self, settings_of: Mapping[str, AgentSettings]) -> None:
        self._noted = False
        self._settings = {name: s for name, s in settings_of.items() if s.chat is not None}
        self._trained = [s for s in settings_of.values() if s.trained]
        self._default = list({s.policy: s for s in reversed(self._trained)}.values())

    def check(self, row: Mapping[str, Any], index: int) -> None:
        """Checks row number `index`. Raises `ConfigError`: it lacks a column, or names an unknown
        agent."""
        forms = [PAIR] if self.pairs else ROW_FORMS
        if row.get("prompt") is None and _shared(row):
            forms = [("chosen", "rejected")]
        if not any(all(row.get(name) is not None for name in form) for form in forms):
            needed = ", or ".join(" and ".join(f"`{name}`" for name in form) for form in forms)
            raise ConfigError(
                f"{self.where}, row {index + 1}: it needs {needed}; it has {', '.join(row)} "
                "(columns can be renamed with data.columns)"
            )
        agent = row.get("agent")
        if agent is not None and agent not in self._settings:
            names = ", ".join(self._settings)
            raise ConfigError(
                f"{self.where}, row {index + 1}: agent {agent!r} is not one of the agents of this "
                f"run ({names})"
            )

    def group(self, row: Mapping[str, Any], index: int) -> Group:
        """The group of row number `index`.

        Raises:
            ConfigError: a message cannot be read, or is too long.
            ChatTemplateError: a template leaves out a message or a call, or does not identify the
                assistant's tokens.
        """
        where = f"{self.where}, row {index + 1}"
        self._note_unused(row, where)
        sides = self._conversations(row, where)
        conversations = [(_with_columns(said, row, where), reward) for said, reward in sides]
        name = f"row-{index}"
        parts: list[dict[str, Rollout]] = [{} for _ in conversations]
        for settings in self._speakers(row, [messages for messages, _ in conversations]):
            assert settings.chat is not None
            views = [settings.view(messages) for messages, _ in conversations]
            who = settings.name, settings.policy, {settings.name}
            try:
                turn_lists = [transcript_turns(settings.chat, view, *who) for view in views]
            except (ChatTemplateError, DataError) as error:
                raise type(error)(f"{where}: {error}") from error
            self._fit(index, settings, turn_lists)
            for part, view, turns, (_, score) in zip(
                parts, views, turn_lists, conversations, strict=True
            ):
                if turns:
                    turns[-1].reward = score
                rollout = Rollout(settings.name, settings.policy, name, turns, view)
                rollout.tail_ids, rollout.rewritten = _tail(settings, view, turns)
                part[settings.name] = rollout
        episodes = [
            Episode.recorded(f"{name}/{side}", Task(name), part, score)
            for side, (part, (_, score)) in enumerate(zip(parts, conversations, strict=True))
        ]
        return Group(episodes, name)

    def _conversations(
        self, row: Mapping[str, Any], where: str
    ) -> list[tuple[list[Message], float]]:
        """The conversations of a row with their rewards."""
        if row.get("messages") is not None and not self.pairs:
            messages = row_messages(row["messages"], f"{where}, column 'messages'")
            return [(messages, float(row.get("reward") or 0.0))]
        value = row.get("prompt")
        prompt = _shared(row) if value is None else row_messages(value, f"{where}, column 'prompt'")
        sides = (("chosen", 1.0), ("rejected", 0.0))
        if row.get("chosen") is None:
            sides = (("completion", 0.0),)
        return [(_answered(prompt, row[name], where), reward) for name, reward in sides]

    def _note_unused(self, row: Mapping[str, Any], where: str) -> None:
        """Names the columns that nothing reads, once."""
        unused = [name for name, value in row.items() if name not in READ and value is not None]
        if unused and not self._noted:
            self._noted = True
            log.warning("%s: not used in training: %s", where, ", ".join(map(str, unused)))

    def _speakers(
        self, row: Mapping[str, Any], sides: Sequence[list[Message]]
    ) -> list[AgentSettings]:
        """The agents whose messages in a row are trained on: the one it names, or the trained ones
        that its messages name, or one agent of every trained policy."""
        if row.get("agent") is not None:
            return [self._settings[row["agent"]]]
        named = {message.agent for messages in sides for message in messages}
        return [settings for settings in self._trained if settings.name in named] or self._default

    def _fit(self, index: int, settings: AgentSettings, sides: Sequence[list[Turn]]) -> None:
        """Shortens what is too long, or refuses it: all sides lose the same tokens, from the
        beginning, and no answer is cut."""
        turns = [turn for side in sides for turn in side]
        whole = max((len(turn.prompt_ids) + len(turn) for turn in turns), default=0)
        limit = settings.max_prompt_tokens + settings.sampling.max_new_tokens
        room = settings.max_prompt_tokens if self.on_long_row == "truncate" else limit
        opening = max((len(side[0].prompt_ids) for side in sides if side), default=0)
        cut = max(whole - limit, opening - room)
        if cut <= 0:
            return
        where = f"{self.where}, row {index + 1}: "
        if self.on_long_row != "truncate":
            raise ConfigError(
                f"{where}{whole} tokens, but policy {settings.policy!r} reads {limit} at most; "
                "shorten the row or drop it, or let data.on_long_row=truncate cut its prompt"
            )
        if cut >= min(len(side[0].prompt_ids) for side in sides if side):
            raise ConfigError(
                f"{where}{whole} tokens, but policy {settings.policy!r} reads {limit} at most, and "
                "cutting the prompt is not enough; shorten the answer or drop the row"
            )
        for turn in turns:
            turn.prompt_ids = turn.prompt_ids[cut:]


@dataclass(eq=False, repr=False)
class RowSource(EpisodeSource):
    """Groups made of the rows of a data set in memory, epoch after epoch; if they are shuffled, in
    a new order in every epoch, which follows from the seed. The last batch of an epoch has the rows
    that are left, so that an epoch visits each row once.

    Raises:
        ConfigError: a row lacks a column or names an unknown agent.
    """

    rows: Sequence[Mapping[str, Any]]
    grouping: Grouping
    seed: int
    shuffle: bool = True

    samples = rewarded = False

    def __post_init__(self) -> None:
        self.where: str = self.grouping.where
        self._taken = 0
        if not self.rows:
            raise ConfigError(f"{self.where} has no rows")
        for index, row in enumerate(self.rows):
            self.grouping.check(row, index)
        self.group(0)

    def num_tasks(self) -> int | None:
        return len(self.rows)

    async def take(self, count: int) -> list[Group]:
        left = len(self.rows) - self._taken % len(self.rows)
        places = [self.place(self._taken + i) for i in range(min(count, left))]
        self._taken += len(places)
        return [self.group(index) for index in places]

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._taken = state["taken"]

    def place(self, index: int) -> int:
        """The row at position `index` of the run, counted over epochs."""
        epoch, position = divmod(index, len(self.rows))
        if not self.shuffle:
            return position
        return int(shuffled((self.seed, "rows", epoch), len(self.rows))[position])

    def group(self, index: int) -> Group:
        return self.grouping.group(self.rows[index], index)


def _tail(
    settings: AgentSettings, view: Sequence[Message], turns: Sequence[Turn]
) -> tuple[list[int], bool]:
    """The tokens of the messages after an agent's last turn, as they are of a played episode, and
    whether the template rewrote the turn instead."""
    assert settings.chat is not None
    if not turns or view[-1].role is Role.ASSISTANT:
        return [], False
    ids = settings.chat.prompt(view).ids
    history = [*turns[-1].prompt_ids, *turns[-1].completion_ids]
    if len(ids) > settings.max_prompt_tokens + settings.sampling.max_new_tokens:
        return [], False
    same = ids[: len(history)] == history
    return ids[len(history) :] if same else [], not same


def _shared(row: Mapping[str, Any]) -> list[Message]:
    """The common beginning of the two conversations of a pair, if each is longer."""
    sides = [row.get(name) for name in ("chosen", "rejected")]
    if not all(isinstance(side, list) for side in sides):
        return []
    first, second = map(row_messages, sides)
    count = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    return first[:count]


def _answered(prompt: list[Message], answer: Any, where: str) -> list[Message]:
    """The prompt with the answer after it, as one conversation of which only the answer is trained
    on. A prompt that ends with the beginning of the assistant's message is continued."""
    if isinstance(answer, str):
        messages = [Message(answer, Role.ASSISTANT)]
    else:
        messages = row_messages(answer, f"{where}, its answer")
        if messages[: len(prompt)] == prompt:
            messages = messages[len(prompt) :]
    context = [replace(m, weight=0.0) if m.role is Role.ASSISTANT else m for m in prompt]
    if not (messages and context and context[-1].role is messages[0].role is Role.ASSISTANT):
        return [*context, *messages]
    begun, first = prompt[-1], messages[0]
    whole = replace(
        first,
        content=begun.content + first.content,
        metadata={**first.metadata, "prefill": len(begun.content)},
        agent=first.agent or begun.agent,
        reasoning=begun.reasoning or first.reasoning,
    )
    return [*context[:-1], whole, *messages[1:]]


def _with_columns(messages: list[Message], row: Mapping[str, Any], where: str) -> list[Message]:
    """A conversation with what other columns of its row say about it: the system message, tools and
    variables for the chat template (in the first message's metadata), and what is trained on."""
    system, mask = row.get("system"), row.get("loss_mask")
    if mask is not None:
        if not isinstance(mask, Sequence) or len(mask) != len(messages):
            raise DataError(
                f"{where}: loss_mask must be a list with an entry for each message, not {mask!r}"
            )
        pairs = zip(messages, mask, strict=True)
        messages = [replace(m, weight=m.weight if flag else 0.0) for m, flag in pairs]
    if system:
        if not isinstance(system, str) or messages[0].role is Role.SYSTEM:
            raise DataError(f"{where}: column 'system' must be text, beside no system message")
        messages = [Message(system, Role.SYSTEM), *messages]
    more: dict[str, Any] = {}
    if row.get("tools"):
        more["tools"] = read_tools(row["tools"], where)
    if row.get("chat_template_kwargs"):
        more["template_kwargs"] = without_nulls(row["chat_template_kwargs"])
    if more:
        messages = [replace(messages[0], metadata={**messages[0].metadata, **more}), *messages[1:]]
    return messages
