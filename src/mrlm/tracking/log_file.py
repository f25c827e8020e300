"""`run.log`: the log messages of the library during a run, and the error that ended it."""

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mrlm.core.log import log
from mrlm.core.user_errors import explain
from mrlm.tracking.console import printable

RUN_LOG = "run.log"
_STAMP: re.Pattern[str] = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+: ")


class LogFile(logging.Handler):
    """Appends messages with their times to a file, with `hidden` secrets redacted."""

    def __init__(self, path: Path, hidden: Sequence[str] = ()) -> None:
        super().__init__()
        self.path = path
        self._hidden: list[str] = list(hidden)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        self.write(record.levelname.lower(), record.getMessage())

    def write(self, level: str, text: str) -> None:
        """Write one message. A full disk is reported where metrics are written, not here."""
        for secret in self._hidden:
            text = text.replace(secret, "[secret]")
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with (
            suppress(OSError),
            self.path.open("a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{stamp} {level}: {printable(text)}\n")


def ended_in(folder: Path) -> str | None:
    """The end of the run of a folder: `this run ended in step 1 with ...`, if its last message is
    the error that ended it; that no step has ended, if there is no other trace of one."""
    path = folder / RUN_LOG
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if _STAMP.match(line)]
    steps = folder / "metrics.jsonl"
    rows = steps.read_bytes().splitlines() if steps.is_file() else []
    if not starts or not lines[starts[-1]][20:].startswith("error: "):
        none = "no step of this run has ended: it is in its first one, or was killed there"
        return None if rows else none
    done = max((int(json.loads(row)["step"]) for row in rows[-1:]), default=0)
    text = "\n".join(lines[starts[-1] :])[27:]
    return f"this run ended in step {done + 1} with {text}"


@contextmanager
def logging_to(file: LogFile) -> Iterator[None]:
    """Log messages of the library to `file` inside the block, and the error that leaves it. Where a
    program has no handler, warnings still go to standard error, which a handler would end."""
    added = [file] if log.hasHandlers() or not logging.lastResort else [file, logging.lastResort]
    for handler in added:
        log.addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        file.write("warning", "interrupted")
        raise
    except BaseException as error:
        file.write("error", explain(error))
        raise
    finally:
        for handler in added:
            log.removeHandler(handler)
