"""Use of the library that loads models: its progress bars and its errors."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quietly() -> Iterator[None]:
    """Disables the progress bars of the loading library."""
    from transformers.utils import logging as hub

    enabled = hub.is_progress_bar_enabled()
    hub.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            hub.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """First line of an error message, or the class name if it is empty."""
    return (str(error).strip().split("\n") or [""])[0] or type(error).__name__
