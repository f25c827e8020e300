"""A reward model is trained from preferences, saved, loaded again, and trains a policy."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from mrlm import (
    GRPOTrainer,
    PPOTrainer,
    RewardModel,
    RewardModelTrainer,
    default_model,
    run_experiment,
)
from mrlm.config import parse_config
from mrlm.core.environment import as_environment
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role
from mrlm.data.tasks import joint_answer
from mrlm.environments.reward import RewardEnvironment

PAIRS = [{"prompt": f"{i}?", "chosen": "yes" * (1 + i % 2), "rejected": "no"} for i in range(8)]
QUIET: dict[str, Any] = {"report_to": "none"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model that prefers "yes" to "no"."""
    place = tmp_path_factory.mktemp("reward") / "run"
    trainer = RewardModelTrainer(
        train_dataset=PAIRS, output_dir=str(place), batch_size=8, learning_rate=2e-3, **QUIET
    )
    history = trainer.train(num_iterations=20).history
    assert history[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert history[-1]["rewards/accuracies"] == 1.0 and history[-1]["loss"] < 0.1
    return place / "final"


def by_hand(folder: Path, messages: list[dict[str, str]]) -> float:
    """The head at the last token of a conversation, with the libraries' own means."""
    model, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    text = tokenizer.apply_chat_template(messages, tokenize=False).rstrip("\n")
    assert text.endswith("<|im_end|>")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    head = load_file(folder / "value_head.safetensors")
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state[0, -1]
    return float(hidden @ head["linear.weight"][0] + head["linear.bias"][0])


def test_what_was_saved_scores_again(folder: Path) -> None:
    said = ["yes", "yesyes", "no", "yes"]
    scores = RewardModel(folder)(["3?", "3?", "3?", "5?"], said)
    assert min(scores[0], scores[1], scores[3]) > scores[2] + 1.0
    for prompt, text, score in zip(["3?", "3?", "3?", "5?"], said, scores, strict=True):
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
        assert score == pytest.approx(by_hand(folder, turns), abs=1e-4)


def test_it_takes_texts_and_conversations(folder: Path) -> None:
    model = RewardModel(folder, max_tokens=16)
    (text,) = model(["3?"], ["yes"])
    (rows,) = model(
        [[{"role": "user", "content": "3?"}]], [[{"role": "assistant", "content": "yes"}]]
    )
    (objects,) = model([[Message("3?")]], [[Message("yes", Role.ASSISTANT)]])
    assert text == pytest.approx(rows, abs=1e-6) and text == pytest.approx(objects, abs=1e-6)
    (long,) = model([[{"role": "system", "content": "Hm."}, Message("3?")]], ["yes"])
    assert long != pytest.approx(text, abs=1e-6)


def test_an_adapter_is_a_reward_model_too(tmp_path: Path) -> None:
    trainer = RewardModelTrainer(
        train_dataset=PAIRS,
        share_policy="lora",
        output_dir=str(tmp_path / "run"),
        batch_size=8,
        learning_rate=2e-3,
        **QUIET,
    )
    assert trainer.train(num_iterations=15).metrics["rewards/accuracies"] == 1.0
    good, bad = RewardModel(tmp_path / "run" / "final")(["9?", "9?"], ["yes", "no"])
    assert good > bad


def classifier(folder: Path, labels: int = 1) -> Path:
    """A published kind of reward model: a sequence classifier with random weights."""
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_labels=labels,
        pad_token_id=tokenizer.eos_token_id,  # as many have it: the mark that ends every message
    )
    torch.manual_seed(1)
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_sequence_classifier_is_a_reward_model(tmp_path: Path) -> None:
    """Scores are those of the model on each conversation alone, whatever is beside it."""
    folder = classifier(tmp_path)
    model = Qwen3ForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts, said = ["3?", "Is it?", "3?", ""], ["yes", "a rather long answer", "no", "x"]
    expected = []
    for prompt, text in zip(prompts, said, strict=True):
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = tokenizer(rendered, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(float(model(ids).logits[0, 0]))
    assert len({round(score, 4) for score in expected}) == 4
    for most in (16384, 40):
        found = RewardModel(folder, max_tokens=most)(prompts, said)
        assert found == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ConfigError, match="3 labels"):
        RewardModel(classifier(tmp_path / "three", labels=3))(["3?"], ["yes"])


@pytest.mark.parametrize("kind", [PPOTrainer, GRPOTrainer])
def test_a_policy_is_trained_against_it(kind: Any, folder: Path, tmp_path: Path) -> None:
    trainer = kind(
        train_dataset=[{"prompt": f"{i}?"} for i in range(4)],
        reward_func=RewardModel(folder),
        output_dir=str(tmp_path / "run"),
        batch_size=4,
        max_new_tokens=4,
        learning_rate=1e-3,
        **({"num_generations": 4} if kind is GRPOTrainer else {}),
        **QUIET,
    )
    result = trainer.train(num_iterations=2)
    assert result.metrics["grad_norm"] > 0
    assert result.metrics["reward/agent/reward_model"] == pytest.approx(
        result.metrics["reward/mean"]
    )


def test_a_config_names_its_folder(folder: Path, tmp_path: Path) -> None:
    world = {"env_type": "reward", "dataset": [{"prompt": "3?"}], "reward_model": str(folder)}
    config = {
        "environments": [world | {"agents": ["one", "two"]}],
        "policies": {"one": {}, "two": {"lora": {"r": 2}}},
        "training": {"algorithm": "grpo", "num_iterations": 1, "batch_size": 2} | QUIET,
        "generation": {"max_new_tokens": 3},
        "output_dir": str(tmp_path / "run"),
    }
    (row,) = run_experiment(parse_config(config)).history
    assert math.isfinite(row["reward/mean"]) and row["reward/mean"] != 0.0


def test_it_reads_answers_one_by_one_or_as_one_text(folder: Path) -> None:
    said = {"one": "yes", "two": "no"}
    model = RewardModel(folder)
    expected = {
        "agent": sum(model(["3?", "3?"], ["yes", "no"])) / 2,
        "team": model(["3?"], [joint_answer(said)])[0],
    }
    assert expected["agent"] != pytest.approx(expected["team"], abs=1e-3)
    for reads, score in expected.items():
        world = as_environment(
            RewardEnvironment(
                [{"prompt": "3?"}],
                agents=("one", "two"),
                reward_model=str(folder),
                reward_model_reads=reads,
            )
        )
        world.reset(world.task(0))
        actions = {agent: Message(text, Role.ASSISTANT) for agent, text in said.items()}
        rewards = run_async(world.step(actions)).rewards
        assert rewards["one"].value == rewards["two"].value == pytest.approx(score, abs=1e-4)


def test_a_folder_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"value_head\.safetensors does not exist; train one"):
        RewardModel(default_model())
    world = {"env_type": "reward", "dataset": [{"prompt": "3?"}], "reward_model": default_model()}
    config = parse_config(
        {"environments": [world], "output_dir": str(tmp_path / "run"), "training": QUIET}
    )
    with pytest.raises(ConfigError, match="is not a reward model"):
        run_experiment(config)


def test_a_reward_model_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    world = {"env_type": "reward", "dataset": [{"prompt": "3?"}]}
    config = parse_config(
        {
            "environments": [world | {"reward_model": str(tmp_path / "none")}],
            "output_dir": str(tmp_path / "run"),
            "training": QUIET | {"num_iterations": 1},
            "generation": {"max_new_tokens": 2},
        }
    )
    with pytest.raises(Exception, match="does not exist"):
        run_experiment(config)
