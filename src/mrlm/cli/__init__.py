"""The command line. It reads arguments, calls one function of the library and says how it went;
heavy libraries are loaded by the command that needs them."""

from __future__ import annotations

import importlib
import logging
import sys

import typer

COMMANDS = ("train", "eval", "collect", "info")


class Stderr(logging.Handler):
    """Messages of the library, plainly, on whatever standard error is at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        print(prefix + record.getMessage(), file=sys.stderr, flush=True)


def app() -> typer.Typer:
    """The application with all its commands."""
    found = typer.Typer(
        name="mrlm",
        help="Multi-agent reinforcement learning of language models.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for name in COMMANDS:
        module = importlib.import_module(f"mrlm.cli.{name}")
        found.command(name)(getattr(module, name))
    return found


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the run failed, 2 bad usage or config, 130 interrupted
    after saving."""
    from mrlm.core.errors import MRLMError

    log = logging.getLogger("mrlm")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(Stderr())
    try:
        app()()
    except MRLMError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; what was trained is saved (see --resume)", file=sys.stderr)
        sys.exit(130)
