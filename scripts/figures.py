"""Draws the figures of docs/architecture.md from the source: which folder imports which, and the
ways that a task and a config take through the code.

    python -m scripts.figures            write docs/figures/*.svg
    python -m scripts.figures --check    exit with 1 if they are out of date
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "src" / "mrlm"
FIGURES = PROJECT / "docs" / "figures"

INK, SOFT, DOT, PAPER = "#1f2933", "#d8dee6", "#2f6fb3", "#ffffff"
CELL, LEFT, TOP = 22, 130, 118

Stop = tuple[str, str, str]
"""File, class or function, and what is done there."""

EPISODE: tuple[Stop, ...] = (
    ("play/sources/task_sampler.py", "TaskSampler", "samples the tasks of a step"),
    ("play/sources/play.py", "Play", "opens one environment per episode of a group"),
    ("workflows/turns.py", "Turns", "decides who speaks: plain async Python"),
    ("play/agent.py", "Agent", "renders the conversation and asks for a completion"),
    ("play/engine.py", "Batcher", "joins what all agents ask for into one call"),
    ("engines/hf.py", "HFEngine", "samples token ids with their log-probabilities"),
    (
        "play/episode_runner.py",
        "EpisodeRunner",
        "steps the environment, records the turn, closes the episode",
    ),
    ("core/episodes.py", "Episode", "checks the accounts: a reward for every step"),
    ("learn/bases/algorithm.py", "Algorithm.credit", "writes advantages on the turns"),
    ("learn/data/batch.py", "pack", "joins turns into samples, samples into tensors"),
    ("learn/joint_update.py", "run_together", "forward, loss, backward, step"),
    ("train.py", "iterate", "exchanges the weights and begins the next step"),
)
CONFIG: tuple[Stop, ...] = (
    ("cli/train.py", "train", "reads the options of the command line"),
    ("config/loading.py", "load_config", "joins the YAML file and the overrides"),
    ("config/normalize.py", "normalise", "puts the words of other libraries in their sections"),
    ("config/experiment.py", "ExperimentConfig", "checks each section where it is defined"),
    ("experiment.py", "run_experiment", "takes one stage after the other"),
    ("build/run.py", "build", "makes a run of a stage, in one pass"),
    ("build/run_plan.py", "RunPlan", "says what it consists of; each part is computed once"),
    ("build/policies.py", "assign", "decides which agent uses which weights"),
    ("build/ineffective.py", "refuse_idle", "refuses settings without an effect"),
    ("build/in_process.py", "InProcess", "loads policies; makes engines, learners, critics"),
    ("build/sources.py", "source_of", "joins environments, workflow and engines"),
    ("training/run.py", "Run", "holds the parts"),
    ("runs.py", "run_to_end", "calls the loop and saves the policies"),
)
ROUTES = {"route_of_an_episode.svg": EPISODE, "route_of_a_config.svg": CONFIG}


def order() -> tuple[str, ...]:
    """The folders in the order that tests/contracts/test_layout.py keeps."""
    tree = ast.parse(
        (PROJECT / "tests" / "contracts" / "test_layout.py").read_text(encoding="utf-8")
    )
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
            return tuple(ast.literal_eval(node.value))
    raise SystemExit("tests/contracts/test_layout.py: ORDER does not exist")


def imports() -> set[tuple[str, str]]:
    """(folder, folder that it imports), also inside functions and for type checkers."""
    found: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node):
                parts = target.split(".")
                if parts[0] == "mrlm" and len(parts) > 1 and parts[1] != here:
                    found.add((here, parts[1]))
    return found


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield from (f"{module}.{alias.name}" for alias in node.names)


def defined(file: str, name: str) -> bool:
    """Whether a file has a class or function (`Class.method` too)."""
    body: list[ast.stmt] = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        for node in body:
            kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(node, kinds) and node.name == part:
                body = node.body
                break
        else:
            return False
    return True


def matrix() -> str:
    """A row for each folder, with a dot under every folder that it imports."""
    rooms, arrows = order(), imports()
    size = CELL * len(rooms)
    parts: list[str] = []
    for row, importer in enumerate(rooms):
        y = TOP + row * CELL
        parts.append(_text(LEFT - 8, y + 15, importer, "end"))
        parts.append(f'<g transform="translate({LEFT + row * CELL + 15} {TOP - 8}) rotate(-60)">')
        parts.append(_text(0, 0, importer) + "</g>")
        width = CELL * (row + 1)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{CELL}" {_box()}/>')
        for column, imported in enumerate(rooms):
            if (importer, imported) in arrows:
                x = LEFT + column * CELL + CELL / 2
                parts.append(f'<circle cx="{x:g}" cy="{y + CELL / 2:g}" r="5" fill="{DOT}"/>')
    place = {room: number for number, room in enumerate(rooms)}
    known = [(one, other) for one, other in arrows if one in place and other in place]
    up = sum(place[one] < place[other] for one, other in known)
    note = f"{len(rooms)} folders and root modules, {len(known)} arrows, {up} of them up"
    parts.append(_text(LEFT, TOP + size + 24, note))
    return _svg(LEFT + size + 60, TOP + size + 40, parts)


def route(stops: Sequence[Stop]) -> str:
    """A route as numbered stops."""
    parts: list[str] = []
    for number, (file, name, what) in enumerate(stops, 1):
        if not defined(file, name):
            raise SystemExit(f"scripts/figures.py: {file} does not define {name}")
        y = 40 * number
        if number < len(stops):
            parts.append(f'<path d="M30 {y}v40" stroke="{SOFT}" stroke-width="3"/>')
        parts.append(f'<circle cx="30" cy="{y}" r="13" fill="{DOT}"/>')
        parts.append(
            f'<text x="30" y="{y + 4}" text-anchor="middle" fill="{PAPER}">{number}</text>'
        )
        parts.append(_text(56, y + 4, f"{file}  {name}", extra=' font-weight="bold"'))
        parts.append(_text(400, y + 4, what))
    return _svg(800, 40 * len(stops) + 40, parts)


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{INK}"{extra}'
    return f"<text {place}>{escape(text)}</text>"


def _box() -> str:
    return f'fill="none" stroke="{SOFT}"'


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" font-family="sans-serif" font-size="12">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([head, paper, *parts, "</svg>", ""])


def main() -> None:
    """See the top of the file."""
    figures = {"imports.svg": matrix(), **{name: route(stops) for name, stops in ROUTES.items()}}
    stale: list[str] = []
    for name, text in figures.items():
        path = FIGURES / name
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            FIGURES.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        raise SystemExit(f"docs/figures: {', '.join(stale)}: run python -m scripts.figures")


if __name__ == "__main__":
    main()
