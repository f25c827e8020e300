"""The models that runs start from: a few thousand weights, taught how answers look and no more."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, int]] = {
    "matrix": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
    "relay": {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 4},
    "poker": {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4},
}


def fresh(folder: Path, kind: str, seed: int) -> Path:
    """Write a model with random weights, and the embedded model's tokenizer, into `folder`."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from mrlm.core.tiny_model import default_model

    tokenizer = AutoTokenizer.from_pretrained(default_model())
    config = Qwen3Config(
        **SIZES[kind],
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


ENOUGH = 0.5
"""Share of the answers that are right of a model which has read enough: all runs begin alike, and
there is room to improve."""


def taught(
    folder: Path,
    kind: str,
    world: dict[str, Any],
    seed: int,
    steps: int,
    generation: dict[str, Any] | None = None,
) -> Path:
    """A model that has learned to name every action of a matrix game alike, or that has read what
    the world's expert says until about half of its own answers are right; made once per folder.

    Args:
        folder: where it is written.
        kind: what it is for, one of `SIZES`.
        world: the `environments:` item it learns from.
        seed: of its weights and of what it reads.
        steps: iterations, at most.
        generation: how its own answers are drawn, where it is asked for any.
    """
    from mrlm import ExperimentConfig, run_experiment

    if (folder / "config.json").is_file():
        return folder
    work = folder.with_name(f"{folder.name}-teaching")
    config: dict[str, Any] = {
        "output_dir": str(work / "run"),
        "model": {"model_name_or_path": str(fresh(work / "fresh", kind, seed))},
        "environments": [world],
        "policies": {"base": {}},
        "training": {
            "algorithm": "sft",
            "num_iterations": steps,
            "batch_size": 6 if kind == "matrix" else 32,
            "learning_rate": 1e-2 if kind == "matrix" else 2e-3,
            "lr_scheduler_type": "linear",
            "seed": seed,
            "report_to": "none",
            "threads": 1,
        },
    }
    if kind == "matrix":
        config["data"] = {"dataset": every_action(world)}
    else:
        config["sft"] = {"teacher": "expert"}
    until = []
    if generation is not None:
        config["generation"] = generation
        config["evaluation"] = {"every": 5, "episodes": 128, "greedy": False}
        until = [half_right()]
    result = run_experiment(ExperimentConfig(**config), callbacks=until)
    (result.run_folder / "final").rename(folder)
    shutil.rmtree(work)
    return folder


def half_right() -> Any:
    """What ends teaching when enough answers are right."""
    from mrlm import Callback

    class Until(Callback):
        def on_evaluate(self, run: Any, metrics: Mapping[str, float]) -> None:
            if metrics["eval/reward/mean"] >= ENOUGH:
                run.stop()

    return Until()


def every_action(world: dict[str, Any]) -> list[dict[str, str]]:
    """A row for every action of every agent."""
    from mrlm.environments.games.matrix import MatrixEnvironment

    made = MatrixEnvironment(**{key: value for key, value in world.items() if key != "env_type"})
    return [
        {"agent": agent, "prompt": made.question(agent), "completion": word}
        for agent, size in zip(made.agents, made.sizes, strict=True)
        for word in made.words[:size]
    ]
