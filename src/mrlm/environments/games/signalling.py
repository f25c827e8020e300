"""Signalling (Lewis games): a sender sees a state, a receiver sees only its signal and must name
the state."""

import random
import re
from collections.abc import Sequence
from string import ascii_uppercase

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.games import Style, Teaches
from mrlm.environments.shared.rows import RowTasks, agent_names, at_least, penalty, whole_number
from mrlm.environments.shared.short_answers import only_word


class SignallingEnvironment(RowTasks, Environment):
    """A signalling game (Lewis 1969, Convention): the sender sees the state, one of N with equal
    probability, and sends one of M signals; the receiver sees nothing but the signal and names a
    state. Both are rewarded with 1 for the right one. Signals have no meaning before training: it
    is a convention of the two agents. An agent without the signal is right in 1/N of the tasks, and
    a team in at most M/N.

    Relays between sender and receiver each see the signal of the agent before, and send one of the
    same signals. With `cost`, every signal but the first one costs all agents. With `alignment` a
    below 1, the sender is rewarded with a if the receiver names the state, and with 1 - a if it
    names the next one (the first one, for the last state), which it prefers if a < 0.5; the others
    are rewarded as before. The code of `expert` maximises the sum of the rewards.

    A signal that cannot be read ends the episode, and every illegal answer costs all agents
    `illegal`. The components are `correct`, `cost`, and `legal` for the agent's own answer.

    Args:
        states: number of states, which are named 1 to N.
        signals: their number, by default that of the states, as letters from `A`; or the signals as
            different words.
        cost: what a signal other than the first one costs, at most `alignment`.
        alignment: common interest of sender and receiver, above 0 and at most 1. Below 1 it
            requires a signal for every state.
        relays: number of relays, `relay_1`, `relay_2`, ...
        agents: names in the order in which they act; by default `sender`, the relays, `receiver`.
        illegal: cost of an illegal answer.
        style: `full` explains the game; `short` is terse, for small models.
        teaches: behaviour of `expert`: the `best` code, or `any` legal answer, which demonstrates
            only the answer format.
        seed: another seed gives other states for the same task seed.
    """

    reward_range: tuple[float, float] | None = (-0.5, 1.0)

    def __init__(
        self,
        states: int = 4,
        signals: int | Sequence[str] | None = None,
        cost: float = 0.0,
        alignment: float = 1.0,
        relays: int = 0,
        agents: Sequence[str] | None = None,
        illegal: float = 0.5,
        style: Style = "full",
        teaches: Teaches = "best",
        seed: int = 0,
    ) -> None:
        whole_number(2, states=states)
        whole_number(0, relays=relays)
        at_least(0, cost=cost)
        self.signals: tuple[str, ...] = _signals(states if signals is None else signals)
        at_least(0, alignment=alignment)
        if not 0 < alignment <= 1 or cost > alignment:
            raise ConfigError(
                f"alignment={alignment!r} must be above 0 and at most 1, and cost={cost!r} at most "
                "alignment"
            )
        if alignment < 1 and len(self.signals) < states:
            raise ConfigError(
                f"alignment={alignment} requires a signal for each of the {states} states, not "
                f"{len(self.signals)} signals"
            )
        default = ("sender", *(f"relay_{i + 1}" for i in range(relays)), "receiver")
        self.agents: tuple[str, ...] = agent_names(agents or default, relays + 2)
        self.states: tuple[str, ...] = tuple(str(i + 1) for i in range(states))
        self.cost: float = cost
        self.alignment: float = alignment
        self.illegal: float = penalty("illegal", illegal)
        self.style: Style = style
        self.teaches: Teaches = teaches
        self.seed: int = seed
        self.max_turns: int | None = len(self.agents)
        self._begin("1", "none")

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"signalling-{self.seed}-{split}-{seed}"
        state = random.Random(name).choice(self.states)
        return Task(name, [Message(self._asked(0, state))], state, seed, {"state": state})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        if task.info.get("state") not in self.states:
            raise ConfigError(
                f"signalling: task {task.id!r} has the state {task.info.get('state')!r}; it must "
                f"be one of {', '.join(self.states)}"
            )
        self._begin(task.info["state"], task.id)
        return self._shown(self._state)

    def step(self, actions: dict[str, Message]) -> StepResult:
        position = len(self._sent)
        agent = self.agents[position]
        named = only_word(stated_by(actions, agent), self._words(position))
        self._sent.append(named)
        if named is None or position == len(self.agents) - 1:
            return StepResult(rewards=self._rewards(), done=True)
        return self._shown(named)

    def state(self) -> str:
        return f"state {self._state}, signals: {' '.join(map(str, self._sent)) or 'none'}"

    def render(self, agent: str | None = None) -> Html | None:
        """The state and all messages; an agent sees its own and the one before."""
        rows = []
        for position, name in enumerate(self.agents[: len(self._sent)]):
            if agent in (None, name):
                seen = (self._state, *self._sent)[position] or "?"
                answer = self._sent[position]
                rows.append((name, seen, (answer or "?", "move" if answer else "bad")))
        state = self._state if agent in (None, self.agents[0]) else "hidden"
        drawn = table(rows, ("agent", "sees", "answers")) if rows else ""
        return stacked(f"state: {state}, of {len(self.states)}", drawn)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        position = self.agents.index(agent)
        if position != len(self._sent):
            return None
        if self.teaches == "any":
            return random.Random(f"{self._name}/{position}").choice(self._words(position))
        before = self._sent[-1] if self._sent else None
        index = self.states.index(self._state) if before is None else self.signals.index(before)
        if position == len(self.agents) - 1:
            return self.states[min(index, len(self.states) - 1)]
        return self.signals[index if index < len(self.signals) else 0]  # the first one is free

    def _words(self, position: int) -> tuple[str, ...]:
        """The answers that an agent may give."""
        return self.states if position == len(self.agents) - 1 else self.signals

    def _begin(self, state: str, name: str) -> None:
        self._state, self._name = state, name
        self._sent: list[str | None] = []

    def _shown(self, text: str) -> StepResult:
        position = len(self._sent)
        return StepResult(
            {self.agents[position]: Observation([Message(self._asked(position, text))])}
        )

    def _asked(self, position: int, seen: str) -> str:
        """The prompt of an agent, which sees the state or a signal."""
        first, last = position == 0, position == len(self.agents) - 1
        words = self._words(position)
        if self.style == "short":
            return f"{'state' if first else 'signal'} {seen}: {' '.join(words)}?"
        knows = f"The state is {seen}." if first else f"You receive the signal {seen}."
        does = "Name the state" if last else "Send a signal"
        return (
            f"A state is one of 1 to {len(self.states)}; {self.agents[-1]} must name it and sees "
            f"only a signal.\nYou are {self.agents[position]}. {knows} {does}: answer with one of "
            f"{', '.join(words)}."
        )

    def _rewards(self) -> dict[str, Reward]:
        legal = None not in self._sent
        right, named = self.states.index(self._state), self._sent[-1]
        correct = float(legal and named == self._state)
        following = float(legal and named == self.states[(right + 1) % len(self.states)])
        cost = self.cost if self._sent[0] not in (None, self.signals[0]) else 0.0
        rewards = {}
        for position, agent in enumerate(self.agents):
            value = correct
            if position == 0:
                value = self.alignment * correct + (1 - self.alignment) * following
            value -= cost + (0.0 if legal else self.illegal)
            is_legal = position >= len(self._sent) or self._sent[position] is not None
            parts = {"correct": correct, "cost": cost, "legal": float(is_legal)}
            rewards[agent] = Reward(value, parts)
        return rewards


def _signals(signals: int | Sequence[str]) -> tuple[str, ...]:
    """The signals, from their number or as words."""
    if isinstance(signals, int):
        whole_number(1, signals=signals)
        words = tuple(ascii_uppercase[:signals])
        if signals > len(words):
            raise ConfigError(
                f"signals={signals}: there are {len(words)} letters; name the signals"
            )
        return words
    words = tuple(signals)
    plain = not isinstance(signals, str) and all(
        isinstance(word, str) and re.fullmatch(r"\w+", word) for word in words
    )
    if not plain or not words or len({word.casefold() for word in words}) < len(words):
        raise ConfigError(
            f"signals must be a number or different words of letters and digits, not {signals!r}"
        )
    return words


PLUGIN = SignallingEnvironment
