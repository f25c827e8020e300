"""Helpers of environments that wrap other libraries: check of installation, isolated global
randomness, and validation of numbers and text."""

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
"""Number of characters at the end of a message that are passed to a library."""

PATIENCE = 30.0
"""Time limit for waiting for another episode's call, in seconds."""

MOST_DIGITS = 100

_lock = threading.RLock()
_DIGITS = re.compile(r"\d{101,}")
_SURROGATES = re.compile("[\ud800-\udfff]")


def needed(module: str, extra: str, title: str) -> None:
    """Check that a library is installed, without importing it.

    Args:
        module: module of the library.
        extra: extra of this package that installs it.
        title: name of the environment in errors.

    Raises:
        ConfigError: it is not; the message contains the command for installation.
    """
    if importlib.util.find_spec(module) is None:
        plain = extra.replace("_", "-")
        older = "" if plain == extra else f' (pip before 23.3: "mrlm[{plain}]")'
        raise ConfigError(f'{title} needs the package {module}: pip install "mrlm[{extra}]"{older}')


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
    """A number returned by a library, as a float.

    Raises:
        EpisodeError: it is not a finite number.
    """
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
    text = "" if message is None else message.content[-MOST_TEXT:]
    text = _SURROGATES.sub("?", text).replace("\x00", "?")
    return _DIGITS.sub(lambda found: found[0][:MOST_DIGITS], text)


def called(where: str, function: Callable[[], T]) -> T:
    """The result of a library's function.

    Raises:
        EpisodeError: it raised an error; failed episodes are never trained on.
    """
    try:
        return function()
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{where} failed: {type(error).__name__}: {error}"[:500]) from error
