"""The limits within which a chat template is rendered: its time, and one class for its errors."""

import ctypes
import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mrlm.core.errors import ChatTemplateError, ConfigError

SECONDS = 5.0
"""CPU time that one rendering may take; templates take milliseconds, loops in loops for ever."""
_INTERVAL = 0.25
IDLE = 40
"""Intervals without a rendering after which the thread ends."""


class _TooLongError(ConfigError):
    """Raised in the thread of a rendering that takes too long."""

    def __str__(self) -> str:
        return f"the chat template did not end within {SECONDS:g} s; its loops grow too fast"


def _clock(thread: int) -> float:
    """Seconds of a thread on its processor, where the system counts them."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


class _Watch:
    """A thread that ends renderings which take too long. It runs while there are any.

    A rendering takes no lock: the thread that removes its number from `_running`, which is one step
    of the interpreter, decides how it ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._running: dict[int, int] = {}
        self._thread: threading.Thread | None = None

    def begin(self) -> int:
        """Watch a rendering in this thread; returns its number."""
        number = next(self._numbers)
        self._running[number] = threading.get_ident()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, daemon=True, name="templates")
                    self._thread.start()
        return number

    def end(self, number: int) -> None:
        """Watch the rendering no longer; an exception that was sent to this thread is withdrawn."""
        if self._running.pop(number, None) is None:  # the watching thread looks at it
            with self._lock:
                if self._running.pop(number, None) is None:
                    _raise_in(threading.get_ident(), None)

    def _run(self) -> None:
        idle, limits = 0, dict[int, float]()
        while idle < IDLE or not self._stopped():
            time.sleep(_INTERVAL)
            running = self._running.copy()
            limits = {number: limits[number] for number in limits.keys() & running.keys()}
            for number, thread in running.items():
                self._look(number, thread, limits)
            idle = 0 if running else idle + 1

    def _look(self, number: int, thread: int, limits: dict[int, float]) -> None:
        """End a rendering whose thread's clock is beyond its limit. It does not end by itself, nor
        does its thread, while its number is removed."""
        with self._lock:
            if self._running.pop(number, None) is None:
                return
            now = _clock(thread)  # read here: most renderings end before
            if now > limits.setdefault(number, now + SECONDS):
                _raise_in(thread, _TooLongError)
            else:
                self._running[number] = thread

    def _stopped(self) -> bool:
        """Whether this thread is given up; not if a rendering began in the meantime."""
        with self._lock:
            own, self._thread = self._thread, None
            if self._running:
                self._thread = own
            return self._thread is None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    what = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.__init__)


class Rendering:
    """Context that renders a template: whatever it raises is a `TemplateError` of printable text.

    Raises:
        ChatTemplateError: it takes too long.
        TemplateError: it refuses the conversation, or fails.
    """

    __slots__ = ("_number",)

    def __enter__(self) -> None:
        self._number = _watch.begin()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        _watch.end(self._number)
        if isinstance(error, TemplateError):
            if error.message:
                error.args = (escaped(error.message), *error.args[1:])
        elif isinstance(error, _TooLongError):
            raise ChatTemplateError(str(error)) from None
        elif isinstance(error, Exception) and not isinstance(error, ChatTemplateError):
            raise TemplateError(escaped(f"{type(error).__name__}: {error}")[:500]) from error


def escaped(text: Any) -> str:
    """A text without characters that steer a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


def unusable(reason: str) -> str:
    """The message about a template whose assistant tokens are not known."""
    return (
        f"the chat template does not identify the assistant's tokens: {reason}. Put "
        "{% generation %} ... {% endgeneration %} around the assistant's content in "
        "tokenizer.chat_template, or use a template whose prefixes are stable"
    )


def place_of(tokenizer: Any) -> str:
    """The source of the template, for messages."""
    folder = Path(str(getattr(tokenizer, "name_or_path", "")))
    names = ("chat_template.jinja", "tokenizer_config.json")
    files = [folder / name for name in names if (folder / name).is_file()]
    return f"chat template {str(files[0])!r}" if files else "the chat template"
