"""An OpenEnv server for the tests: a number from 0 to 9 is to be guessed, or a sum to be said as
JSON. `python guessing.py number 8765`."""

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field


class Guess(Action):
    number: int = Field(description="a number from 0 to 9", ge=0, le=9)


class Sum(Action):
    first: int
    second: int
    note: str = ""


class Word(Action):
    word: str


class Told(Observation):
    hint: str = ""
    left: int = 0


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.number, self.left = 0, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        self.number, self.left = random.Random(seed).randrange(10), more.get("tries", 4)
        return Told(hint="guess", left=self.left)

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Told:
        if isinstance(action, Word) and action.word == "crash":
            raise RuntimeError("the game is broken")
        said = action.number if isinstance(action, Guess) else len(str(action))
        if isinstance(action, Sum):
            said = action.first + action.second
        self.left -= 1
        right = said == self.number
        hint = "right" if right else "higher" if said < self.number else "lower"
        return Told(hint=hint, left=self.left, done=right or not self.left, reward=float(right))

    @property
    def state(self) -> State:
        return State(step_count=4 - self.left)


if __name__ == "__main__":
    kind = {"number": Guess, "sum": Sum, "word": Word}[sys.argv[1]]
    app = create_fastapi_app(Game, kind, Told, max_concurrent_envs=int(sys.argv[3]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
