"""An engine whose policies add the numbers they read, rightly or not, by the seed of the request:
for episodes whose culprit is known."""

import random
from pathlib import Path
from typing import Any

from benchmarks.blame.engine import ScriptedEngine, numbers

from mrlm import run_experiment
from mrlm.config import parse_config
from mrlm.play.engine import Request
from mrlm.record.files import rows_of


class Adders(ScriptedEngine):
    """Answers `3+4=` by `7`, or with a probability of one fifth by another number; greedily always
    rightly. What cannot be read as a sum is answered by `0`."""

    WRONG = 0.2
    max_context = 512

    def message(self, request: Request, rng: random.Random) -> tuple[str, float]:
        found = numbers(request.messages[-1].content)
        total = sum(found) if len(found) == 2 else 0
        if not request.sampling.greedy and rng.random() < self.WRONG:
            total += rng.randint(1, 5)
        return str(total), -1.0


def adding_run(folder: Path, **changes: Any) -> Path:
    """A run of the relay game with such policies."""
    data: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "environments": [{"env_type": "relay"}],
        "engine": {"name": "adders:Adders"},
        "training": {
            "algorithm": "magrpo",
            "num_iterations": 1,
            "batch_size": 12,
            "report_to": "none",
            "checks": "off",
        },
        "magrpo": {"group_size": 4},
        "generation": {"max_new_tokens": 4},
        "record": {"tokens": "all"},
        **changes,
    }
    if data["training"]["algorithm"] != "magrpo":
        del data["magrpo"]
    run_experiment(parse_config(data, [], "the test"))
    return folder / "run"


def culprits(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The agent that erred, or `nobody` -> episodes."""
    found: dict[str, list[dict[str, Any]]] = {"first": [], "second": [], "both": [], "nobody": []}
    for row in rows_of(folder):
        info = row["task"]["info"]
        first, second = (int(agent["messages"][-1]["content"]) for agent in row["agents"].values())
        wrong = (first != info["a"] + info["b"], second != first + info["c"])
        name = {(True, True): "both", (True, False): "first", (False, True): "second"}
        found[name.get(wrong, "nobody")].append(row)
    return found
