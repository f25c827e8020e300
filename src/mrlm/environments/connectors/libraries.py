"""Base classes of environments that wrap those of other libraries: check of installation, isolated
global randomness, validation of numbers and text, and copies by replay."""

import copy
import importlib.util
import math
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import numpy as np

from mrlm.core import registry
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Message, Task
from mrlm.environments.shared.rows import whole_number

P = ParamSpec("P")
T = TypeVar("T")

MOST_TEXT = 20_000
"""Number of characters at the end of a message that are passed to a library."""

PATIENCE = 30.0
"""Time limit for waiting for another episode's call, in seconds."""

MOST_DIGITS = 100

_lock = threading.RLock()
_DIGITS = re.compile(r"\d{101,}")
_SURROGATES = re.compile("[\ud800-\udfff]")


def needed(module: str) -> None:
    """Check that the library of an environment is installed, without importing it. The extra of
    this package that installs it has its name. Raises `ConfigError`: it is not; the message
    contains the command for installation."""
    if importlib.util.find_spec(module) is None:
        plain = module.replace("_", "-")
        older = "" if plain == module else f' (pip before 23.3: "mrlm[{plain}]")'
        raise ConfigError(
            f"environment {module} requires the package {module}: "
            f'pip install "mrlm[{module}]"{older}'
        )


class Chance:
    """The state of the global generators of `random` and numpy for one episode. Libraries that draw
    from them are called inside `held`, one at a time; outside, the generators are unchanged.

    Args:
        key: seed of the generators.
    """

    def __init__(self, key: str) -> None:
        draws = random.Random(key)
        self.python: Any = draws.getstate()
        self.numpy: Any = np.random.RandomState(draws.getrandbits(32)).get_state()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which the global generators are those of this episode."""
        if not _lock.acquire(timeout=PATIENCE):
            raise EpisodeError(
                f"a library call of another episode has not returned for {PATIENCE:g} s"
            )
        try:
            before = random.getstate(), np.random.get_state()
            random.setstate(self.python)
            np.random.set_state(self.numpy)
            try:
                yield
            finally:
                self.python, self.numpy = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
        finally:
            _lock.release()


def seed_of(*parts: Any, bits: int = 31) -> int:
    """A seed derived from `parts`, for a library that requires a number."""
    return random.Random("/".join(map(str, parts))).getrandbits(bits)


def finite(value: Any, where: str) -> float:
    """A number returned by a library, as a float. Raises `EpisodeError`: it is not a finite
    number."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EpisodeError(f"{where} returned {value!r}, which is not a number") from error
    if not math.isfinite(number):
        raise EpisodeError(f"{where} returned {value!r}, which is not a finite number")
    return number


def said(message: Message | None) -> str:
    """An agent's message in a form safe for a library: its end, without unencodable characters and
    excessively long numbers."""
    text = stated_text(message)[-MOST_TEXT:]
    text = _SURROGATES.sub("?", text).replace("\x00", "?")
    return _DIGITS.sub(lambda match: match[0][:MOST_DIGITS], text)


def called(where: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a library's function. Raises `EpisodeError`: it raised an error; failed
    episodes are never trained on."""
    try:
        return function(*args, **kwargs)
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{where} failed: {type(error).__name__}: {error}"[:500]) from error


def by_prefix(table: Mapping[str, str], name: str) -> str:
    """The entry of a table whose key a name begins with; empty if there is none."""
    return next((entry for start, entry in table.items() if name.startswith(start)), "")


class LibraryEnvironment(Environment):
    """An environment around one of another library, which is `_env` during an episode. Its random
    draws are determined by the task: training tasks have even seeds, held-out ones odd seeds.
    Copies replay its actions (`_done`), as many environments do not copy their state. Raises
    `ConfigError` if the library is not installed."""

    library: ClassVar[str]
    replayed: ClassVar[bool] = True
    """Whether copies replay actions; else they copy everything."""
    opening: str = ""
    """Prompt of every task."""
    _drawing: str | Callable[..., str] | None = None

    def __init__(
        self, id: str, options: Mapping[str, Any] | None, seed: int, max_turns: int | None
    ) -> None:
        needed(self.library)
        whole_number(1, max_turns=1 if max_turns is None else max_turns)
        self.max_turns: int | None = max_turns
        self.id = id
        self.options: dict[str, Any] = dict(options or {})
        self.seed = seed
        self._where: str = f"{self.library} {id}"
        self._series: str = id  # the names of tasks begin with it
        self._env: Any = None
        self._steps = 0
        self._text = ""
        """The text of the last observation."""

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{self._series}-{self.seed}-{split}-{seed}"
        drawn = 2 * seed_of(name, bits=30) + (split == "eval")
        return Task(name, [Message(self.opening)], seed=seed, info={"seed": drawn})

    def state(self) -> str | None:
        return f"{self._text}\nstep {self._steps} of {self.max_turns}"

    def render(self, agent: str | None = None) -> str | None:
        """The text of the last observation, which the agent's message has, too."""
        return self._text if agent is None else None

    def spawn(self) -> Self:
        fresh = copy.copy(self)
        fresh._env = None
        return fresh

    def _begin(self, task: Task | None, seed: int | None) -> None:
        """Prepare an episode: its seed and its random draws."""
        task = task or self.task(seed or 0)
        self._seed = int(task.info.get("seed", 2 * task.seed))
        self._key = f"{self.library}/{self.id}/{self._seed}"
        self._chance, self._draws = Chance(self._key), random.Random(f"{self._key}/drawn")
        self._steps, self._done = 0, list[Any]()

    @property
    def _out_of_time(self) -> bool:
        return self._steps >= (self.max_turns or 0)

    def _made(self) -> Any:
        """A new environment of the library."""
        raise NotImplementedError

    def _restart(self) -> Any:
        return called(self._where, self._env.reset, seed=self._seed)

    def _repeat(self, action: Any) -> Any:
        return called(self._where, self._env.step, action)

    def _user_text(self, *arguments: Any) -> str:
        """The text that the user's function `render` writes."""
        draw: Any = self._drawing
        function = registry.load("environments", draw) if isinstance(draw, str) else draw
        return called(self._where, lambda: str(function(*arguments)))

    def close(self) -> None:
        if self.replayed and self._env is not None:
            env, self._env = self._env, None
            env.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy.copy(self)
        if not self.replayed:
            memo[id(self)] = twin
            twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        elif self._env is not None:
            twin._draws, twin._done = copy.deepcopy(self._draws), list(self._done)
            twin._env, twin._chance = self._made(), Chance(self._key)
            with twin._chance.held():
                twin._restart()
                for action in self._done:
                    twin._repeat(action)
        return twin
