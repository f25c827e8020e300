"""What worlds of other libraries have in common: whether the library is there, randomness that is
kept apart, and numbers and text that come from outside. It knows no library."""

from __future__ import annotations

import importlib.util
import math
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Message

T = TypeVar("T")

MOST_TEXT = 20_000
"""Characters of a message, from its end, that a library is given."""

PATIENCE = 30.0
"""Seconds to wait for another episode's call."""

MOST_DIGITS = 100

_lock = threading.RLock()
_DIGITS = re.compile(r"\d{101,}")
_SURROGATES = re.compile("[\ud800-\udfff]")


def needed(module: str, extra: str, title: str) -> None:
    """Check that a library is installed, without importing it.

    Args:
        module: what would be imported.
        extra: which extra of this package brings it.
        title: how the error calls the world.

    Raises:
        ConfigError: it is not; the message says what to install.
    """
    if importlib.util.find_spec(module) is None:
        plain = extra.replace("_", "-")
        older = "" if plain == extra else f' (pip before 23.3: "mrlm[{plain}]")'
        raise ConfigError(f'{title} needs the package {module}: pip install "mrlm[{extra}]"{older}')


class Chance:
    """The global generators of `random` and numpy as one episode sees them. Libraries that draw
    from them are called inside `held`, one at a time; outside, nothing is touched.

    Args:
        key: what everything that is drawn follows from.
    """

    def __init__(self, key: str) -> None:
        draws = random.Random(key)
        self.python: Any = draws.getstate()
        self.numpy: Any = np.random.RandomState(draws.getrandbits(32)).get_state()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it is held, what is drawn globally is drawn from this episode's generators."""
        if not _lock.acquire(timeout=PATIENCE):
            raise EpisodeError(
                f"a call of a library has not come back for {PATIENCE:g} s; no other can begin"
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
    """A seed that follows from `parts`, for a library that wants a number."""
    return random.Random("/".join(map(str, parts))).getrandbits(bits)


def finite(value: Any, where: str) -> float:
    """A number that a library gave, as a float.

    Raises:
        EpisodeError: it is no finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EpisodeError(f"{where} gave {value!r}, which is no number") from error
    if not math.isfinite(number):
        raise EpisodeError(f"{where} gave {value!r}, which is no finite number")
    return number


def said(message: Message | None) -> str:
    """What an agent said, as a library may take it: its end, without characters that cannot be
    written and numbers that nobody could mean."""
    text = "" if message is None else message.content[-MOST_TEXT:]
    text = _SURROGATES.sub("?", text).replace("\x00", "?")
    return _DIGITS.sub(lambda found: found[0][:MOST_DIGITS], text)


def called(where: str, function: Callable[[], T]) -> T:
    """What a library's function gives.

    Raises:
        EpisodeError: it raised; an episode that failed is never learned from.
    """
    try:
        return function()
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{where} failed: {type(error).__name__}: {error}"[:500]) from error
