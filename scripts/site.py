"""Builds the documentation's site from the pages of `docs/`, without a network: the reference of
Python names and commands and the notebooks of the tutorials are written from the source, then
zensical runs.

    python -m scripts.site              build site/, with the runs of the gallery
    python -m scripts.site --stage      only write the pages, into build/site
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from scripts import gallery, protocol
from scripts.notebooks import notebook

import mrlm
from mrlm.core import registry
from mrlm.core.faces import faces

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGED = ROOT / "build" / "site"
SITE = ROOT / "site"
WORKER = "https://unpkg.com/iframe-worker/shim"
FOREIGN = re.compile(
    r'<(?:script|img|iframe|source)[^>]* src="(https?:[^"]+)|<link[^>]*'
    r'rel="(?:stylesheet|preconnect)"[^>]* href="(https?:[^"]+)'
)
"""What a page loads from another host."""

PYTHON = {
    "runs": (
        "Trainers and runs",
        "A trainer of every algorithm `X` is `mrlm.XTrainer`, a `Trainer` whose algorithm is `X`; "
        "`mrlm.XConfig` has its settings ([algorithms](algorithms.md)).",
        "Trainer TrainResult run_experiment load_config ExperimentConfig TrainingConfig evaluate "
        "EvalResult Callback EarlyStopping examine Alarm Team MRLMError default_model",
    ),
    "episodes": (
        "Episodes and messages",
        "The data of a run: what agents read, wrote and were rewarded for.",
        "Task Message MessageType MessageRole Role Observation Reward StepResult Turn Rollout "
        "Episode Group Completion SamplingParams Chat",
    ),
    "environments": (
        "Environments and workflows",
        "The bases of your own environments and workflows, and their checks.",
        "Environment SimulatedEnvironment BaseEnvironment EnvironmentMode as_environment "
        "check_environment Workflow WorkflowSpec check_workflow LLMEnvironment RewardProcessors "
        "BoxedReward QASolverEnv RewardModel RemoteEnvironment ServerPool reward",
    ),
    "loops": (
        "Own loops",
        "Generation, credit and losses without a trainer ([own loops](../own_loop.md)).",
        "Generator ModelGenerate Learner TeamLearner Algorithm Loss LossTensor Batch Outputs",
    ),
    "records": (
        "Records and replays",
        "Reading a run folder and playing its episodes again.",
        "read_run RecordedRun RecordedEpisode RecordedTurn replay Replay play_from ForkSession "
        "Branch why Why",
    ),
}
"""Page of the reference -> its title, its first sentence and its names."""


ALGORITHMS = """# Settings of algorithms

The settings of every algorithm: keywords of its trainer, fields of its config class, keys of its
section in YAML. Formulas and learning curves are in [Algorithms](../algorithms.md).

"""


def reference() -> dict[str, str]:
    """Page -> Markdown with the names that mkdocstrings documents, and that of the protocol."""
    made = {}
    for page, (title, about, names) in PYTHON.items():
        made[f"api/{page}.md"] = _names(
            title, about, [f"{mrlm.HOME[name]}.{name}" for name in names.split()]
        )
    made["api/algorithms.md"] = ALGORITHMS + "\n".join(
        _algorithm(registry.load("algorithms", face.algorithm), face.algorithm)
        for face in sorted(faces().values(), key=lambda face: face.algorithm)
        if face.kind == "algorithm"
    )
    made["protocol.md"] = protocol.page()
    return made


def _algorithm(kind: type, name: str) -> str:
    """The section of an algorithm: its docstring, and all its settings with their defaults."""
    about, described = "", dict[str, str]()
    for base in reversed(kind.__mro__):
        about, found = _parts(inspect.cleandoc(vars(base).get("__doc__") or ""))
        described |= found
    default = kind()
    rows = [
        f"| `{each.name}` | `{getattr(default, each.name)!r}` | "
        f"{_cell(described.get(each.name, ''))} |"
        for each in fields(default)
    ]
    table = "| setting | default | meaning |\n|---|---|---|\n" + "\n".join(rows)
    return f"## {kind.__name__}\n\n`training.algorithm: {name}`\n\n{about}\n\n{table}\n"


def _parts(docstring: str) -> tuple[str, dict[str, str]]:
    """A docstring before its arguments, and the meaning of each argument."""
    about, _, rest = docstring.partition("\nArgs:\n")
    rest = re.split(r"^\w+:$", rest, flags=re.MULTILINE)[0]
    found: dict[str, str] = {}
    for text in re.split(r"^ {4}(?=\w)", rest, flags=re.MULTILINE):
        names, _, meaning = text.partition(":")
        found |= dict.fromkeys(re.findall(r"\w+", names), " ".join(meaning.split()))
    return re.split(r"^(?:Examples|Attributes|Raises):$", about, flags=re.M)[0].strip(), found


def _names(title: str, about: str, paths: list[str]) -> str:
    return f"# {title}\n\n{about}\n\n" + "\n".join(f"::: {path}\n" for path in paths)


def commands() -> str:
    """The page of the command line, from its own help."""
    import typer

    from mrlm.cli import app

    group: Any = typer.main.get_command(app())
    context = typer.Context(group)
    texts = ["# Command line\n\n`mrlm COMMAND --help` prints the same.\n"]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        rows = []
        for parameter in command.params:
            usage, meaning = parameter.get_help_record(context)
            rows.append(f"| `{usage.replace('|', chr(92) + '|')}` | {_cell(meaning)} |")
        about = " ".join((command.help or "").split())
        table = "| argument | meaning |\n|---|---|\n" + "\n".join(rows)
        texts.append(f"## mrlm {name}\n\n{about}\n\n{table}\n")
    return "\n".join(texts)


def _cell(text: str) -> str:
    """Text in a cell of a table; code in it stays code."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_])", r"\\\1", part).replace("<", "&lt;")
        for part in parts
    )


def tutorials() -> Iterator[Path]:
    """The tutorials, in their order."""
    yield from sorted((DOCS / "tutorials").glob("[0-9]*.md"))


def stage() -> None:
    """Write everything that zensical reads into `build/site`."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(DOCS, STAGED / "docs")
    config = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    (STAGED / "zensical.toml").write_text(config, encoding="utf-8")
    for name, text in {**reference(), "cli.md": commands()}.items():
        path = STAGED / "docs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in tutorials():
        page = path.read_text(encoding="utf-8")
        name = f"{path.stem}.ipynb"
        folder = STAGED / "docs" / "tutorials"
        text = json.dumps(notebook(page), indent=1, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
        title, _, rest = page.partition("\n")
        link = f'<a href="{name}" download>This page as a notebook</a>'
        (folder / path.name).write_text(f"{title}\n\n{link}\n{rest}", encoding="utf-8")


def make_local(folder: Path) -> None:
    """Lets the pages load nothing from other hosts: the search of pages that are opened from disk
    needs a script, which zensical loads from one.

    Raises:
        SystemExit: a page loads something else; names it.
    """
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        here = "../" * (len(path.relative_to(folder).parts) - 1)
        text = text.replace(WORKER, f"{here}assets/iframe_worker.js")
        if found := FOREIGN.search(text):
            raise SystemExit(
                f"{path}: it would load {found[1] or found[2]}, which is on another host"
            )
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Write the pages and build the site."""
    stage()
    if "--stage" in sys.argv[1:]:
        return 0
    gallery.main([])
    shutil.copytree(gallery.FOLDER, STAGED / "docs" / "gallery")
    file = STAGED / "zensical.toml"
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(file)]
    )
    if not done.returncode:
        make_local(STAGED / "site")
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.move(STAGED / "site", SITE)
        print(f"open {SITE / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
