"""`python -m benchmarks.learning.poker`: self-play against the past on Kuhn poker, from several
seeds: how the rating rises while the mean reward stays near 0, and what the best opponent could
still win."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.learning.answers import answer_logprobs  # noqa: E402
from benchmarks.learning.models import fresh  # noqa: E402 - after the number of threads is set
from benchmarks.learning.runs import quiet  # noqa: E402
from benchmarks.report import machine  # noqa: E402
from mrlm import Callback, load_config, run_experiment  # noqa: E402
from mrlm.config.normalize import merge  # noqa: E402
from mrlm.core.statistics import mean_interval  # noqa: E402
from mrlm.environments.poker.hands import read_policy  # noqa: E402
from mrlm.environments.poker.kuhn_poker import KUHN, KuhnPokerEnvironment  # noqa: E402
from mrlm.environments.poker.zero_sum import exploitability  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "configs" / "self_play_poker.yaml"
RESULTS = "self_play_poker.json"


@dataclass(slots=True)
class Curve:
    """What came of a seed.

    Args:
        steps: iterations after which it was evaluated.
        rating, low, high: with its 95 % interval, against the initial snapshot's 1000.
        exploitability: chips a hand that the best opponent would win.
        rewards: mean reward of the two seats in every iteration, in chips a hand.
        seconds: that it took.
    """

    seed: int
    steps: list[int] = field(default_factory=list)
    rating: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    exploitability: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def gain(self) -> float:
        """Rating of the last policy above its first snapshot."""
        return self.rating[-1] - self.rating[0]

    @property
    def loss(self) -> float:
        """How much less the best opponent wins in the end."""
        return self.exploitability[0] - self.exploitability[-1]

    @property
    def reward(self) -> float:
        """Mean over all iterations."""
        return sum(self.rewards) / len(self.rewards)


class Reader(Callback):
    """Reads the policy's strategy at every evaluation."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self._world = KuhnPokerEnvironment(style="short")

    def on_evaluate(self, run: Any, metrics: Mapping[str, float]) -> None:
        policy = run.learners[0].weights_of

        def chances(messages: Any, words: Sequence[str]) -> list[float]:
            return [math.exp(x) for x in answer_logprobs(policy, messages, words, ended=False)]

        self.found.append(exploitability(KUHN, read_policy(self._world, chances)))


def train(seed: int, folder: Path, quick: bool = False) -> Curve:
    """Run the config with another model and seed."""
    started, curve, reader = time.perf_counter(), Curve(seed), Reader()
    place = folder / f"self-play-poker-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    model = fresh(place / "model", "poker", seed)
    training = {"seed": seed, "report_to": "none", "threads": 1}
    config = load_config(CONFIG)
    steps: dict[str, Any] = {"training": {"num_iterations": 2}} if quick else {}
    stages = [merge(stage.changes, {"name": stage.name, **steps}) for stage in config.stages]
    changes = {
        "output_dir": str(place / "run"),
        "model": {"model_name_or_path": str(model)},
        "training": training,
        "stages": stages,
    }
    history = run_experiment(config.merged(changes), callbacks=[reader]).history
    last = max(row["stage"] for row in history)
    for row in (row for row in history if row["stage"] == last):
        if row.get("rating/player") is not None:
            curve.steps.append(row["step"])
            curve.rating.append(row["rating/player"])
            curve.low.append(row["rating/player/low"])
            curve.high.append(row["rating/player/high"])
        if row.get("reward/mean") is not None:
            curve.rewards.append(row["reward/mean"])
    curve.exploitability = reader.found[-len(curve.steps) :]
    curve.seconds = time.perf_counter() - started
    shutil.rmtree(place)
    return curve


def markdown(curves: Sequence[Curve]) -> str:
    """The table: a row for each seed, then means with their 95 % intervals over seeds."""
    lines = [
        "| seed | last rating | 95 % | reward | exploitability | s |",
        "|---|---|---|---|---|---|",
    ]
    for c in curves:
        lines.append(
            f"| {c.seed} | {c.rating[-1]:.0f} | {c.low[-1]:.0f}..{c.high[-1]:.0f} | "
            f"{c.reward:+.3f} | {c.exploitability[0]:.3f} -> {c.exploitability[-1]:.3f} | "
            f"{c.seconds:.0f} |"
        )
    if len(curves) > 1:
        for name, values, form in (
            ("rating gained", [c.gain for c in curves], "+.0f"),
            ("mean reward, chips a hand", [c.reward for c in curves], "+.3f"),
            ("exploitability lost", [c.loss for c in curves], "+.3f"),
        ):
            mean, low, high = (format(x, form) for x in mean_interval(values))
            lines.append(f"\n{name}: {mean} ({low}..{high}, {len(values)} seeds)")
    return "\n".join(lines)


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Rating, reward and exploitability over iterations, every seed thin and the mean thick; none
    without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("matplotlib is not there, so no picture was written", file=sys.stderr)
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [
        ("rating", [(c.steps, c.rating) for c in curves]),
        ("mean reward", [(list(range(1, len(c.rewards) + 1)), c.rewards) for c in curves]),
        ("exploitability", [(c.steps, c.exploitability) for c in curves]),
    ]
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.4))
    for place, (title, series) in zip(axes, rows, strict=True):
        for steps, values in series:
            place.plot(steps, values, color="#90a4ae", lw=0.7)
        steps = series[0][0]
        columns = zip(*(values for _, values in series), strict=True)
        place.plot(steps, [sum(x) / len(x) for x in columns], color="#1565c0", lw=2)
        place.set_title(title, fontsize=9)
        place.set_xlabel("iteration", fontsize=8)
        place.tick_params(labelsize=7)
    axes[1].set_ylim(-1, 1)
    axes[1].set_ylabel("chips a hand", fontsize=8)
    axes[2].set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(given: list[str] | None = None) -> int:
    """Run the seeds one after the other. The exit status is 1 if the rating does not rise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.poker")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-runs", action="store_true", help="plot what is known already")
    parser.add_argument("--quick", action="store_true", help="two iterations; nothing is written")
    parser.add_argument("--work", type=Path, default=ROOT / "benchmarks" / "results" / "learning")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "learning")
    chosen = parser.parse_args(given)
    quiet()
    known = chosen.output / RESULTS
    if chosen.no_runs:
        curves = [Curve(**row) for row in json.loads(known.read_text())["curves"]]
        print(markdown(curves))
        plot(curves, known.with_suffix(".png"))
        return 0
    curves: list[Curve] = []
    for seed in range(chosen.seeds):
        curves.append(train(seed, chosen.work, chosen.quick))
        print(markdown(curves[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(f"Measured on {machine()}.\n\n{markdown(curves)}")
    if chosen.quick:
        return 0
    chosen.output.mkdir(parents=True, exist_ok=True)
    data = {"machine": machine(), "curves": [asdict(curve) for curve in curves]}
    known.write_text(json.dumps(data, indent=1) + "\n")
    plot(curves, known.with_suffix(".png"))
    return int(len(curves) > 1 and mean_interval([curve.gain for curve in curves])[1] <= 0)


if __name__ == "__main__":
    sys.exit(main())
