"""A config of a few steps of every algorithm."""

import json
from pathlib import Path
from typing import Any

import pytest

from mrlm import Environment, Message, Observation, Reward, StepResult
from mrlm.core import registry

NAMES = registry.names("algorithms")
PAIRS = [{"prompt": f"{i}+1?", "chosen": f"it is {i + 1}", "rejected": "no"} for i in range(8)]
ANSWERS = [{"prompt": f"{i}+1?", "completion": f"it is {i + 1}"} for i in range(8)]
ROWS = {"dpo": PAIRS, "reward_model": PAIRS, "sft": ANSWERS, "spin": ANSWERS}
SMALLER = {
    **{name: {"group_size": 4} for name in ("grpo", "dr_mas", "marshal", "matpo", "rema")},
    "maporl": {"num_minibatches": 2},
    "distill": {"group_size": 2, "reward_weight": 0.5},
}
"""Settings of those whose own are large."""
TREES = {"at_grpo"}
"""Algorithms that compare answers to one state."""
KINDS = {"dpo", "grpo", "mappo", "qmix"}
"""One of each kind; the others are slow tests."""


class Letters(Environment):
    """Two agents speak one after the other; each is paid for what a random model writes often."""

    agents = ("a", "b")
    max_turns = 2

    def reset(self, task: Any = None, seed: int | None = None) -> StepResult:
        self.waiting = ["b"]
        return StepResult({"a": Observation([Message(f"number {(seed or 0) % 10}")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        ((agent, message),) = actions.items()
        paid = Reward(sum(ord(letter) % 2 for letter in message.content) / 6)
        seen = {name: Observation([Message(message.content)]) for name in self.waiting}
        self.waiting = []
        return StepResult(seen, {agent: paid}, done=not seen)


def config_of(name: str, folder: Path, output: str) -> Path:
    """A config of two iterations with everything small, written as a file."""
    config: dict[str, Any] = {
        "experiment_name": name,
        "output_dir": str(folder / output),
        "training": {
            "algorithm": name,
            "num_iterations": 2,
            "batch_size": 4,
            "learning_rate": 1.0e-3,
            "seed": 11,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 6},
    }
    if name in SMALLER:
        config[name] = SMALLER[name]
    if name in ROWS:
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
        config["data"] = {"dataset": str(data)}
    else:
        config["environments"] = [{"env_type": "tiny_runs:Letters"}]
    if name in TREES:
        config["workflow"] = {"name": "tree", "branches": 2}
    path = folder / f"{name}-{output}.json"
    path.write_text(json.dumps(config))
    return path


def some(kinds: set[str]) -> list[Any]:
    """All algorithms; those that are not of `kinds` are slow tests."""
    return [pytest.param(n, marks=[pytest.mark.slow] * (n not in kinds)) for n in NAMES]
