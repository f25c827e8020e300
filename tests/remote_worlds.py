"""Worlds with arguments that do not travel (functions, instances), for servers in tests: a user's
own functions, named as `module:function`."""

from __future__ import annotations

from mrlm.core.environment import Environment, SimulatedEnvironment
from mrlm.core.types import Message, Observation, Reward


def reward() -> Environment:
    from test_environments import make

    return make("reward")


def rescored() -> Environment:
    from test_environments import make

    return make("rescored")


def difference() -> Environment:
    from test_environments import make

    return make("difference")


class Dice(SimulatedEnvironment):
    """One seat, and no seed: what it draws cannot be drawn again."""

    def reset(self) -> Observation:
        import os

        self.drawn = os.urandom(8).hex()
        return Observation([Message(self.drawn)])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation([Message(self.drawn)], done=True), Reward(float(len(action.content)))
