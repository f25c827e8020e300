"""The command line. It reads arguments, calls one function of the library and reports the result;
heavy libraries are loaded by the command that needs them."""

import importlib
import logging
import pkgutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from mrlm.cli._options import Verbose, Version, with_options
from mrlm.config.trust import is_trusted
from mrlm.core.operating_system import end_with_launcher
from mrlm.core.registry import search

FIRST = (
    *("quickstart", "init", "recipe", "train", "eval", "app", "collect", "play", "replay", "why"),
    *("look", "view", "export", "push", "pull", "serve", "data", "plan", "doctor", "info", "new"),
)
"""The order of the help; commands that are not here come after them, by name."""


class Stderr(logging.Handler):
    """Prints messages of the library, without decoration, to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        _say(prefix + record.getMessage())


class Commands(TyperGroup):
    """Commands whose errors become one clear message and an exit code: errors that this library
    raises on purpose, and errors of the user's own code, with its stack frames. Any other
    exception is a bug and keeps its traceback (exit code 1)."""

    def invoke(self, ctx: Any) -> Any:
        from mrlm import distributed
        from mrlm.core.errors import MRLMError
        from mrlm.core.sync_async import as_failure
        from mrlm.core.user_errors import is_users, out_of_memory

        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # loaded: see `__main__`
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as interrupt:
            exec("")  # Python ends by the signal if text that a library ran was interrupted last
            if distributed.is_main():
                _say(f"interrupted{f'; {interrupt}' if str(interrupt) else ''}")
            raise typer.Exit(130) from interrupt
        except (Exception, SystemExit) as raised:
            # a user's sys.exit() would end as a success
            error = out_of_memory(raised) or as_failure(raised)
            if not isinstance(error, MRLMError) and not is_users(error):
                raise
            if distributed.failed():
                _say(f"error: {_described(error)}")
            code = error.exit_code if isinstance(error, MRLMError) else 1
            raise typer.Exit(code) from error


def _described(error: BaseException) -> str:
    """The text of an error: with the user's frames, or the whole traceback."""
    from mrlm.core.user_errors import explain, is_users, whole

    if logging.getLogger("mrlm").level == logging.DEBUG:
        return f"{explain(error)}\n{whole(error)}"
    more = "\n(--verbose shows the whole traceback)" if is_users(error) else ""
    return explain(error) + more


def commands() -> list[str]:
    """Every command: a file of this folder, with a function of its name."""
    files = {name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")}
    return [*(name for name in FIRST if name in files), *sorted(files.difference(FIRST))]


def command_line() -> typer.Typer:
    """The application with all its commands."""
    application = typer.Typer(
        name="mrlm",
        cls=Commands,
        epilog="Exit codes: 0 done, 1 the run failed, 2 bad usage or config, 130 interrupted after "
        "saving.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @application.callback()
    def options(verbose: Verbose = False, version: Version = False) -> None:
        """Multi-agent reinforcement learning of language models."""

    for name in commands():
        module = importlib.import_module(f"mrlm.cli.{name}")
        command = with_options(name, getattr(module, name))
        application.command(name, cls=vars(module).get("PARSER"))(command)
    return application


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the run failed, 2 bad usage or config, 130 interrupted
    after saving."""
    end_with_launcher()
    if is_trusted(Path.cwd()):
        search(Path.cwd())
    log = logging.getLogger("mrlm")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(Stderr())
    command_line()(prog_name="mrlm")


def _say(text: str) -> None:
    """Prints to standard error, escaped: text of a model or a file cannot steer the terminal."""
    from mrlm.tracking.console import printable

    with suppress(OSError):  # a closed terminal shows nothing, and ends no run
        print(printable(text), file=sys.stderr, flush=True)
