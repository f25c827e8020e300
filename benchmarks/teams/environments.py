"""Small environments of the comparison: independent parts, evidence in several views, and what a
single agent plays instead of a team."""

from __future__ import annotations

import random
from functools import cache
from string import ascii_uppercase
from typing import Literal

from mrlm.core.environment import Environment, Split
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.rows import RowTasks
from mrlm.environments.wrappers.centralised import CentralisedEnvironment

CASES = 3
"""Values that a part can have, and letters to answer with."""


class Joined(CentralisedEnvironment):
    """One agent plays all roles: the characters of its answer are those of the roles in order, so
    that it samples as many tokens as the team."""

    def parts(self, text: str, speakers: tuple[str, ...]) -> dict[str, str]:
        letters = "".join(text.split())
        return {role: letters[place : place + 1] for place, role in enumerate(speakers)}


class OneStep(RowTasks, Environment):
    """An environment of one joint step, whose state is a short text drawn from the seed."""

    max_turns: int | None = 1

    def draw(self, rng: random.Random) -> str:
        """A state."""
        raise NotImplementedError

    def shown(self, place: int) -> str:
        """The prompt of an agent."""
        raise NotImplementedError

    def rewards(self, answers: list[str]) -> list[float]:
        """Rewards of the agents for their answers."""
        raise NotImplementedError

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{type(self).__name__}-{split}-{seed}"
        self._state = self.draw(random.Random(name))
        return Task(name, [Message(self.shown(0))], seed=seed, info={"state": self._state})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._state = str((task or self.task(seed or 0)).info["state"])
        prompts = (Message(self.shown(place)) for place in range(len(self.agents)))
        return StepResult({a: Observation([p]) for a, p in zip(self.agents, prompts, strict=True)})

    def step(self, actions: dict[str, Message]) -> StepResult:
        answers = [actions[a].content.strip() if a in actions else "" for a in self.agents]
        values = zip(self.agents, self.rewards(answers), strict=True)
        return StepResult(rewards={agent: Reward(value) for agent, value in values}, done=True)

    def state(self) -> str:
        return self._state


class Parts(OneStep):
    """Independent parts: every agent sees the value of its part, and must answer with the letter
    that belongs to it. The letters are fixed, and differ between parts.

    Args:
        count: number of parts.
        share: `own`: an agent is rewarded for its part; `team`: all for the share that is right.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, count: int = 2, share: Literal["own", "team"] = "own") -> None:
        self.agents: tuple[str, ...] = tuple(f"p{place + 1}" for place in range(count))
        self.share: Literal["own", "team"] = share
        self._state = "1" * count

    @staticmethod
    @cache
    def right(place: int, value: str) -> str:
        """The letter for a value of a part."""
        return random.Random(f"part {place}, {value}").choice(ascii_uppercase[:CASES])

    def draw(self, rng: random.Random) -> str:
        return "".join(str(rng.randint(1, CASES)) for _ in self.agents)

    def shown(self, place: int) -> str:
        return f"{self.agents[place]} {self._state[place]}?"

    def rewards(self, answers: list[str]) -> list[float]:
        own = [
            float(answer == self.right(place, value))
            for place, (answer, value) in enumerate(zip(answers, self._state, strict=True))
        ]
        return own if self.share == "own" else [sum(own) / len(own)] * len(own)


class Evidence(OneStep):
    """The world is A or B. An agent sees observations, each of which is right with a probability of
    0.7, and names the world; all are rewarded if most of them are right.

    Args:
        voters: number of agents.
        views: observations of each agent.
    """

    reward_range = (0.0, 1.0)
    accuracy = 0.7

    def __init__(self, voters: int = 3, views: int = 1) -> None:
        self.agents: tuple[str, ...] = tuple(f"v{place + 1}" for place in range(voters))
        self.views = views
        self._state = "A" * (1 + voters * views)

    def draw(self, rng: random.Random) -> str:
        world = rng.choice("AB")
        other = {"A": "B", "B": "A"}[world]
        seen = (rng.random() < self.accuracy for _ in range(len(self.agents) * self.views))
        return world + "".join(world if right else other for right in seen)

    def chance(self, task: Task) -> float:
        """Probability of a task's state."""
        world, *seen = str(task.info["state"])
        right = seen.count(world)
        return 0.5 * self.accuracy**right * (1 - self.accuracy) ** (len(seen) - right)

    def shown(self, place: int) -> str:
        first = 1 + place * self.views
        return f"{' '.join(self._state[first : first + self.views])}?"

    def rewards(self, answers: list[str]) -> list[float]:
        right = sum(answer == self._state[0] for answer in answers)
        return [float(2 * right > len(answers))] * len(answers)


class Guess(OneStep):
    """One agent names a state of the signalling game.

    Args:
        states: number of states.
        sees: whether it sees the state.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, states: int = 3, sees: bool = False) -> None:
        self.agents: tuple[str, ...] = ("one",)
        self.states: tuple[str, ...] = tuple(str(place + 1) for place in range(states))
        self.sees = sees
        self._state = "1"

    def draw(self, rng: random.Random) -> str:
        return rng.choice(self.states)

    def shown(self, place: int) -> str:
        return f"state {self._state if self.sees else '?'}: {' '.join(self.states)}?"

    def rewards(self, answers: list[str]) -> list[float]:
        return [float(answers[0] == self._state)]
