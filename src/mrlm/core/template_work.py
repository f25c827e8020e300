"""The limits within which a chat template is rendered: its time, and one class for its errors."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mrlm.core.errors import ChatTemplateError

SECONDS = 5.0
"""CPU time that one rendering may take; templates take milliseconds, loops in loops for ever."""
_INTERVAL = 0.25


class _TooLongError(ChatTemplateError):
    """Raised in the thread of a rendering that takes too long."""

    def __str__(self) -> str:
        return f"the chat template did not end within {SECONDS:g} s; its loops grow too fast"


def _clock(thread: int) -> float:
    """Seconds of a thread on its processor, where the system counts them."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


class _Watch:
    """A thread that ends renderings which take too long. It runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[int, float | None] = {}
        self._raised: set[int] = set()
        self._thread: threading.Thread | None = None

    def begin(self) -> bool:
        """Watch this thread from now on; false if it is watched already."""
        thread = threading.get_ident()
        with self._lock:
            if thread in self._ends:
                return False
            self._ends[thread] = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="templates")
                self._thread.start()
        return True

    def end(self) -> None:
        """Watch this thread no longer."""
        thread = threading.get_ident()
        with self._lock:  # no exception is sent afterwards, and one that was sent is withdrawn
            self._ends.pop(thread, None)
            if thread in self._raised:
                self._raised.remove(thread)
                _raise_in(thread, None)

    def _run(self) -> None:
        idle = 0
        while idle < 40:
            time.sleep(_INTERVAL)
            with self._lock:
                for thread, end in list(self._ends.items()):
                    if end is None:  # the clock is read here: most renderings end before
                        self._ends[thread] = _clock(thread) + SECONDS
                    elif _clock(thread) > end:
                        del self._ends[thread]
                        self._raised.add(thread)
                        _raise_in(thread, _TooLongError)
                idle = 0 if self._ends else idle + 1
                if idle == 40:
                    self._thread = None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    what = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.__init__)


@contextmanager
def rendering() -> Iterator[None]:
    """Render a template inside: whatever it raises is a `TemplateError`, of printable text.

    Raises:
        ChatTemplateError: it takes too long.
        TemplateError: it refuses the conversation, or fails.
    """
    outermost = _watch.begin()
    try:
        yield
    except (ChatTemplateError, TemplateError) as error:
        if isinstance(error, TemplateError) and error.message:
            error.args = (escaped(error.message), *error.args[1:])
        raise
    except Exception as error:
        text = escaped(f"{type(error).__name__}: {error}")
        raise TemplateError(text[:500]) from error
    finally:
        if outermost:
            _watch.end()


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
