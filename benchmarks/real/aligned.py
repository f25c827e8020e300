"""Step by step the same in TRL and here: SFT and DPO on the sums, from one adapter, rows in order.

    python -m benchmarks.real.aligned trl dpo SEED MODEL > theirs.json    # where TRL is installed
    python -m benchmarks.real.aligned mrlm dpo SEED MODEL > ours.json
    python -m benchmarks.real.aligned compare theirs.json ours.json

A run prints a line of JSON: what its trainer logged at each step, and the held-out rewards. The
comparison prints the largest difference of every column that both have.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.real import peers

COLUMNS = ("loss", "grad_norm", "rewards/chosen", "rewards/rejected")
# ChatML with the newline in front of a message and not after its end token: TRL trains what a
# template writes after the end token, too
TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif %}"
)


class Log(TrainerCallback):
    """Keeps what a trainer logs at each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_log(self, *arguments: Any, logs: Mapping[str, float], **_: Any) -> None:
        values = {key: float(logs[key]) for key in COLUMNS if key in logs}
        if "loss" in values:
            self.steps.append(values)


def run(library: str, method: str, seed: int, name: str, folder: str) -> dict[str, Any]:
    """Trains 25 steps of `sft` or `dpo`, with `trl` or with `mrlm` as the library."""
    classes = importlib.import_module("mrlm.trl" if library == "mrlm" else "trl")
    tokenizer = AutoTokenizer.from_pretrained(name)
    curve, log = peers.Curve(AutoTokenizer.from_pretrained(name)), Log()
    words = peers.trl_words(method, seed, folder) | {"logging_steps": 1}
    more: dict[str, Any] = {}
    if library == "mrlm":
        config = importlib.import_module("mrlm.config").ExperimentConfig
        more = {"config": config(data={"shuffle": False})}
    else:
        words |= {"train_sampling_strategy": "sequential"}
    if method == "sft":
        tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    getattr(classes, f"{method.upper()}Trainer")(
        model=get_peft_model(model, peers.LORA),
        args=getattr(classes, f"{method.upper()}Config")(**words),
        train_dataset=Dataset.from_list(peers.dataset_rows(method, seed)),
        processing_class=tokenizer,
        callbacks=[peers.Evaluation(curve), log],
        **more,
    ).train()
    return {"library": library, "method": method, "steps": log.steps, "rewards": curve.rewards}


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, float]:
    """The largest difference of each column over all steps.

    Raises:
        ValueError: the runs have not the same steps or columns.
    """
    pairs = list(zip(theirs["steps"], ours["steps"], strict=True))
    if not pairs or any(set(a) != set(b) for a, b in pairs):
        raise ValueError("the runs have no steps, or not the same columns")
    largest = {key: max(abs(a[key] - b[key]) for a, b in pairs) for key in pairs[0][0]}
    rewards = zip(theirs["rewards"], ours["rewards"], strict=True)
    return largest | {"held-out reward": max(abs(a - b) for a, b in rewards)}


def main(given: Sequence[str]) -> int:
    """Runs one library, or compares two runs."""
    if given[0] == "compare":
        texts = [Path(name).read_text(encoding="utf-8") for name in given[1:]]
        # trainers print, too
        lines = [line for text in texts for line in text.splitlines() if line.startswith('{"libr')]
        print(json.dumps(compare(*map(json.loads, lines))))
        return 0
    library, method, seed, name = given
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mrlm-aligned-") as folder:
        print(json.dumps(run(library, method, int(seed), name, folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
