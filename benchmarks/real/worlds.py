"""The tasks that the library has no environment for: sums with a fixed list of rows, a word that
one agent describes and another guesses, two texts of different lengths, short functions of MBPP."""

from __future__ import annotations

import random
import re
from typing import Any

from mrlm.core.environment import Environment, Split
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import read_rows
from mrlm.environments.math import MathReasoningEnvironment
from mrlm.environments.programs.code import CodeExecutionEnvironment

WRITTEN = """\
cat: It purrs and chases mice; dog: It barks at strangers; cow: It says moo;
fish: It swims with fins; apple: A round red fruit; banana: A long yellow fruit;
moon: It shines at night; sun: The light of the day; rain: It falls from clouds;
car: It drives on a road; train: It runs on rails; ship: It sails on the sea;
book: It has pages to read; pen: It writes with ink; chair: A seat with four legs;
bread: It is baked from flour; milk: A white drink; shoe: It is on your foot;
clock: It shows the time; tree: It has leaves and wood; flower: It blooms in spring;
king: He wears a crown; doctor: She treats sick people; river: Water that flows"""
PARTS = (entry.partition(": ") for entry in WRITTEN.split(";"))
HINTS: dict[str, str] = {word.strip(): hint for word, _, hint in PARTS}
"""Word -> the hint of the expert."""
OPTIONS = 4


class Sums(MathReasoningEnvironment):
    """`math` with sums of numbers of two digits: 400 rows to train on, 64 held out.

    Args:
        numbers: of a sum.
    """

    def __init__(self, numbers: int = 2) -> None:
        train, held_out = (self._rows(numbers, *each) for each in ((400, 1), (64, 2)))
        super().__init__(dataset=train, eval_dataset=held_out, instruction="")

    @staticmethod
    def _rows(numbers: int, count: int, seed: int) -> list[dict[str, str]]:
        rng = random.Random(seed)
        drawn = [[rng.randint(10, 99) for _ in range(numbers)] for _ in range(count)]
        return [
            {
                "question": f"What is {' + '.join(map(str, terms))}? Answer with the number only.",
                "answer": str(sum(terms)),
            }
            for terms in drawn
        ]


class Guess(Environment):
    """One agent reads a word and writes a hint; another reads the hint and four words, and names
    one. Both get 1 for the right one, 0.2 for naming one of the four, and -0.3 for a hint that
    contains the word, which is never right."""

    agents = ("describer", "guesser")
    reward_range = (-0.3, 1.2)

    def task(self, seed: int, split: Split = "train") -> Task:
        rng = random.Random(f"guess/{split}/{seed}")
        options = rng.sample(sorted(HINTS), OPTIONS)
        word = rng.choice(options)
        text = f'Give a hint for the word "{word}" without saying it. Use at most five words.'
        info: dict[str, Any] = {"options": options}
        return Task(f"guess-{split}-{seed}", [Message(text)], word, seed, info)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task or self.task(seed or 0)
        return StepResult({"describer": Observation(list(self._task.prompt))})

    def step(self, actions: dict[str, Message]) -> StepResult:
        words: list[str] = self._task.info["options"]
        if "describer" in actions:
            self._hint = actions["describer"].content.strip()
            listed = ", ".join(words)
            text = f"Hint: {self._hint}\nWhich word is meant: {listed}? Answer with one word."
            return StepResult({"guesser": Observation([Message(text)])})
        named = re.findall(r"[a-z]+", actions["guesser"].content.lower())[:1]
        leaked = str(self._task.answer) in self._hint.lower()
        right = named == [self._task.answer] and not leaked
        first = named == words[:1]
        value = float(right) + 0.2 * (named[0] in words if named else 0) - 0.3 * leaked
        parts = {"right": float(right), "leaked": float(leaked), "first": float(first)}
        return StepResult(rewards={a: Reward(value, parts) for a in self.agents}, done=True)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        word = str(self._task.answer)
        return HINTS[word] if agent == "describer" else word


TOPICS = """
cats rivers trains bread winter music bridges bees stars tea horses clocks rain paper salt gold"""


class Lengths(Environment):
    """Two agents write about one topic at once. With r the ratio of the second's number of words to
    the first's, both get max(0, 1 - |r - 2|). Other topics, the words of `Guess`, are held out."""

    agents = ("short", "long")
    reward_range = (0.0, 1.0)
    max_turns = 1

    def task(self, seed: int, split: Split = "train") -> Task:
        topics = TOPICS.split() if split == "train" else sorted(HINTS)
        topic = topics[seed % len(topics)]
        text = f"Write about {topic}."
        return Task(f"lengths-{split}-{seed}", [Message(text)], seed=seed, info={"topic": topic})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        text = (task or self.task(seed or 0)).prompt[0].content
        asked = {agent: [Message(f"{text} {agent.title()}.")] for agent in self.agents}
        return StepResult({agent: Observation(messages) for agent, messages in asked.items()})

    def step(self, actions: dict[str, Message]) -> StepResult:
        short, long = (len(actions[agent].content.split()) for agent in self.agents)
        ratio = long / max(1, short)
        parts = {"ratio": ratio, "short": float(short), "long": float(long)}
        value = max(0.0, 1.0 - abs(ratio - 2.0))
        return StepResult(rewards={a: Reward(value, parts) for a in self.agents}, done=True)


class ShortFunctions(CodeExecutionEnvironment):
    """`code` with the functions of MBPP that have the shortest solutions; every fourth is held out.

    Args:
        count: of functions.
    """

    def __init__(self, count: int = 128) -> None:
        rows = sorted(read_rows("mbpp"), key=lambda row: len(row["code"]))[:count]
        train = [row for place, row in enumerate(rows) if place % 4]
        super().__init__(dataset=train, eval_dataset=rows[::4], max_attempts=1)
