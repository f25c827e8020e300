"""Errors of the user's own code as a person reads them: the exception, and the lines of the user's
files that it came through. Frames of this library, of installed packages and of Python are left
out."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Hashable, Iterator
from pathlib import Path
from traceback import FrameSummary
from types import TracebackType

from mrlm.core.errors import MRLMError

LIBRARY = str(Path(__file__).resolve().parents[1])
INSTALLED = ("site-packages", "dist-packages")
PYTHON: tuple[str, ...] = tuple(
    str(Path(folder)) for folder in map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts"))
)
TYPED = ("<stdin>", "<string>", "<ipython", "<console>")
MOST_FRAMES = 8
"""More frames than this (a recursion) are shown by the first and the last of them."""
LONGEST = 2000
"""Characters of an exception's own text."""
MOST_CAUSES = 5


def explain(error: BaseException) -> str:
    """An error with the user's frames, of its causes too; several lines, the first of which says
    what happened. Where no file of the user's had a part in it, an error that was not raised on
    purpose has its innermost frame.

    Example:
        KeyError: 'question'
          File "my_environment.py", line 12, in reset
            return Observation([Message(task.info["question"])])
    """
    text = title(error)
    for number, each in enumerate(_chain(error)):
        block = _block(each)
        if not block or block in text:
            continue
        if number and repr(each) not in text and title(each) not in text:
            text += f"\ncaused by {title(each)}"
        text += f"\n{block}"
    if not is_users(error) and not isinstance(error, MRLMError):
        last = traceback.extract_tb(error.__traceback__, limit=-1)
        text += "".join(f"\n{line.rstrip()}" for line in last.format())
    return text


def title(error: BaseException) -> str:
    """An exception without its frames: the message of an error this library raises on purpose, else
    the type and the message."""
    if isinstance(error, MRLMError):
        return _clipped("\n".join([str(error), *getattr(error, "__notes__", ())]))
    return _clipped("".join(traceback.format_exception_only(error)).strip())


def whole(error: BaseException) -> str:
    """The whole traceback, as Python prints it."""
    return "".join(traceback.format_exception(error)).rstrip()


def is_users(error: BaseException) -> bool:
    """Whether code of the user's had a part in an error."""
    return any(_block(each) for each in _chain(error))


def origin(error: BaseException) -> Hashable:
    """The type of an exception and where it was raised (file, line): equal for failures that are
    the same."""
    last = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), limit=-1, lookup_lines=False
    )
    file, line = (last[0].filename, last[0].lineno) if last else (None, None)
    return type(error), file, line


def user_frames(trace: TracebackType | None) -> list[FrameSummary]:
    """The frames of the user's files that were called by this library; of a traceback that never
    enters the library, all of the user's."""
    steps = traceback.StackSummary.extract(traceback.walk_tb(trace), lookup_lines=False)
    entered = [place for place, step in enumerate(steps) if _is_in(step.filename, LIBRARY)]
    return [step for step in steps[entered[0] if entered else 0 :] if _is_users(step.filename)]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it came from, the latest first."""
    current: BaseException | None = error
    seen: list[BaseException] = []
    while current is not None and current not in seen and len(seen) < MOST_CAUSES:
        seen.append(current)
        yield current
        if isinstance(current, BaseExceptionGroup):
            current = current.exceptions[0]
        elif current.__cause__ is not None or current.__suppress_context__:
            current = current.__cause__
        else:
            current = current.__context__


def _block(error: BaseException) -> str:
    """The user's frames as Python writes them; where a file cannot be parsed, that place."""
    frames = user_frames(error.__traceback__)
    half, more = MOST_FRAMES // 2, len(frames) - MOST_FRAMES
    if more <= 0:
        return "".join(traceback.format_list(frames)).rstrip()
    first, last = traceback.format_list(frames[:half]), traceback.format_list(frames[-half:])
    return "".join([*first, f"  ... {more} more ...\n", *last]).rstrip()


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # of no file: the user's if typed, else made by a library
        return file.startswith(TYPED)
    if any(_is_in(file, folder) for folder in (LIBRARY, *PYTHON)):
        return False
    return not any(part in INSTALLED for part in Path(file).parts)


def in_user_code(error: BaseException) -> bool:
    """Whether the frame that raised an error is of the user's files."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _is_users(trace.tb_frame.f_code.co_filename)


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(folder + "/") or file.startswith(folder + "\\")


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
