"""The command in one process, and what it refuses."""

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from mrlm.cli import main

CONFIG: dict[str, Any] = {
    "experiment_name": "bad",
    "output_dir": "run",
    "model": {"model_name_or_path": "mrlm/tiny"},
    "environments": [{"env_type": "math"}],
    "training": {"num_iterations": 1, "batch_size": 2, "report_to": "none"},
    "generation": {"max_new_tokens": 2},
}
GRPO = {"grpo": {"group_size": 2}}
PLAY = {**CONFIG, **GRPO}


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def mrlm(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Command]:
    """The command `mrlm` in this process."""
    log = logging.getLogger("mrlm")
    handlers, level = list(log.handlers), log.level

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["mrlm", *arguments])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as exit:
            code = exit.code or 0
        return Said(code, *capsys.readouterr())

    yield call
    log.handlers[:] = handlers
    log.setLevel(level)


def write(data: Any, name: str = "config.yaml") -> str:
    Path(name).write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return name


def earlier_run() -> None:
    """A run folder that is worth something."""
    Path("run/final").mkdir(parents=True)
    Path("run/final/model.safetensors").write_bytes(b"weeks of work")
    write({**PLAY, "output_dir": "run"}, "run/config.yaml")


def tree() -> dict[str, bytes | None]:
    """Everything below the working folder: files with their bytes, folders with nothing."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(Path().rglob("*"))
    }


def refused(mrlm: Command, arguments: list[str], *said: str) -> str:
    """One message, exit code 2, and every file as it was."""
    before = tree()
    code, out, err = mrlm(*arguments)
    assert code == 2, (out, err)
    assert "Traceback" not in err + out
    assert err.count("error: ") == 1, err
    message = err[err.index("error: ") :]
    for part in said:
        assert part in message, message
    assert tree() == before, "files were made, moved or changed"
    return message


def copied_model(tiny_path: str, name: str, without: tuple[str, ...] = ()) -> Path:
    return Path(shutil.copytree(tiny_path, name, ignore=shutil.ignore_patterns(*without)))
