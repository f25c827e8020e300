"""`mrlm init`: writes an experiment to begin with, from five answers: a config, an environment and
its test. Every answer may be an option, and questions are read from standard input."""

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from mrlm.cli.new import check_name, class_of
from mrlm.core import registry
from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.config import ExperimentConfig

TEXTS = Path(__file__).parent / "examples" / "team"
TINY = "mrlm/tiny"
EXAMPLES = "examples"
"""The answer for questions that are written beside the config: sums of two digits."""
ROWS = "tasks.jsonl"
CONFIG = "config.yaml"
SPECIAL = re.compile(r"the_team|TheTeam|\{(\w+)\}")
"""Parts of the texts that are replaced."""


class InitAnswers(NamedTuple):
    """The answers to the five questions: `data` is a data set, or `examples`; `device` is `cpu`, or
    an accelerator of `mrlm plan`."""

    agents: list[str]
    model: str
    data: str
    workflow: str
    device: str


def init(
    folder: Path = Path("my_team"),
    agents: str | None = None,
    model: str | None = None,
    data: str | None = None,
    workflow: str | None = None,
    device: str | None = None,
    yes: bool = False,
) -> None:
    """Ask five questions, and write a config, an environment and its test."""
    name = folder.resolve().name
    for file in (*_files(name), ROWS):
        if (folder / file).exists():
            raise ConfigError(f"{folder / file} exists already; give another FOLDER")
    check_name(name, f"FOLDER={str(folder)!r}: {name!r}", "my_team")

    def ask(option: str | None, text: str, default: str, check: "Check") -> Any:
        return check(option or default) if option or yes else _asked(text, default, check)

    names = ask(agents, "agents, separated by commas", "solver,reviewer", _agents)
    usual = "chain" if len(names) > 1 else "single_turn"
    workflows = ", ".join(registry.names("workflows"))
    answers = InitAnswers(
        names,
        ask(model, "model (folder or hub id)", TINY, str),
        ask(data, f"data (file, name or hub id; {EXAMPLES}: sums)", EXAMPLES, _data),
        ask(workflow, f"workflow ({workflows})", usual, _workflow),
        ask(device, "device (cpu, h100, a100, ...)", _device_here(), _device),
    )
    with tempfile.TemporaryDirectory(prefix="mrlm-init-") as temporary:  # mistakes leave no files
        _write(Path(temporary), _written(name, answers, Path(temporary)))
        preview = _shown(Path(temporary) / CONFIG, answers.device)
    files = _written(name, answers, folder)
    _write(folder, files)
    print(preview)
    print(_closing(folder, files, answers.device))


# -- questions -------------------------------------------------------------------------------------

Check = Callable[[str], Any]


def _asked(text: str, default: str, check: Check) -> Any:
    """The checked answer to a question: a line of standard input; the default where it is empty or
    the input has ended. On a terminal the question is repeated after a wrong answer."""
    while True:
        print(f"{text} [{default}]: ", end="", flush=True)
        line = sys.stdin.readline()
        if not sys.stdin.isatty():
            print(line.strip() or default, flush=True)
        elif not line:
            raise typer.Abort
        try:
            return check(line.strip() or default)
        except ConfigError as error:
            if not sys.stdin.isatty():
                raise
            print(error)


def _agents(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if not re.fullmatch(r"[A-Za-z]\w*", name)]
    if wrong or len(set(names)) < len(names):
        raise ConfigError(
            f"--agents {text!r}: names must be different, of letters, digits and _, separated by "
            "commas, such as solver,reviewer"
        )
    return names


def _data(text: str) -> str:
    """The name of a data set that can be read; one that may need a network is not read."""
    from mrlm.data.sources import find
    from mrlm.data.tasks import question_of, read_rows

    if text == EXAMPLES or (find(text).preset is not None and not Path(text).exists()):
        return text
    (row, *_) = read_rows(text, required=("answer",), max_rows=1)
    if question_of(row) is None:
        raise ConfigError(
            f"--data {text}: its rows have no question (prompt, question or problem), only "
            f"{', '.join(row)}"
        )
    return text


def _workflow(text: str) -> str:
    workflows = registry.names("workflows")
    if text not in workflows and ":" not in text:
        raise ConfigError(registry.unknown(text, workflows, "--workflow"))
    return text


def _device(text: str) -> str:
    from mrlm.planning.devices import DEVICES

    if text.lower() not in ("cpu", *DEVICES):
        raise ConfigError(registry.unknown(text, ["cpu", *DEVICES], "--device"))
    return text.lower()


def _device_here() -> str:
    from mrlm.planning.devices import device_here

    try:
        return device_here()
    except ConfigError:  # a GPU that the table does not have
        return "h100"


# -- files -----------------------------------------------------------------------------------------


def _files(name: str) -> dict[str, str]:
    """File -> its text, before anything is replaced."""
    texts = {CONFIG: "config", f"{name}.py": "environment", f"test_{name}.py": "test"}
    return {file: _text(text) for file, text in texts.items()}


def _text(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def _written(name: str, answers: InitAnswers, folder: Path) -> dict[str, str]:
    """File -> text of an experiment."""
    several, tiny = len(answers.agents) > 1, answers.model == TINY

    def named(path: str) -> str:
        """A path in the config: relative to it; a name as it is."""
        return json.dumps(os.path.relpath(path, folder) if Path(path).exists() else path)

    section = "  {0}: {{policy: shared, system_prompt: You are the {0}.}}"
    words = {
        "the_team": name,
        "TheTeam": class_of(name),
        "model": named(answers.model),
        "device": "cpu" if answers.device == "cpu" else "auto",
        "data": json.dumps(ROWS) if answers.data == EXAMPLES else named(answers.data),
        "workflow": json.dumps(answers.workflow),
        "agents": "\n".join(map(section.format, answers.agents)),
        "algorithm": "magrpo" if several else "grpo",
        "episodes": "8" if answers.data == EXAMPLES else "32",
        "tokens": ("4" if answers.data == EXAMPLES else "16") if tiny else "256",
    }
    files = _files(name)
    files[CONFIG] = files[CONFIG].replace("{training}", _text("stages" if tiny else "training"))
    for file, text in files.items():
        files[file] = SPECIAL.sub(lambda part: words.get(part[1] or part[0], part[0]), text)
    if answers.data == EXAMPLES:
        pairs = [(a, b) for a in range(10) for b in range(10 - a)]
        rows = [json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in pairs]
        files[ROWS] = "".join(f"{row}\n" for row in rows)
    return files


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error


# -- what is printed -------------------------------------------------------------------------------


def _shown(path: Path, device: str) -> str:
    """The first prompts of an experiment, and the memory that it needs."""
    from mrlm.build.policies import LiveObjects
    from mrlm.build.preview import first_prompts
    from mrlm.build.run import plan_of
    from mrlm.config import load_config
    from mrlm.tracking.console import encodable, is_terminal

    loaded = load_config(path).stage_configs()[-1][1]
    plan = plan_of(loaded, LiveObjects())
    colour = is_terminal() and not os.environ.get("NO_COLOR")
    return encodable("\n".join(["", *first_prompts(plan, colour), "", _memory(loaded, device)]))


def _memory(loaded: "ExperimentConfig", device: str) -> str:
    from mrlm.cli.plan import memory_of

    try:
        return memory_of(loaded, device)
    except ConfigError as error:  # the size of a model that is not here is unknown
        return f"memory: not estimated, {error}"


def _closing(folder: Path, files: dict[str, str], device: str) -> str:
    config = f"--config {shlex.quote(str(folder / CONFIG))}"
    lines = [
        f"\nwrote {', '.join(files)} in {folder}; next:",
        f"  python -m unittest discover -s {shlex.quote(str(folder))}",
        f"  mrlm plan {config} --device {device}",
        f"  mrlm train {config} --steps 3",
        f"  mrlm train {config}",
    ]
    return "\n".join(lines)
