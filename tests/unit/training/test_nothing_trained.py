"""A step that trains nothing ends the run with its cause; ties are counted; what ends a run saves
the steps before."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import mrlm
from mrlm.core.errors import CheckError, ConfigError, MRLMError, TrainingError
from mrlm.core.types import Turn
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.no_gradient import check_gradient
from mrlm.learn.policy.policy import Policy
from mrlm.runs import TrainResult

PROMPTS = [{"prompt": f"say {n}"} for n in range(4)]
QUESTION = {"messages": [{"role": "user", "content": "2+2="}]}
ANSWERED = {"prompt": "2+2=", "completion": "4"}
PAIR = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}


def unknown(completions: list[Any], **columns: Any) -> list[None]:
    return [None] * len(completions)


def lengths(completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


PLAYED: dict[str, Any] = {"train_dataset": PROMPTS, "num_generations": 2, "max_new_tokens": 2}
CAUSES: dict[str, tuple[str, dict[str, Any], str]] = {
    "all None": ("GRPO", PLAYED | {"reward_func": unknown}, "reward of all 16 episodes is None"),
    "all None, ppo": ("PPO", PLAYED | {"reward_func": unknown, "num_generations": None}, "is None"),
    "all None, pairs": ("OnlineDPO", PLAYED | {"reward_func": unknown}, "is None"),
    "no assistant": ("SFT", {"train_dataset": [QUESTION] * 2}, "no row has a message of a trained"),
    "all cut": (
        "GRPO",
        PLAYED | {"reward_func": lengths, "mask_truncated": True},
        "all 16 completions were cut at the token limit",
    ),
    "same sides": (
        "DPO",
        {"train_dataset": [PAIR | {"rejected": "4"}] * 2},
        "both sides of all pairs the same",
    ),
    "no observation": (
        "SFT",
        {"train_dataset": [ANSWERED] * 2, "mode": "world_model"},
        "text that they do not have",
    ),
}


def trainer(name: str, folder: Path, **words: Any) -> Any:
    words = {"model": mrlm.default_model(), "num_iterations": 2, "report_to": "none"} | words
    chosen = {key: value for key, value in words.items() if value is not None}
    return getattr(mrlm, f"{name}Trainer")(output_dir=str(folder), **chosen)


@pytest.mark.parametrize("cause", CAUSES)
def test_no_token_to_train_on_ends_the_run(cause: str, tmp_path: Path) -> None:
    name, words, message = CAUSES[cause]
    with pytest.raises(CheckError, match=f"iteration 1 has no token to train on: .*{message}"):
        trainer(name, tmp_path, **words).train()


def test_it_is_a_warning_if_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mrlm"):
        trainer("GRPO", tmp_path, **PLAYED, reward_func=unknown, checks="warn").train()
    assert caplog.text.count("no token to train on") == 2


def test_a_pair_of_equal_answers_among_others_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run does not end for one row that teaches nothing, after rows that were trained on."""
    rows = [PAIR, PAIR | {"rejected": "4"}]
    options = {"batch_size": 1, "num_iterations": 4, "seed": 0}
    with caplog.at_level(logging.WARNING, "mrlm"):
        result = trainer("DPO", tmp_path, train_dataset=rows, **options).train()
    trained = [bool(row["tokens/trained"]) for row in result.history]
    assert trained[0] and sum(trained) == 2
    assert caplog.text.count("both sides of all pairs the same") == 2
    assert "2 of 4 steps had only ties, and trained nothing" in caplog.text


def test_equal_rewards_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mrlm"):
        result = trainer(
            "GRPO",
            tmp_path,
            **PLAYED,
            reward_func=lambda completions, **_: [0.0] * len(completions),
        ).train()
    assert "2 of 2 steps had only ties, and trained nothing" in caplog.text
    assert "2 of 2 steps had only ties" in str(result)


class Detached(torch.nn.Module):
    """A model whose forward does not use its weights, although autograd reaches them."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:
        logits = self.inner(input_ids, attention_mask=attention_mask).logits
        return logits.detach() + 0.0 * next(self.inner.parameters()).sum()


def parts() -> tuple[Any, Any]:
    path = mrlm.default_model()
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


ROWS: dict[str, dict[str, Any]] = {
    "SFT": {"train_dataset": [ANSWERED] * 2},
    "DPO": {"train_dataset": [PAIR] * 2},
    "GRPO": {"train_dataset": PROMPTS, "num_generations": 4, "max_new_tokens": 4},
    "PPO": {"train_dataset": PROMPTS, "max_new_tokens": 4, "critic": "separate"},
}


@pytest.mark.parametrize("name", ["SFT", "DPO", "GRPO"])
def test_a_gradient_of_exactly_0_ends_the_run(name: str, tmp_path: Path) -> None:
    model, tokenizer = parts()
    words = ROWS[name] | ({} if name in ("SFT", "DPO") else {"reward_func": lengths})
    with pytest.raises(TrainingError, match=r"gradient is exactly 0 in all .* has a slope at"):
        trainer(name, tmp_path, model=Detached(model), tokenizer=tokenizer, **words).train()


@pytest.mark.parametrize("name", ROWS)
def test_frozen_weights_end_the_run(name: str, tmp_path: Path) -> None:
    model, tokenizer = parts()
    model.requires_grad_(False)
    words = ROWS[name] | ({} if name in ("SFT", "DPO") else {"reward_func": lengths})
    words |= {"critic": "shared"} if name == "PPO" else {}  # a value head alone trains no policy
    with pytest.raises(ConfigError, match="policy 'policy' has no parameter to train"):
        trainer(name, tmp_path, model=model, tokenizer=tokenizer, **words).train()


def test_a_flat_loss_is_no_error(tmp_path: Path) -> None:
    """Every ratio of later epochs is outside the clip range, so that their gradients are 0."""
    words = ROWS["GRPO"] | {"update_epochs": 3, "clip_range": 1e-7, "learning_rate": 1.0}
    result = trainer("GRPO", tmp_path, reward_func=lengths, max_grad_norm=None, **words).train()
    assert isinstance(result, TrainResult)


def test_a_program_without_handlers_sees_warnings_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    words = PLAYED | {"reward_func": lambda completions: [1.0] * len(completions)}
    trainer("GRPO", tmp_path, **words).train()
    assert capsys.readouterr().err.count("check variance: none of the 8 groups") == 1
    assert not logging.getLogger("mrlm").handlers


OWN: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "frozen": (lambda model: model.requires_grad_(False), [1.0, 0.0], "no parameter to train"),
    "frozen, team": (lambda model: model.requires_grad_(False), [1.0, 0.0], "parameter to train"),
    "frozen, ppo": (lambda model: model.requires_grad_(False), [1.0, 0.0], "parameter to train"),
    "no reward": (lambda model: model, [None, None], "no reward is a finite number"),
}


@pytest.mark.parametrize("cause", OWN)
def test_own_loops_name_the_cause(cause: str) -> None:
    change, rewards, message = OWN[cause]
    model, tokenizer = parts()
    rollouts = [
        mrlm.Rollout().add_messages(
            mrlm.Message("2+2="), mrlm.Message(text, mrlm.MessageType.MODEL, agent="a")
        )
        for text in "45"
    ]
    algorithm = mrlm.GRPO() if cause in ("frozen", "no reward") else mrlm.PPO()
    learner: Any = mrlm.Learner(change(model), tokenizer, algorithm)
    if cause == "frozen, team":
        learner = mrlm.TeamLearner({"a": (model, tokenizer)}, algorithm)
    with pytest.raises(MRLMError, match=message):
        learner.calculate_loss(rollouts, rewards)


def test_slopes_of_equal_siblings_cancel_which_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An agent that is nearly certain writes the same in all siblings, while the rewards of its
    team differ: in float32 the gradient may be exactly 0. A sibling that differs has a slope."""
    model, tokenizer = parts()
    policy = Policy("first", model, tokenizer)

    def check(*answers: list[int]) -> None:
        turns = [
            Turn("a", "first", [5, 6, 7], ids, [-0.1] * len(ids), advantages=advantage)
            for ids, advantage in zip(answers, (0.25, 0.25, -0.25, -0.25), strict=True)
        ]
        samples = [merge([turn], rollout=number)[0] for number, turn in enumerate(turns)]
        with policy.scoring():
            logprobs = policy.forward(pack(samples)).logprobs.tolist()
        for number, turn in enumerate(turns):  # as sampled by these weights
            turn.logprobs = logprobs[2 * number : 2 * number + 2]
        check_gradient(policy, samples, mrlm.GRPO(), max_tokens=1000)

    check([8, 9], [8, 9], [8, 9], [8, 9])
    assert "'first': siblings wrote the same, so that their advantages cancel" in caplog.text
    with pytest.raises(TrainingError, match=r"exactly 0 in all .* a slope at 2 of 8 tokens"):
        check([8, 9], [8, 10], [8, 9], [8, 11])


def test_slopes_of_values_at_one_state_cancel_whatever_is_written_there() -> None:
    """A value is a function of the tokens before its own; two returns about it pull both ways."""
    model, tokenizer = parts()
    policy = Policy("first", model, tokenizer)
    policy.add_value_head()

    def check(*states: list[int]) -> None:
        turns = [
            Turn("a", "first", ids, [token], [-0.1], advantages=0.0)
            for ids, token in zip(states, (8, 9), strict=True)
        ]
        samples = [merge([turn], rollout=number)[0] for number, turn in enumerate(turns)]
        with policy.scoring():
            outputs = policy.forward(pack(samples))
        for turn, sign in zip(turns, (1.0, -1.0), strict=True):
            turn.values = outputs.values.tolist()[:1]
            turn.returns = [turn.values[0] + sign]
        check_gradient(policy, samples, mrlm.PPO(vf_coef=0.5), max_tokens=1000)

    check([5, 6, 7], [5, 6, 7])
    with pytest.raises(TrainingError, match=r"a slope at 2 of 2 tokens"):
        check([5, 6, 7], [5, 7, 6])


def test_own_loops_find_a_gradient_of_exactly_0() -> None:
    model, tokenizer = parts()
    rollout = mrlm.Rollout().add_messages(
        mrlm.Message("2+2="), mrlm.Message("4", mrlm.MessageType.MODEL)
    )
    loss = mrlm.Learner(Detached(model), tokenizer, mrlm.SFT()).calculate_loss([rollout], [1.0])
    (loss * 0).backward(retain_graph=True)  # the loop's own 0
    with pytest.raises(TrainingError, match=r"gradient is exactly 0 in all .* has a slope at"):
        loss.backward()
    mrlm.Learner(model, tokenizer, mrlm.SFT()).calculate_loss([rollout], [1.0]).backward()


def test_what_ends_a_run_saves_the_steps_before(tmp_path: Path) -> None:
    """And the run goes on from there as if nothing had happened."""
    broken = [False]

    def fails_later(completions: list[Any], **columns: Any) -> list[float]:
        if broken[0] and fails_later.calls > 40:  # type: ignore[attr-defined]
            raise RuntimeError("the server is gone")
        fails_later.calls += len(completions)  # type: ignore[attr-defined]
        return lengths(completions)

    words = PLAYED | {"num_iterations": 4, "batch_size": 8, "reward_func": fails_later}
    words |= {"learning_rate": 1e-2, "evaluation": {"every": None, "episodes": 0}}
    fails_later.calls = 0  # type: ignore[attr-defined]
    whole = trainer("GRPO", tmp_path / "whole", **words).train()
    fails_later.calls, broken[0] = 0, True  # type: ignore[attr-defined]
    with pytest.raises(MRLMError) as failed:
        trainer("GRPO", tmp_path / "run", **words).train()
    steps = len((tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert steps and failed.value.__notes__ == [f"checkpoint-{steps} is saved"]
    broken[0] = False
    again = trainer("GRPO", tmp_path / "run", **words).train(resume_from_checkpoint=True)
    keys = ("loss", "grad_norm", "reward/mean")
    assert [[row.get(key) for key in keys] for row in again.history] == [
        [row.get(key) for key in keys] for row in whole.history
    ]


def test_the_commands_say_how_a_run_ended(tmp_path: Path, run: Any) -> None:
    with pytest.raises(CheckError):
        trainer("GRPO", tmp_path / "run", **PLAYED, reward_func=unknown).train()
    message = "this run ended in step 1 with check signal"
    done = run("doctor", str(tmp_path / "run"))
    assert done.code == 1 and message in done.out
    done = run("doctor", str(tmp_path / "run"), "--json")
    ended, examined = map(json.loads, done.out.splitlines())
    assert done.code == 1 and message in ended["because"] and examined["ready"] < examined["rules"]
    (tmp_path / "run" / "run.log").unlink()  # as a kill in the first step leaves it
    done = run("doctor", str(tmp_path / "run"))
    assert done.code == 1 and "no step of this run has ended" in done.out
    code = "import sys, pathlib, mrlm.build.lock as x; x.lock(pathlib.Path(sys.argv[1])); input(1)"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as writer:  # that run in its first step
        assert writer.stdout is not None and writer.stdout.read(1) == b"1"
        done = run("doctor", str(tmp_path / "run"))
        writer.communicate(b"\n")
    assert done.code == 0 and "no alarms" in done.out
