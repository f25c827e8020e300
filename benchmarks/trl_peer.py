"""TRL on fixed work: GRPO, SFT and DPO, each step timed inside TRL's own loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from benchmarks.models import make_model, make_tokenizer
from benchmarks.ours import RATE
from benchmarks.timing import Clock
from benchmarks.work import Counts, Work
from benchmarks.worlds import prompt_text, reward_of


class _Timed(TrainerCallback):
    """Times every optimiser step; our side has its turn before each."""

    def __init__(self, clock: Clock, before: Callable[[], None]) -> None:
        self.clock, self.before = clock, before
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before()
        self._start = self.clock.now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(self.clock.now() - self._start)


class TrlPeer:
    """A trainer of TRL.

    Args:
        work: how much a step does.
        make: from common arguments and a callback to a trainer.
    """

    def __init__(self, work: Work, make: Callable[[dict[str, Any], Any], Any]) -> None:
        self.work, self.make = work, make
        self._trainer: Any = None

    def play(self, rounds: int, clock: Clock, before: Callable[[], None]) -> list[float]:
        """TRL is set up as its users would for speed: no gradient checkpointing, no reporting."""
        timed = _Timed(clock, before)
        with tempfile.TemporaryDirectory(prefix="mrlm-bench-") as folder:
            common = {
                "output_dir": folder,
                "use_cpu": clock.device == "cpu",
                "bf16": self.work.precision == "bf16",
                "gradient_checkpointing": False,
                "learning_rate": RATE,
                "lr_scheduler_type": "constant",
                "max_steps": rounds,
                "report_to": "none",
                "save_strategy": "no",
                "logging_strategy": "no",
                "disable_tqdm": True,
            }
            self._trainer = self.make(common, timed)
            self._trainer.remove_callback(PrinterCallback)
            self._trainer.train()
        return timed.seconds

    def counts(self) -> Counts:
        return self._trainer.last


def grpo(work: Work) -> TrlPeer:
    """GRPO without a reference model, every sample sampled anew for its step."""

    class Counted(GRPOTrainer):
        last: Counts

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            written = int(inputs["completion_mask"].sum())
            self.last = Counts(int(inputs["prompt_mask"].sum()), written, written)
            return super().compute_loss(model, inputs, *args, **kwargs)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [reward_of(text) for text in completions]

    def make(common: dict[str, Any], callback: Any) -> Any:
        prompts = [
            prompt_text(work.shape, work.read, seed, "agent_0")
            for seed in range(work.prompts * (common["max_steps"] + 1))
        ]
        args = GRPOConfig(
            per_device_train_batch_size=work.prompts * work.group,
            num_generations=work.group,
            max_completion_length=work.written,
            beta=0.0,
            **common,
        )
        return Counted(
            model=make_model(work.shape),
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=make_tokenizer(work.shape),
            callbacks=[callback],
        )

    return TrlPeer(work, make)


def sft(work: Work, rows: list[dict[str, str]]) -> TrlPeer:
    """Supervised learning of the completions of rows."""

    class Counted(SFTTrainer):
        last: Counts

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            written = int((inputs["labels"] != -100).sum())
            self.last = Counts(inputs["labels"].numel() - written, 0, written)
            return super().compute_loss(model, inputs, *args, **kwargs)

    def make(common: dict[str, Any], callback: Any) -> Any:
        return Counted(
            model=make_model(work.shape),
            args=SFTConfig(per_device_train_batch_size=work.prompts, max_length=4096, **common),
            train_dataset=Dataset.from_list(_spaced(rows)),
            processing_class=make_tokenizer(work.shape, endless=False),
            callbacks=[callback],
        )

    return TrlPeer(work, make)


def dpo(work: Work, rows: list[dict[str, str]]) -> TrlPeer:
    """Preference learning of pairs; the reference scores them in every step."""

    class Counted(DPOTrainer):
        last: Counts

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            written = int(inputs["completion_mask"].sum())
            self.last = Counts(inputs["input_ids"].numel() - written, 0, written)
            return super().compute_loss(model, inputs, *args, **kwargs)

    def make(common: dict[str, Any], callback: Any) -> Any:
        return Counted(
            model=make_model(work.shape),
            ref_model=make_model(work.shape),
            args=DPOConfig(per_device_train_batch_size=work.prompts, max_length=4096, **common),
            train_dataset=Dataset.from_list(_spaced(rows)),
            processing_class=make_tokenizer(work.shape, endless=False),
            callbacks=[callback],
        )

    return TrlPeer(work, make)


def _spaced(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows with the space that our chat template puts after a prompt."""
    return [row | {"prompt": row["prompt"] + " "} for row in rows]
