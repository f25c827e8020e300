"""CoMLRL's trainers and ours run the same scripts in one process, and both count: joint rewards,
optimiser steps of every agent, rates, evaluations, epochs, sampling settings and defaults."""

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("comlrl", reason="make test-extras installs CoMLRL")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import mrlm
import mrlm.comlrl
from mrlm.config.compatible import compatible_faces

TITLE = "CoMLRL's trainers, counted"
JUDGE = "CoMLRL 1.4.3"
DIFFERENCES = (
    "with several turns an optimiser step takes whole trees of tasks, because the weights that "
    "sampled them are those that are trained; CoMLRL takes one for every two nodes of a tree",
    "MADPO samples new pairs in every step, one of each state, because pairs of older weights are "
    "another policy's; CoMLRL samples 16 for each row once",
    "the last step is evaluated too, because a run's result is its last evaluation; CoMLRL "
    "evaluates before every eval_interval-th task of an epoch",
    "the end token of an answer is trained once; CoMLRL trains padding after it too",
)
ROWS = [{"prompt": f"Say {n}."} for n in range(16)]
REINFORCE = ["MAGRPO", "MAREINFORCE", "MARLOO", "MAReMax"]
CRITICS = ["IAC", "MAAC"]
COUNTED: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in [*REINFORCE, *CRITICS]),
    ("MAGRPO", {"rollout_buffer_size": 4, "num_generations": 2, "num_train_epochs": 2}),
    ("MAGRPO", {"rollout_buffer_size": 4, "train_batch_size": 2}),
    ("IAC", {"rollout_buffer_size": 4, "num_generations": 2}),
    ("IAC", {"use_separate_critic": False, "num_agents": 1}),
]


class Counts(mrlm.Callback):
    """Optimiser steps, rates and evaluations of one of our runs."""

    def __init__(self) -> None:
        self.steps, self.rates, self.evaluations = 0, set(), 0

    def on_step_end(self, run: Any, metrics: Mapping[str, float]) -> None:
        self.steps += run.algorithm.update_epochs * run.algorithm.num_minibatches
        rate = metrics.get("agent_0/learning_rate", metrics.get("learning_rate"))
        self.rates.add(rate)

    def on_evaluate(self, run: Any, metrics: Mapping[str, float]) -> None:
        self.evaluations += 1


class Rewards:
    """A joint reward function that counts what it scores."""

    def __init__(self, agents: int) -> None:
        self.calls: list[tuple[str, ...]] = []
        one = lambda first: self._of(first)  # noqa: E731
        two = lambda first, second: self._of(first, second)  # noqa: E731
        self.function = one if agents == 1 else two

    def _of(self, *completions: list[str]) -> list[float]:
        joint = list(zip(*completions, strict=True))  # of a call with several samples, each counts
        self.calls += joint
        return [float(sum(map(len, texts)) % 5) - 9.0 for texts in joint]


def _theirs(name: str) -> Any:
    part = "reinforce" if name[:-6] in REINFORCE or name[:-7] in REINFORCE else "actor_critic"
    part = "preference" if name.startswith("MADPO") else part
    return getattr(importlib.import_module(f"comlrl.trainers.{part}"), name)


def _their_run(kind: str, words: dict[str, Any], folder: Path, **more: Any) -> Any:
    path, count = mrlm.default_model(), words.get("num_agents", 2)
    rewards, steps, rates = Rewards(count), [0], set()
    models = [AutoModelForCausalLM.from_pretrained(path) for _ in range(count)]
    shared = words.get("use_separate_critic") is False
    if kind == "IAC" and not shared:
        more["critics"] = [AutoModelForCausalLM.from_pretrained(path) for _ in range(count)]
    if kind == "MAAC":
        more["critics"] = [AutoModelForCausalLM.from_pretrained(path)]
    trainer = _theirs(f"{kind}Trainer")(
        agents=models,
        tokenizer=AutoTokenizer.from_pretrained(path),
        reward_func=rewards.function,
        train_dataset=Dataset.from_list(ROWS),
        args=_theirs(f"{kind}Config")(**words),
        **more,
    )
    optimizers = trainer.optimizers if kind in REINFORCE else trainer.agent_optimizers
    real = optimizers[0].step

    def step(*args: Any, **kwargs: Any) -> Any:
        steps[0] += 1
        rates.add(optimizers[0].param_groups[0]["lr"])
        return real(*args, **kwargs)

    optimizers[0].step = step
    evaluations, evaluate = [0], trainer.evaluate

    def evaluated(*args: Any, **kwargs: Any) -> Any:
        if trainer.eval_dataset is not None:
            evaluations[0] += 1
        return evaluate(*args, **kwargs)

    trainer.evaluate = evaluated
    trainer.train()
    return rewards, steps[0], rates, evaluations[0]


def _our_run(kind: str, words: dict[str, Any], folder: Path, **more: Any) -> Any:
    path, count, counts = mrlm.default_model(), words.get("num_agents", 2), Counts()
    rewards = Rewards(count)
    if kind in CRITICS and words.get("use_separate_critic") is not False:
        more["critics"] = [path] * (count if kind == "IAC" else 1)
    trainer = getattr(mrlm.comlrl, f"{kind}Trainer")(
        agents=[AutoModelForCausalLM.from_pretrained(path) for _ in range(count)],
        tokenizer=AutoTokenizer.from_pretrained(path),
        reward_func=rewards.function,
        train_dataset=Dataset.from_list(ROWS),
        args=getattr(mrlm.comlrl, f"{kind}Config")(**words),
        callbacks=[counts],
        output_dir=str(folder / "ours"),
        report_to="none",
        **more,
    )
    trainer.train()
    return rewards, counts.steps, counts.rates, counts.evaluations, trainer


@pytest.mark.parametrize(("kind", "words"), COUNTED)
def test_a_run_does_as_much_as_theirs(kind, words, tmp_path, record_property):
    words = {"num_turns": 1, "max_new_tokens": 3, "num_train_epochs": 1} | words
    there, steps, rates, _ = _their_run(kind, words, tmp_path)
    here, ours, ours_rates, _, trainer = _our_run(kind, words, tmp_path)
    assert len(here.calls) == len(there.calls) > 0
    assert ours == steps > 0
    assert ours_rates == rates == {5e-6}
    assert trainer.run.source.num_tasks() == len(ROWS)
    record_property("cases", 4)


def test_two_turns_play_the_same_tree(tmp_path):
    words = {"max_new_tokens": 3, "num_train_epochs": 1, "num_generations": 2}

    def again(prompt: str, agent_completions: list[str], num_agents: int, **history: Any) -> Any:
        return [f"{prompt} Again."] * num_agents

    there, *_ = _their_run("MAGRPO", words, tmp_path, external_transition=again)
    here, *_ = _our_run("MAGRPO", words, tmp_path, external_transition=again)
    assert len(here.calls) == len(there.calls) == len(ROWS) * (2 + 4)


def test_evaluations_are_those_of_the_intervals_and_the_last(tmp_path):
    held_out = Dataset.from_list([{"prompt": f"Tell {n}."} for n in range(3)])
    words = {"num_turns": 1, "max_new_tokens": 3, "num_train_epochs": 1, "eval_interval": 8}
    there, _, _, theirs = _their_run("MAGRPO", words, tmp_path, eval_dataset=held_out)
    here, _, _, ours, _ = _our_run("MAGRPO", words, tmp_path, eval_dataset=held_out)
    assert (theirs, ours) == (2, 3)  # before tasks 0 and 8; and at the end
    assert len(here.calls) - len(there.calls) == 3


def test_sampling_settings_reach_the_sampler(tmp_path):
    found: dict[str, Any] = {}

    class Watched(type(AutoModelForCausalLM.from_pretrained(mrlm.default_model()))):  # type: ignore[misc]
        def generate(self, **settings: Any) -> Any:
            found.update(settings)
            return super().generate(**settings)  # pyright: ignore

    model = Watched.from_pretrained(mrlm.default_model())
    trainer = _theirs("MAGRPOTrainer")(
        agents=[model] * 2,
        tokenizer=AutoTokenizer.from_pretrained(mrlm.default_model()),
        reward_func=Rewards(2).function,
        train_dataset=Dataset.from_list(ROWS[:2]),
        args=_theirs("MAGRPOConfig")(num_turns=1, num_train_epochs=1),
    )
    torch.manual_seed(0)
    trainer.train()
    ours = mrlm.comlrl.MAGRPOTrainer(
        agent_model=mrlm.default_model(),
        reward_func=Rewards(2).function,
        train_dataset=ROWS,
        num_turns=1,
    ).config.generation.sampling()
    names = ("max_new_tokens", "temperature", "top_p", "top_k")
    assert [getattr(ours, name) for name in names] == [found[name] for name in names]


NAMES = [name for name in compatible_faces("comlrl") if name.endswith("Config")]


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_theirs_and_each_may_be_written(name, record_property):
    made = _theirs(name)()
    values = {each.name: getattr(made, each.name) for each in dataclasses.fields(made)}
    for word, usual in compatible_faces("comlrl")[name].defaults.items():
        assert values[word] == usual, word
    written = getattr(mrlm.comlrl, name)(**values)
    trainer = getattr(mrlm.comlrl, name.replace("Config", "Trainer"))
    parts = {"train_dataset": ROWS, "reward_func": Rewards(2).function}
    if values["num_turns"] > 1:
        parts["external_transition"] = lambda **history: ["Again."] * 2
    path = mrlm.default_model()
    plain = trainer(agent_model=path, **parts).config
    assert trainer(agent_model=path, args=written, **parts).config.resolved() == plain.resolved()
    record_property("cases", len(values))
