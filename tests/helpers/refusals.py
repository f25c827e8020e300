"""What the command refuses."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from commands import Mrlm

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


def write(data: Any, name: str = "config.yaml") -> str:
    Path(name).write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return name


def earlier_run() -> None:
    """A run folder that is worth something."""
    Path("run/final").mkdir(parents=True)
    Path("run/final/model.safetensors").write_bytes(b"weeks of work")
    write({**PLAY, "output_dir": "run"}, "run/config.yaml")
    write("", "run/metrics.jsonl")


def tree() -> dict[str, bytes | None]:
    """Everything below the working folder: files with their bytes, folders with nothing."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(Path().rglob("*"))
    }


def refused(run: Mrlm, arguments: list[str], *said: str) -> str:
    """One message, exit code 2, and every file as it was."""
    before = tree()
    code, out, err = run(*arguments)
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
