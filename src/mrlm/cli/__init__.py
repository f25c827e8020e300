"""The command line. It reads arguments, calls one function of the library and says how it went;
heavy libraries are loaded by the command that needs them."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from mrlm.core.launcher import end_with_launcher

COMMANDS = ("train", "eval", "collect", "play", "replay", "serve", "data", "plan", "info")


class Stderr(logging.Handler):
    """Messages of the library, plainly, on whatever standard error is at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        _say(prefix + record.getMessage())


class Commands(TyperGroup):
    """Commands whose errors on purpose become one clear message and an exit code; every other
    exception is a bug and keeps its traceback (exit code 1)."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        from mrlm import distributed
        from mrlm.core.errors import MRLMError

        try:
            return super().invoke(ctx)
        except MRLMError as error:
            if distributed.failed():
                _say(f"error: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as interrupt:
            if distributed.is_main():
                _say(f"interrupted{f'; {interrupt}' if str(interrupt) else ''}")
            raise typer.Exit(130) from interrupt


def app() -> typer.Typer:
    """The application with all its commands."""
    found = typer.Typer(
        name="mrlm",
        cls=Commands,
        help="Multi-agent reinforcement learning of language models.",
        epilog="Exit codes: 0 done, 1 the run failed, 2 bad usage or config, 130 interrupted after "
        "saving.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for name in COMMANDS:
        module = importlib.import_module(f"mrlm.cli.{name}")
        found.command(name, cls=getattr(module, "COMMAND_CLASS", None))(getattr(module, name))
    return found


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the run failed, 2 bad usage or config, 130 interrupted
    after saving."""
    end_with_launcher()
    log = logging.getLogger("mrlm")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(Stderr())
    app()()


def _say(text: str) -> None:
    """Print to standard error, where nothing that a model or a file said steers the terminal."""
    from mrlm.console import printable

    print(printable(text), file=sys.stderr, flush=True)
