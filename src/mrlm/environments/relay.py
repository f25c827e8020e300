"""Relay: agents in a row add numbers, each of which sees its own numbers and the message before;
all are rewarded for the total."""

import random
import re
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise, product
from string import ascii_lowercase
from typing import Literal

from mrlm.core.board import Html, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import RowTasks, agent_names, at_least, is_held_out, whole_number

Style = Literal["short", "full", "question"]
NUMBER = re.compile(r"-?\d+")
Parts = Sequence[Sequence[int]]
"""The numbers of every agent."""


class RelayEnvironment(RowTasks, Environment):
    """An environment in which agents add numbers one after the other. The first agent sees `a+b=`,
    the next one the message before it and its own number, `...+c=`; it sees nothing else. The
    shared reward at the end is 1.0 if the last message is exactly the total (ignoring surrounding
    spaces) and 0.0 otherwise.

    With `terms: [4, 0]` the first agent sees all numbers, and the second one only its message: the
    reasoner and the actor of C3 (arXiv 2603.06859), over sums. `terms: [2, 1, 1]` and `[4, 0, 0]`
    are longer chains.

    The component `correct` is the reward for the total, and `partial` the share of the other
    messages that are the sum so far; `partial_weight` gives it a part of the reward.

    `style: question` is for pretrained models: `What is a + b? Answer with the number only.`, and a
    message counts by its last number.

    Args:
        agents: names of the agents, in the order in which they act; by default `first` and
            `second`, or `agent_1`, `agent_2`, ... if `terms` has other than two numbers.
        max_number: the largest number; the smallest is 0.
        terms: how many numbers each agent sees; the first one sees at least one.
        max_message: number of characters of a message that the next agent sees; the rest is cut
            off.
        style: `short` is the bare sum; `full` explains the task; `question` is a sentence.
        partial_weight: weight of `partial` in the reward, from 0 to 1; the rest is that of
            `correct`.
        seed: another seed gives other numbers for the same task seed.

    Raises:
        ConfigError: names that do not match `terms`, terms that are not at least two whole numbers
            with at most 26 in all, a weight outside 0 to 1, or so few possible sums that none is
            held out.
    """

    reward_range: tuple[float, float] | None = (0.0, 1.0)

    def __init__(
        self,
        agents: Sequence[str] | None = None,
        max_number: int = 9,
        seed: int = 0,
        terms: Sequence[int] = (2, 1),
        max_message: int = 16,
        style: Style = "short",
        partial_weight: float = 0.0,
    ) -> None:
        whole_number(1, max_number=max_number, max_message=max_message)
        at_least(0, 1, partial_weight=partial_weight)
        self.partial_weight = partial_weight
        self.terms: tuple[int, ...] = _terms(terms)
        self._ends = [0, *accumulate(self.terms)]
        count = len(self.terms)
        default = [f"agent_{i + 1}" for i in range(count)] if count != 2 else ("first", "second")
        self.agents: tuple[str, ...] = agent_names(agents or default, count)
        self.max_turns: int | None = count
        self.max_number = max_number
        self.max_message = max_message
        self.style: Style = style
        self.seed = seed
        few = product(range(min(max_number, 3) + 1), repeat=sum(self.terms))
        sides = {is_held_out(self._key(numbers)) for numbers in islice(few, 4096)}
        if len(sides) < 2:
            raise ConfigError(
                f"max_number={max_number} with terms={list(self.terms)} leaves no held-out task, "
                "or no other; raise one of the two"
            )
        self._begin([0] * sum(self.terms))

    def task(self, seed: int, split: Split = "train") -> Task:
        rng = random.Random(f"relay/{self.seed}/{split}/{seed}")
        numbers = first_of(
            split,
            lambda: [rng.randint(0, self.max_number) for _ in range(sum(self.terms))],
            self._key,
        )
        prompt = [Message(self._asked(0, numbers[: self.terms[0]], ""))]
        name = f"relay-{self.seed}-{split}-{seed}"
        info = dict(zip(ascii_lowercase, numbers, strict=False))
        return Task(name, prompt, str(sum(numbers)), seed, info)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        names = ascii_lowercase[: sum(self.terms)]
        if not set(names) <= task.info.keys():
            *most, last = names
            listed = f"{', '.join(most)} and {last}" if most else last
            raise ConfigError(f"relay: task {task.id!r} has no numbers {listed} in its info")
        self._begin([task.info[name] for name in names])
        return self._shown("")

    def step(self, actions: dict[str, Message]) -> StepResult:
        position = len(self._messages)
        agent = self.agents[position]
        text = stated_by(actions, agent)
        if position < len(self.agents) - 1:
            text = " ".join(text.split())[: self.max_message]
            self._messages.append(text)
            return self._shown(text)
        self._messages.append(text)
        right = [
            self._answer(text) == str(total)
            for text, total in zip(self._messages, self._totals, strict=True)
        ]
        components = {"correct": float(right[-1]), "partial": sum(right[:-1]) / (len(right) - 1)}
        weight = self.partial_weight
        value = (1 - weight) * components["correct"] + weight * components["partial"]
        rewards = {agent: Reward(value, dict(components)) for agent in self.agents}
        return StepResult(rewards=rewards, done=True)

    def state(self) -> str:
        parts = []
        for position, numbers in enumerate(self._numbers):
            terms = "".join(f"+{number}" for number in numbers)
            if position == 0:
                parts.append(f"{terms[1:]}={self._messages[0] if self._messages else '?'}")
            elif position < len(self._messages) and position < len(self.agents) - 1:
                parts.append(f"then {terms}={self._messages[position]}")
            else:
                parts.append(f"then {terms}")
        return ", ".join(parts)

    def render(self, agent: str | None = None) -> Html | None:
        """The sums with the answers and the right ones; for an agent its messages suffice."""
        if agent is not None:
            return None
        rows = []
        for position, name in enumerate(self.agents):
            terms = "".join(f"+{number}" for number in self._numbers[position])
            answer = self._messages[position] if position < len(self._messages) else None
            right = str(self._totals[position])
            solved = answer is not None and self._answer(answer) == right
            kind = "dim" if answer is None else "good" if solved else "bad"
            word = {"dim": "", "good": "right", "bad": "wrong"}[kind]
            terms = f"{terms[1:] if position == 0 else terms}="
            text = (answer or "")[: self.max_message]
            rows.append((name, terms, (text, kind), right, (word, kind)))
        return table(rows, ("agent", "sum", "answer", "right answer", ""))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return str(self._totals[self.agents.index(agent)])

    def _answer(self, text: str) -> str:
        """The part of a message that counts."""
        if self.style != "question":
            return text.strip()
        numbers = NUMBER.findall(text.replace(",", ""))
        return numbers[-1] if numbers else ""

    def _begin(self, numbers: Sequence[int]) -> None:
        self._numbers = self._parts(numbers)
        self._totals = [*accumulate(map(sum, self._numbers))]
        self._messages: list[str] = []

    def _parts(self, numbers: Sequence[int]) -> Parts:
        """The numbers of every agent, out of all numbers."""
        return [numbers[start:end] for start, end in pairwise(self._ends)]

    def _key(self, numbers: Sequence[int]) -> str:
        """The same for all orders of an agent's numbers, which are held out together."""
        parts = self._parts(numbers)
        return f"relay {' '.join(str(number) for part in parts for number in sorted(part))}"

    def _shown(self, before: str) -> StepResult:
        position = len(self._messages)
        text = self._asked(position, self._numbers[position], before)
        return StepResult({self.agents[position]: Observation([Message(text)])})

    def _asked(self, position: int, numbers: Sequence[int], before: str) -> str:
        """The prompt of an agent, which sees its numbers and the message before."""
        own_numbers = [str(number) for number in numbers]
        if self.style == "short":
            return "+".join(own_numbers if position == 0 else [before, *own_numbers]) + "="
        if self.style == "question":
            terms = " + ".join(own_numbers if position == 0 else [before, *own_numbers])
            return f"What is {terms}? Answer with the number only."
        lines = [f"You are {self.agents[position]}. {len(self.agents)} agents add numbers in turn."]
        if position:
            lines.append(f"The message of {self.agents[position - 1]}: {before}")
        if own_numbers:
            lines.append(f"Your numbers, which only you see: {', '.join(own_numbers)}")
        if position < len(self.agents) - 1:
            lines.append(
                f"Write a message from which {self.agents[position + 1]} can continue, such as the "
                f"sum so far, in at most {self.max_message} characters."
            )
        else:
            lines.append("Answer with the total of all numbers, as a number only.")
        return "\n".join(lines)


def _terms(values: Sequence[int]) -> tuple[int, ...]:
    terms = tuple(values)
    whole = all(isinstance(term, int) and not isinstance(term, bool) for term in terms)
    if not whole or len(terms) < 2 or min(terms) < 0 or terms[0] < 1 or sum(terms) > 26:
        raise ConfigError(
            "terms must be at least two whole numbers, at most 26 in all, the first above 0, not "
            f"{values!r}"
        )
    return terms


PLUGIN = RelayEnvironment
