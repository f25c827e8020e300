"""`python -m benchmarks.recipes`: runs every recipe at CPU scale with several seeds and writes the
results into their READMEs. Finished runs are not repeated."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.report import version  # noqa: E402 - after the number of threads is set
from mrlm.cli.recipe import RECIPES, config_of, names, scales  # noqa: E402
from mrlm.config.loading import load_config  # noqa: E402
from mrlm.core.statistics import mean_interval  # noqa: E402
from mrlm.experiment import run_experiment  # noqa: E402

HERE = Path(__file__).parent
TEAM, ONE = "cpu", "cpu_one"
REWARD = ("eval/reward/mean", "reward")
REWARDS: Mapping[str, tuple[str, str]] = {
    "at_grpo": ("eval/reward/mean", "held-out reward"),
    "magrpo": ("eval/reward/mean", "reward of 3"),
    "maporl": ("eval/reward/mean", "reward (verdicts of the verifier)"),
    "router_r1": ("eval/reward/mean", "reward, held-out questions"),
    "spiral": ("eval/random/reward/mean", "chips per hand against the random player"),
}
"""The metric of a recipe, and its name in the table."""
SHARED = "cpu, shared policy"
VARIANTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "when_teams_help": {SHARED: ("agents.evaluator.policy=writer", "policies={writer: {}}")}
}
"""Further rows of a recipe: overrides of its config at CPU scale."""

Row = dict[str, Any]


def main(given: list[str] | None = None) -> int:
    """Make the missing runs and write the READMEs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("--recipes", nargs="+", metavar="NAME", choices=names(), default=names())
    parser.add_argument("--seeds", type=int, default=5, help="of each config")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "recipes")
    parser.add_argument("--no-runs", action="store_true", help="report the runs that are there")
    parser.add_argument("--write", action="store_true", help="write the tables of the READMEs")
    chosen = parser.parse_args(given)
    path = chosen.output / "runs.jsonl"
    chosen.output.mkdir(parents=True, exist_ok=True)
    if not chosen.no_runs:
        done = {(row["recipe"], row["scale"], row["seed"]) for row in load(path)}
        for job in jobs(chosen.recipes, chosen.seeds):
            if job not in done:
                row = run(*job)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{row}", file=sys.stderr, flush=True)
    rows = load(path)
    for name in chosen.recipes:
        cells = {scale: cell(rows, name, scale) for scale in configs(name)}
        print("\n".join(f"{name} {scale}: {' | '.join(each)}" for scale, each in cells.items()))
        print(f"  {statement(rows, name)}")
        if chosen.write:
            publish(RECIPES / name / "README.md", cells, statement(rows, name))
    return 0


def configs(name: str) -> list[str]:
    """The rows of a recipe that run on a CPU."""
    return [*(s for s in scales(name) if s.startswith(TEAM)), *VARIANTS.get(name, {})]


def jobs(recipes: Sequence[str], seeds: int) -> Iterator[tuple[str, str, int]]:
    """All runs: a seed of everything before the next seed."""
    return ((n, scale, seed) for seed in range(seeds) for n in recipes for scale in configs(n))


def load(path: Path) -> list[Row]:
    """The finished runs."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(name: str, scale: str, seed: int) -> Row:
    """Train one config with one seed; its reward before and after the last stage."""
    changed = VARIANTS.get(name, {}).get(scale)
    config = load_config(config_of(name, TEAM if changed else scale), changed or ())
    metric, _ = REWARDS.get(name, REWARD)
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="mrlm-recipe-") as folder:
        changes = {"output_dir": folder, "training": {"seed": seed}}
        history = run_experiment(config.merged(changes)).history
    last = max(row.get("stage", 0) for row in history)
    found = [row[metric] for row in history if row.get("stage", 0) == last and metric in row]
    seconds = time.process_time() - began
    row = {"recipe": name, "scale": scale, "seed": seed, "before": found[0], "after": found[-1]}
    return {**row, "seconds": round(seconds, 1), "at": version()}


def cell(rows: Sequence[Row], name: str, scale: str) -> list[str]:
    """Result, seeds, hours, device and commit of a row of the table."""
    ours = _of(rows, name, scale)
    if not ours:
        return ["not run", "", "", "", ""]
    before, after = (_mean(ours, key) for key in ("before", "after"))
    seconds = _mean(ours, "seconds")
    return [
        f"{before:.2f} -> {after:.2f} ({_gain([r['after'] - r['before'] for r in ours])}), "
        f"{REWARDS.get(name, REWARD)[1]}",
        f"{len(ours)}",
        f"{seconds / 3600:.4f} ({seconds:.0f} s of a core)",
        "one CPU core",
        f"`{ours[-1]['at'][:7]}`",
    ]


def statement(rows: Sequence[Row], name: str) -> str:
    """What the rows of a recipe show, in sentences."""
    text = (
        '"Ours" is the mean reward of sampled episodes before and after the training stage, and in '
        "brackets the gain with its 95 % interval over seeds (Student's t)."
    )
    titles = {TEAM: "This recipe", ONE: "The twin with one agent", SHARED: "One shared policy"}
    for scale in configs(name):
        ours = _of(rows, name, scale)
        if len(ours) > 1:
            _, low, high = mean_interval([row["after"] - row["before"] for row in ours])
            word = "improves" if low > 0 else "**gets worse**" if high < 0 else None
            word = word or "**is not shown to improve**"
            text += f" {titles[scale]} {word} at CPU scale."
    for other in (ONE, SHARED):
        pairs = _pairs(rows, name, other)
        if len(pairs) > 1:
            mean, low, high = mean_interval(pairs)
            word = "lower" if high < 0 else "higher" if low > 0 else "not shown to differ"
            text += (
                f" At the end the team is **{word}** from {titles[other].lower()} of the same seed:"
                if word.startswith("not")
                else f" The team ends **{word}** than {titles[other].lower()} of the same seed:"
            )
            text += f" {mean:+.2f} ± {high - mean:.2f}."
    return text


def publish(readme: Path, cells: Mapping[str, Sequence[str]], words: str) -> None:
    """Write the rows and the paragraph under them into a README."""
    lines = readme.read_text(encoding="utf-8").splitlines()
    kept = [each for each in lines if not re.match(r"\| `cpu", each)]
    place = max(i for i, each in enumerate(kept) if each.startswith("| `gpu1`"))
    table = [f"| {_title(scale)} | - | {' | '.join(each)} |" for scale, each in cells.items()]
    kept[place + 1 : place + 1] = table
    where = next(i for i, each in enumerate(kept) if each.startswith('"Ours" is'))
    kept[where] = words
    readme.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _title(scale: str) -> str:
    first, comma, rest = scale.partition(",")
    return f"`{first}`{comma}{rest}"


def _of(rows: Sequence[Row], name: str, scale: str) -> list[Row]:
    found = [row for row in rows if (row["recipe"], row["scale"]) == (name, scale)]
    return sorted(found, key=lambda row: row["seed"])


def _mean(rows: Sequence[Row], key: str) -> float:
    return sum(row[key] for row in rows) / len(rows)


def _gain(values: Sequence[float]) -> str:
    mean, _, high = mean_interval(values)
    return f"{mean:+.2f} ± {high - mean:.2f}" if len(values) > 1 else f"{mean:+.2f}, one seed"


def _pairs(rows: Sequence[Row], name: str, other: str) -> list[float]:
    """The team's final reward less that of another row, by seed."""
    theirs = {row["seed"]: row["after"] for row in _of(rows, name, other)}
    ours = _of(rows, name, TEAM)
    return [row["after"] - theirs[row["seed"]] for row in ours if row["seed"] in theirs]


if __name__ == "__main__":
    sys.exit(main())
