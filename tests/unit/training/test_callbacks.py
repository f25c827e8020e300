"""Callbacks of transformers act on a run, or are refused before it; a run stops when it no longer
improves, and keeps its best policies."""

import json
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    ProgressCallback,
    TrainerCallback,
)

import mrlm
from mrlm import EarlyStopping, GRPOTrainer
from mrlm.core.errors import ConfigError

ROWS = [{"prompt": f"Say {n}."} for n in range(4)]


def trainer(tmp_path: Any, **more: Any) -> Any:
    words: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_new_tokens": 2,
    }
    words |= {"report_to": "none", "num_iterations": 6, "learning_rate": 1e-3} | more
    words.setdefault("reward_func", lambda completions: [float(len(c)) for c in completions])
    return GRPOTrainer(
        mrlm.default_model(), train_dataset=ROWS, output_dir=str(tmp_path / "run"), **words
    )


class Noted(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.seen.append("begin")
        assert args.learning_rate == 1e-3 and args.max_new_tokens == 2
        assert args.num_generations == 4 and state.max_steps == 6

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **parts: Any) -> None:
        self.seen.append(f"log {state.global_step}")
        assert "loss" in logs or "policy_loss" in logs
        assert parts["model"].config.vocab_size and parts["processing_class"]

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> Any:
        control.should_save = state.global_step == 2
        control.should_training_stop = state.global_step == 3
        return control

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.seen.append(f"save {state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.seen.append(f"end {len(state.log_history)} {state.epoch}")


def test_the_common_hooks_of_transformers_are_called(tmp_path):
    noted = Noted()
    trainer(tmp_path, callbacks=[noted]).train()
    assert noted.seen == [*("begin", "log 1", "save 2", "log 2", "log 3", "save 3"), "end 3 0.75"]


class Deep(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        raise AssertionError


class Asking(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        control.should_evaluate = True


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (EarlyStoppingCallback(), r"callbacks\[0\].*use mrlm\.EarlyStopping"),
        (ProgressCallback(), "no hook on_predict"),
        (Deep(), "no hook on_pre_optimizer_step; derive it from mrlm.Callback"),
        (Noted, "it is a class; give an object"),
        (print, "derive it from mrlm.Callback"),
    ],
)
def test_others_are_refused_before_anything_is_loaded(tmp_path, given, text):
    with pytest.raises(ConfigError, match=text):
        trainer(tmp_path, callbacks=[given])


def test_what_a_run_does_not_take_from_a_control_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"control\.should_evaluate.*evaluation\.every"):
        trainer(tmp_path, callbacks=[Asking()]).train()


EVALUATED = {"eval_steps": 1, "eval_episodes": 2, "evaluation.at_start": False}


@pytest.mark.parametrize("from_config", [True, False])
def test_a_run_ends_when_evaluations_no_longer_improve(tmp_path, from_config):
    stopping = {"metric": "reward/mean", "patience": 2}
    more = (
        {"early_stopping": stopping} if from_config else {"callbacks": [EarlyStopping(**stopping)]}
    )
    made = trainer(
        tmp_path, reward_func=lambda completions: [0.5] * len(completions), **more, **EVALUATED
    )
    made.train()
    assert made.run.step == 3  # the first is the best, and two more were no better
    assert (made.run.folder / "final").is_dir()


class Falling:
    """Rewards of held-out tasks: better at first, then worse."""

    __name__ = "falling"

    def __init__(self) -> None:
        self.values = iter([1.0, 3.0, 2.0, 1.0, 0.0, 0.0])

    def __call__(self, completions: list[str]) -> list[float]:
        if len(completions) == 2:  # an evaluation
            return [next(self.values)] * 2
        return [float(len(c)) for c in completions]


def test_the_policies_of_the_best_evaluation_are_kept(tmp_path):
    made = trainer(tmp_path, keep_best=True, reward_func=Falling(), save_steps=1, **EVALUATED)
    made.config = made.config.merged({"training.save_total_limit": None})
    made.train()
    folder = made.run.folder
    assert json.loads((folder / "best.json").read_text()) == {
        "step": 2,
        "metric": "eval/reward/mean",
        "value": 3.0,
    }
    kept, last = (AutoModelForCausalLM.from_pretrained(folder / n) for n in ("best", "final"))
    second = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-2" / "policies" / "policy")
    for name, weight in kept.state_dict().items():
        assert weight.equal(second.state_dict()[name])
    assert any(not w.equal(last.state_dict()[n]) for n, w in kept.state_dict().items())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"callbacks": [EarlyStopping()]}, "set evaluation.every"),
        ({"keep_best": "reward/median", **EVALUATED}, "no metric 'eval/reward/median'"),
        ({"keep_best": True}, "keep_best.*nothing is evaluated"),
    ],
)
def test_what_cannot_be_judged_is_an_error(tmp_path, more, text):
    with pytest.raises(ConfigError, match=text):
        trainer(tmp_path, **more).train()
