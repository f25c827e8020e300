"""Readable errors of user code: the exception, and the lines of the user's files in its traceback.
Frames of this library, of installed packages and of Python are left out."""

import re
import sysconfig
import traceback
from collections.abc import Hashable, Iterator
from pathlib import Path
from traceback import FrameSummary
from types import FrameType, TracebackType

from mrlm.core.errors import MRLMError, TrainingError

LIBRARY = str(Path(__file__).resolve().parents[1])
INSTALLED = ("site-packages", "dist-packages")
PYTHON: tuple[str, ...] = tuple(
    str(Path(folder)) for folder in map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts"))
)
TYPED = ("<stdin>", "<string>", "<ipython", "<console>")
MOST_FRAMES = 8
"""Maximum number of frames; of more (a recursion) the first and the last are shown."""
LONGEST = 2000
"""Maximum number of characters of an exception's text."""
MOST_CAUSES = 5


def explain(error: BaseException) -> str:
    """An error and its causes with the user's frames; several lines, of which the first is the
    error. Without frames of the user's files, an unexpected one is shown with its innermost frame.

    Examples:
        KeyError: 'question'
          File "my_environment.py", line 12, in reset
            return Observation([Message(task.info["question"])])
    """
    text = title(error)
    for number, cause in enumerate(_chain(error)):
        block = _block(cause)
        if not block or block in text:
            continue
        if number and repr(cause) not in text and title(cause) not in text:
            text += f"\ncaused by {title(cause)}"
        text += f"\n{block}"
    if not is_users(error) and not isinstance(error, MRLMError):
        last = traceback.extract_tb(error.__traceback__, limit=-1)
        text += "".join(f"\n{line.rstrip()}" for line in last.format())
    return text


def title(error: BaseException) -> str:
    """An exception without its frames: the message of an error of this library, else the type and
    the message."""
    if isinstance(error, MRLMError):
        return _clipped("\n".join([str(error), *getattr(error, "__notes__", ())]))
    return _clipped("".join(traceback.format_exception_only(error)).strip())


def out_of_memory(error: BaseException) -> TrainingError | None:
    """The error of a process that the host gives no more memory, in one line; `None` for others."""
    text = str(error)
    refused = "DefaultCPUAllocator" in text or "Cannot allocate memory" in text
    if not refused and not isinstance(error, MemoryError):
        return None
    size = re.search(r"allocate (\d+) bytes", text)
    amount = f" (it asked for {int(size[1]) / 2**30:.1f} GiB at once)" if size else ""
    return TrainingError(
        f"the host gives this process no more memory{amount}: free some or raise its limit "
        "(`ulimit -v`), or take a smaller model, fewer or shorter answers; `mrlm plan` shows what "
        "a run takes"
    )


def whole(error: BaseException) -> str:
    """The whole traceback, as Python prints it."""
    return "".join(traceback.format_exception(error)).rstrip()


def is_users(error: BaseException) -> bool:
    """Whether user code is involved in an error."""
    return any(_block(cause) for cause in _chain(error))


def origin(error: BaseException) -> Hashable:
    """The type of an exception and its origin (file, line): equal for identical failures."""
    last = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), limit=-1, lookup_lines=False
    )
    file, line = (last[0].filename, last[0].lineno) if last else (None, None)
    return type(error), file, line


def user_frames(trace: TracebackType | None) -> list[FrameSummary]:
    """The frames of the user's files called by this library; of a traceback without the library,
    all frames of the user's files."""
    frames = list(traceback.walk_tb(trace))
    steps = traceback.StackSummary.extract(iter(frames), lookup_lines=False)
    entered = [index for index, step in enumerate(steps) if _is_in(step.filename, LIBRARY)]
    begin = entered[0] if entered else 0
    return [
        step
        for (frame, _), step in zip(frames[begin:], steps[begin:], strict=False)
        if _is_users(step.filename) and not _is_generated(frame)
    ]


def _is_generated(frame: FrameType) -> bool:
    """Whether code without a file is that of a dataclass of this library."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "mrlm"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, the latest first."""
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
    """The user's frames in Python's format; for a file that cannot be parsed, that location."""
    frames = user_frames(error.__traceback__)
    half, more = MOST_FRAMES // 2, len(frames) - MOST_FRAMES
    if more <= 0:
        return "".join(traceback.format_list(frames)).rstrip()
    first, last = traceback.format_list(frames[:half]), traceback.format_list(frames[-half:])
    return "".join([*first, f"  ... {more} more ...\n", *last]).rstrip()


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # no file: interactive user code, or generated by a library
        return file.startswith(TYPED)
    if any(_is_in(file, folder) for folder in (LIBRARY, *PYTHON)):
        return False
    return not any(part in INSTALLED for part in Path(file).parts)


def in_user_code(error: BaseException) -> bool:
    """Whether the frame that raised an error is in the user's files."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and _is_users(frames[-1].f_code.co_filename)


def _is_in(file: str, folder: str) -> bool:
    return file.startswith((folder + "/", folder + "\\"))


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
