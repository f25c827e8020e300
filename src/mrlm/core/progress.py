"""Progress inside a step: how much of a piece of work is done, for a display that listens; counts
in words, and rows in columns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Listener = Callable[[str, int, int], object]
"""Called with the name of a piece of work, the units that are done, and all of them."""


@dataclass(slots=True)
class _Count:
    what: str
    total: int
    done: int = 0


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_count: ContextVar[_Count | None] = ContextVar("count", default=None)


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 step`, `1,024 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def aligned(rows: Sequence[Sequence[str]], right: bool = False) -> str:
    """Rows of equal length as lines with aligned columns: left, or with `right` the first alone."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'>' if right and at else '<'}{width}" for at, width in enumerate(widths)]
    return "\n".join("  ".join(map(format, row, forms)).rstrip() for row in rows)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A context whose work reports its progress, including tasks and threads started in it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def counting(what: str, total: int) -> Iterator[None]:
    """A context of `total` units of work, each of which calls `advance`."""
    token = _count.set(_Count(what, total))
    advance(0)
    try:
        yield
    finally:
        _count.reset(token)


def advance(number: int = 1) -> None:
    """Reports units of work as done."""
    listener, count = _listener.get(), _count.get()
    if listener is not None and count is not None:
        count.done = min(count.total, count.done + number)
        listener(count.what, count.done, count.total)
