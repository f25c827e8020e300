"""TRL's trainers and ours run the same scripts in one process, and both count: prompts and
completions, optimiser steps, rates, evaluations, checkpoints, epochs, settings and defaults."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="make test-extras installs TRL")

import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

import mrlm
import mrlm.trl
from mrlm.config.compatible import compatible_faces
from mrlm.core.errors import ConfigError

TITLE = "TRL's trainers, counted"
JUDGE = "TRL 1.16.0"
DIFFERENCES = (
    "an epoch of GRPO or RLOO that batches do not divide has one more full batch, because no row "
    "is left out; TRL's samplers drop the rows that are left",
    "the last step is evaluated too, because a run's result is its last evaluation; TRL evaluates "
    "every eval_steps",
    "a warm-up begins with the first share of the rate, because a step at rate 0 trains nothing; "
    "TRL's begins at 0",
    "gradient_checkpointing is off where it is not given, because it changes memory and no number",
    "the newline after the end token of an answer is not trained, because no answer is sampled "
    "with it; TRL trains it",
)
ONLINE = ["GRPO", "RLOO"]
PROMPTS = [{"prompt": f"Say {n}."} for n in range(16)]
PAIRS = [{"prompt": f"{n} ", "chosen": "yes", "rejected": "no"} for n in range(16)]
ANSWERS = [{"prompt": f"{n} and {n} is ", "completion": f" {2 * n}"} for n in range(16)]
ROWS = {"GRPO": PROMPTS, "RLOO": PROMPTS, "DPO": PAIRS, "Reward": PAIRS, "SFT": ANSWERS}
COUNTED: list[tuple[str, dict[str, Any]]] = [
    ("GRPO", {"num_generations": 8, "gradient_accumulation_steps": 4}),
    ("GRPO", {"num_generations": 4, "num_train_epochs": 2, "lr_scheduler_type": "cosine"}),
    ("GRPO", {"num_generations": 4, "num_iterations": 2, "max_steps": 6, "save_steps": 4}),
    ("GRPO", {"max_steps": 3, "save_steps": 2, "warmup_steps": 2}),
    ("RLOO", {}),
    ("RLOO", {"num_train_epochs": 0.6}),
    ("RLOO", {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 5}),
    ("DPO", {}),
    ("DPO", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
    ("SFT", {}),
    ("SFT", {"num_train_epochs": 1, "per_device_train_batch_size": 2, "save_steps": 3}),
    ("Reward", {"max_steps": 4, "lr_scheduler_type": "constant"}),
]


class Counts(mrlm.Callback):
    """What one of our runs does."""

    def __init__(self) -> None:
        self.steps, self.rates, self.saves, self.evaluations = 0, [], [], 0

    def on_step_end(self, run: Any, metrics: Mapping[str, float]) -> None:
        self.steps += run.algorithm.update_epochs * run.algorithm.num_minibatches
        self.rates.append(metrics["learning_rate"])

    def on_save(self, run: Any, folder: Path) -> None:
        self.saves.append(self.steps)

    def on_evaluate(self, run: Any, metrics: Mapping[str, float]) -> None:
        self.evaluations += 1


class Theirs(TrainerCallback):
    """What one of TRL's runs does."""

    def __init__(self) -> None:
        self.steps, self.rates, self.saves, self.evaluations = 0, [], [], 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.rates.append(parts["optimizer"].param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.steps += 1

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.saves.append(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.evaluations += 1


class Rewards:
    """A reward function that counts: completions of every call, and distinct prompts of a step."""

    __name__ = "rewards"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        self.calls.append(list(prompts))
        return [sum(map(ord, text)) % 17 / 7 for text in completions]

    @property
    def amounts(self) -> list[tuple[int, int]]:
        return [(len(prompts), len(set(prompts))) for prompts in self.calls]


def common(folder: Path) -> dict[str, Any]:
    return {"output_dir": str(folder), "use_cpu": True, "bf16": False, "disable_tqdm": True}


def both(kind: str, words: dict[str, Any], folder: Path, **more: Any) -> Any:
    """Counts of their run and of ours, with the reward functions and the trainers."""
    name = f"{kind}Trainer", f"{kind}Config"
    short = {"max_completion_length": 4} if kind in ONLINE else {}
    path, found = mrlm.default_model(), []
    for package, counts in ((trl, Theirs()), (mrlm.trl, Counts())):
        rewards = Rewards()
        parts = {"reward_funcs": rewards} if kind in ONLINE else {}
        args = getattr(package, name[1])(**short, **words, **common(folder / package.__name__))
        model = path
        if package is trl and kind == "Reward":
            from transformers import AutoModelForSequenceClassification as Classifier

            model = Classifier.from_pretrained(path, num_labels=1)
        trainer = getattr(package, name[0])(
            model=model,
            args=args,
            train_dataset=Dataset.from_list(ROWS[kind]),
            processing_class=AutoTokenizer.from_pretrained(path) if package is trl else None,
            callbacks=[counts],
            **parts,
            **more,
        )
        trainer.train()
        found.append((counts, rewards, trainer))
    return found


@pytest.mark.parametrize(("kind", "words"), COUNTED)
def test_a_run_does_as_much_as_theirs(kind, words, tmp_path, record_property):
    (theirs, there, peer), (ours, here, trainer) = both(kind, words, tmp_path)
    assert ours.steps == theirs.steps > 1
    each = ours.steps // len(ours.rates)
    warm = words.get("warmup_steps", 0)  # theirs begin at 0
    assert ours.rates[:warm] == pytest.approx([*theirs.rates[1:warm], 1e-6][:warm], rel=1e-6)
    assert ours.rates[warm:] == pytest.approx(theirs.rates[warm * each :: each], rel=1e-6)
    assert ours.saves == theirs.saves
    assert here.amounts == there.amounts
    assert peer.state.epoch == pytest.approx(_epochs(trainer.run))
    record_property("cases", 6)


def _epochs(run: Any) -> float:
    return run.step * run.config.training.batch_size / run.source.num_tasks()


@pytest.mark.parametrize("kind", ONLINE)
def test_evaluations_are_as_many_and_as_large(kind, tmp_path):
    words = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 3, "num_generations": 4}
    held_out = Dataset.from_list([{"prompt": f"Tell {n}."} for n in range(4)])
    found = both(kind, words, tmp_path, eval_dataset=held_out)
    (theirs, there, _), (ours, here, _) = found
    assert ours.evaluations == theirs.evaluations == 3
    sizes = [sum(len(c) for c in r.calls if c[0].startswith("Tell")) for r in (there, here)]
    assert sizes[0] == sizes[1] == 3 * 4 * 4


@pytest.mark.parametrize("words", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 5}])
def test_sampling_settings_that_reach_the_sampler(words, tmp_path):
    (_, _, peer), (_, _, trainer) = both("GRPO", {"max_steps": 2, **words}, tmp_path)
    ours, theirs = trainer.config.generation.sampling(), peer.generation_config
    assert ours.max_new_tokens == theirs.max_new_tokens
    assert (ours.temperature, ours.top_p) == (theirs.temperature, theirs.top_p)
    assert ours.top_k == (theirs.top_k or 0)


@pytest.mark.parametrize("name", [n for n in compatible_faces("trl") if n.endswith("Config")])
def test_the_defaults_are_theirs_and_each_may_be_written(name, tmp_path, record_property):
    config = getattr(trl, name)
    values = {each.name: each.default for each in dataclasses.fields(config)}
    values |= {
        each.name: each.default_factory()
        for each in dataclasses.fields(config)
        if each.default_factory is not dataclasses.MISSING
    }
    made = config(**common(tmp_path))
    for word, usual in compatible_faces("trl")[name].defaults.items():
        value = getattr(made, word)
        assert getattr(value, "value", value) == ([] if usual == "none" else usual), word
    values["gradient_checkpointing"] = False  # memory alone
    ours = getattr(mrlm.trl, name)
    ours(**values)  # all of them at once
    trainer = getattr(mrlm.trl, name.replace("Config", "Trainer"))
    kind = name.removesuffix("Config")
    parts = {"reward_funcs": Rewards()} if kind in ONLINE else {}
    plain, written = (
        trainer(mrlm.default_model(), train_dataset=ROWS[kind], args=args, **parts).config
        for args in (ours(), ours(**values))
    )
    assert written.resolved() == plain.resolved()
    record_property("cases", len(values))


@pytest.mark.parametrize("size", [3, 6])
def test_groups_that_do_not_divide_a_batch_are_refused_by_both(size, tmp_path):
    words = {"num_generations": size, **common(tmp_path)}
    with pytest.raises(ValueError, match=r"generation_batch_size \(8\) must be divisible"):
        trl.GRPOConfig(**words)
    make = mrlm.trl.GRPOTrainer
    with pytest.raises(ConfigError, match="= 8 completions cannot be divided") as caught:
        make(mrlm.default_model(), train_dataset=PROMPTS, reward_funcs=Rewards(), **words)
    advice = int(str(caught.value).rpartition("batch_size=")[2].split()[0])
    trl.GRPOConfig(per_device_train_batch_size=advice, **words)
    words["per_device_train_batch_size"] = advice
    make(mrlm.default_model(), train_dataset=PROMPTS, reward_funcs=Rewards(), **words)


class Tokens(mrlm.Callback):
    """Tokens of answers that one of our runs trains."""

    def __init__(self) -> None:
        self.count = 0

    def on_episodes(self, run: Any, step: int, episodes: Any) -> None:
        turns = [turn for episode in episodes for turn in episode.turns]
        self.count += sum(len(turn.completion_ids) for turn in turns)


@pytest.mark.parametrize("kind", ["prompt", "messages"])
def test_as_many_tokens_are_trained(kind, tmp_path):
    rows, path = ANSWERS, mrlm.default_model()
    if kind == "messages":
        rows = [
            {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "completion": [{"role": "assistant", "content": row["completion"]}],
            }
            for row in ANSWERS
        ]
    words = {"max_steps": 2, **common(tmp_path)}
    peer = trl.SFTTrainer(
        path,
        args=trl.SFTConfig(**words),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(path),
    )
    theirs = sum(int((batch["labels"] != -100).sum()) for batch in peer.get_train_dataloader())
    tokens = Tokens()
    ours = mrlm.trl.SFTTrainer(path, train_dataset=rows, callbacks=[tokens], **words)
    ours.train()
    newlines = len(rows) if kind == "messages" else 0  # after the end token
    assert tokens.count == theirs - newlines
