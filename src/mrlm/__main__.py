"""The command `mrlm`, also as `python -m mrlm`. Ctrl-C while it is loading ends it with one line
and exit code 130."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Load the command line and run it."""
    signal.signal(signal.SIGINT, _leave)
    from mrlm.cli import main as command

    command()


def _leave(number: int, frame: FrameType | None) -> None:
    """Exits at once: nothing has begun yet, so nothing is saved."""
    sys.stderr.write("interrupted; nothing was saved yet\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
