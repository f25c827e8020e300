"""The command line in this process, for tests of commands."""

import logging
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from mrlm import cli


class Done(NamedTuple):
    """What a command or a process came to."""

    code: int
    out: str
    err: str


Mrlm = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Mrlm]:
    """The entry point, in this process."""
    log = logging.getLogger("mrlm")
    level, handlers = log.level, list(log.handlers)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["mrlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Done(code or 0, out, err)

    yield call
    log.setLevel(level)
    log.handlers[:] = handlers
