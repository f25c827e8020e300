"""Runs that must come to the same on however many processes."""

import json
from pathlib import Path
from typing import Any

from tiny_runs import config_of

STEADY = {"training": {"optimizer": "sgd", "learning_rate": 0.02}}
"""Steps in which rounding stays rounding: Adam divides a gradient of nothing but rounding by
itself."""
LORA = {"a": {"lora": {"r": 4}}, "b": {"lora": {"r": 4}}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": (
        "grpo",
        {
            "grpo": {"group_size": 4, "num_minibatches": 2, "update_epochs": 2},
            "training": {"max_tokens_per_microbatch": 128},
        },
    ),
    "ppo-one-policy": (
        "ppo",
        {
            "policies": {"p": {}},
            "agents": {"a": {"policy": "p"}, "b": {"policy": "p"}},
            "training": {"gradient_shares": 1},
        },
    ),
    "ippo-lora": ("ippo", {"policies": LORA, "training": {"gradient_accumulation_steps": 2}}),
    "mappo": ("mappo", {}),
    "qmix": (
        "qmix",
        # what is whitened here is next to nothing, and so is rounding
        {"qmix": {"whiten_advantages": False}, "training": {"critic_learning_rate": 0.01}},
    ),
    "dpo": ("dpo", {}),
    "c3": ("c3", {"c3": {"alternatives": 2}, "environments": [{"env_type": "talking:Pair"}]}),
    "sft": ("sft", {"model": {"lean": False}}),
}
"""One of each kind: several minibatches and micro-batches, a shared head, adapters on one base, a
central critic, a mixer, pairs, replays, rows through a model's own forward."""


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both, section by section."""
    both = dict(one)
    for key, value in other.items():
        known = both.get(key)
        both[key] = merged(known, value) if isinstance(known, dict) else value
    return both


def written(folder: Path, name: str, output: str, *changes: dict[str, Any]) -> Path:
    """The config of a case as a file, with its run folder."""
    algorithm, more = CASES.get(name, (name, {}))
    path = config_of(algorithm, folder, f"{name}-{output}")
    config = json.loads(path.read_text())
    for change in (STEADY, more, *changes):
        config = merged(config, change)
    path = folder / f"{name}-{output}.json"
    path.write_text(json.dumps(config))
    return path
