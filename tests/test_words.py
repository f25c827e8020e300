"""Words of other trainers arrive where they mean something, and never overwrite a value."""

from __future__ import annotations

import dataclasses

import pytest

from mrlm.config import (
    DPOConfig,
    ExperimentConfig,
    GRPOConfig,
    IPPOConfig,
    MAGRPOConfig,
    MAPPOConfig,
    PPOConfig,
    QMIXConfig,
    ReinforceConfig,
    RLOOConfig,
    SACConfig,
    SFTConfig,
    TrainingConfig,
    VDNConfig,
    parse_config,
)
from mrlm.config.aliases import NUM_AGENTS, PER_DEVICE, WORDS
from mrlm.config.flat_words import FlatWords, algorithm_fields, changed_fields, split_config
from mrlm.config.play_sections import EvaluationConfig, GenerationConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError

CONFIGS = {
    "dpo": DPOConfig,
    "grpo": GRPOConfig,
    "ippo": IPPOConfig,
    "magrpo": MAGRPOConfig,
    "mappo": MAPPOConfig,
    "ppo": PPOConfig,
    "qmix": QMIXConfig,
    "reinforce": ReinforceConfig,
    "rloo": RLOOConfig,
    "sac": SACConfig,
    "sft": SFTConfig,
    "vdn": VDNConfig,
}


def test_every_word_is_a_field_and_every_field_a_word():
    assert {field.name for field in dataclasses.fields(FlatWords)} == set(WORDS)


def test_every_path_leads_to_a_setting():
    fields = set().union(*(algorithm_fields(cls) for cls in CONFIGS.values()))
    sections = {
        "training": TrainingConfig,
        "generation": GenerationConfig,
        "evaluation": EvaluationConfig,
    }
    for name, word in WORDS.items():
        section, _, key = word.path.rpartition(".")
        if section == "algorithm":
            assert key in fields, name
        elif section in sections and word.path != PER_DEVICE:
            assert key in sections[section].model_fields, name
        elif not section and word.path != NUM_AGENTS:
            assert key in ExperimentConfig.model_fields, name


@pytest.mark.parametrize("name", CONFIGS)
def test_config_classes_keep_the_algorithms_defaults(name):
    algorithm, config = registry.load("algorithms", name), CONFIGS[name]
    assert algorithm_fields(config) == algorithm_fields(algorithm)
    empty = config()
    assert changed_fields(empty) == {} and split_config(empty) == ({}, {})
    for field, default in algorithm_fields(algorithm).items():
        assert getattr(empty, field) == default


def test_the_field_wins_over_the_word():
    assert DPOConfig().beta == 0.1
    assert split_config(DPOConfig(beta=0.3)) == ({"beta": 0.3}, {})
    assert split_config(DPOConfig(dpo_beta=0.3)) == ({"beta": 0.3}, {})
    assert split_config(GRPOConfig(beta=0.3)) == ({"kl_coef": 0.3}, {})
    with pytest.raises(ValueError, match="beta"):
        DPOConfig(beta=-1)


def test_args_are_split_into_algorithm_and_rest():
    args = MAGRPOConfig(
        per_device_train_batch_size=1, num_generations=4, max_new_tokens=16, num_train_epochs=1
    )
    fields, paths = split_config(args)
    assert fields == {"group_size": 4}
    assert paths == {PER_DEVICE: 1, "generation.max_new_tokens": 16, "training.num_epochs": 1}
    config = ExperimentConfig(training={"algorithm": "magrpo"}).joined(paths, fields)
    assert (config.training.batch_size, config.magrpo.group_size) == (1, 4)
    assert config.generation.max_new_tokens == 16


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        ({"learning_rate": "1e-5"}, "training.learning_rate", 1e-5),
        ({"max_steps": 7}, "training.num_iterations", 7),
        ({"max_steps": -1}, "training.num_iterations", None),
        ({"num_train_epochs": 3.0}, "training.num_epochs", 3),
        ({"optim": "adamw_torch_fused"}, "training.optimizer", "adamw"),
        ({"bf16": True}, "training.precision", "bf16"),
        ({"bf16": False, "fp16": True}, "training.precision", "fp16"),
        ({"warmup_ratio": 0.1}, "training.warmup_ratio", 0.1),
        ({"report_to": "none"}, "training.report_to", []),
        ({"report_to": "wandb"}, "training.report_to", ["wandb"]),
        ({"max_completion_length": 9}, "generation.max_new_tokens", 9),
        ({"max_prompt_length": None}, "generation.max_prompt_tokens", None),
        ({"top_k": None}, "generation.top_k", 0),
        ({"top_k": -1}, "generation.top_k", 0),
        ({"eval_steps": 5}, "evaluation.every", 5),
        ({"eval_interval": 0}, "evaluation.every", None),
        ({"run_name": "r"}, "experiment_name", "r"),
        ({"num_generations": 4}, "grpo.group_size", 4),
        ({"epsilon": 0.1, "epsilon_high": 0.3}, "grpo.clip_range_high", 0.3),
        ({"beta": 0.1}, "grpo.kl_coef", 0.1),
        ({"scale_rewards": False}, "grpo.scale_rewards", "none"),
        ({"per_device_train_batch_size": 3}, "training.batch_size", 3),
        (
            {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4},
            "training.batch_size",
            12,
        ),
        ({"batch_size": 4, "train_batch_size": 4}, "training.batch_size", 4),
    ],
)
@pytest.mark.parametrize("place", ["top", "training", "grpo", "keywords"])
def test_a_word_means_the_same_wherever_it_stands(words, path, value, place):
    if place == "keywords":
        config = ExperimentConfig().joined(words)
    else:
        config = parse_config(words if place == "top" else {place: words})
    section, _, key = path.rpartition(".")
    holder = getattr(config, section) if section else config
    assert getattr(holder, key) == value


@pytest.mark.parametrize(
    "data",
    [
        {"learning_rate": 1e-5, "training": {"learning_rate": 2e-5}},
        {"training": {"learning_rate": 1e-5}, "grpo": {"learning_rate": 2e-5}},
        {"grpo": {"group_size": 1e-5, "num_generations": 2e-5}},
        {"training": TrainingConfig(learning_rate=1e-5), "grpo": GRPOConfig(learning_rate=2e-5)},
    ],
)
def test_one_setting_with_two_values_shows_both(data):
    with pytest.raises(ConfigError) as caught:
        ExperimentConfig(**data)
    assert "1e-05" in str(caught.value) and "2e-05" in str(caught.value)


def test_arguments_may_not_contradict_a_config():
    config = ExperimentConfig(training={"seed": 1, "batch_size": 4}, grpo={"group_size": 4})
    assert config.joined({"seed": 1}, {"group_size": 4}).training.seed == 1
    for words, fields in (({"seed": 2}, {}), ({}, {"group_size": 2}), ({"num_generations": 2}, {})):
        with pytest.raises(ConfigError, match="two values"):
            config.joined(words, fields)
    with pytest.raises(ConfigError, match=r"GRPOConfig.group_size.*GRPOConfig.num_generations"):
        split_config(GRPOConfig(group_size=4, num_generations=2))


def test_both_precisions_at_once_are_refused():
    with pytest.raises(ConfigError, match=r"'bf16'.*'fp16'"):
        parse_config({"bf16": True, "fp16": True})


def test_a_word_the_algorithm_has_no_setting_for_is_refused():
    with pytest.raises(ConfigError, match=r"SFTConfig.epsilon.*clip_range"):
        split_config(SFTConfig(epsilon=0.1))
    with pytest.raises(ConfigError, match="clip_range"):
        parse_config({"training": {"algorithm": "sft"}, "epsilon": 0.1})
    with pytest.raises(ConfigError, match="nonsense: unknown key"):
        ExperimentConfig().joined({"nonsense": 1})


def test_a_batch_size_that_is_no_number_is_named():
    with pytest.raises(ConfigError, match=r"training\.per_device_train_batch_size"):
        parse_config({"training": {"per_device_train_batch_size": "many"}})


def test_words_for_a_stage_belong_in_the_stage():
    stages = [{"name": "warm", "training": {"algorithm": "sft"}}]
    with pytest.raises(ConfigError, match=r"sft.learning_rate"):
        ExperimentConfig(sft=SFTConfig(learning_rate=1e-3), stages=stages)


def test_any_setting_of_the_algorithm_is_a_word():
    config = parse_config({"training": {"algorithm": "ppo"}, "gae_lambda": 0.9, "lam": 0.9})
    assert config.ppo.gae_lambda == 0.9
    assert parse_config({"algorithm": "ppo", "gamma": 0.5}).ppo.gamma == 0.5


def test_an_algorithm_of_ones_own_may_take_words_as_fields():
    from pydantic.dataclasses import dataclass

    from mrlm.learn.bases.algorithm import STRICT, Algorithm

    @dataclass(kw_only=True, config=STRICT)
    class Mine(Algorithm):
        temperature: float = 0.25
        top_k: int = 3

    @dataclass(kw_only=True, config=STRICT)
    class MineConfig(FlatWords, Mine):
        pass

    settings = MineConfig(learning_rate=1.0)
    assert (settings.temperature, settings.top_k, settings.top_p) == (0.25, 3, None)
    assert split_config(MineConfig(top_k=4, top_p=0.5)) == (
        {"top_k": 4},
        {"generation.top_p": 0.5},
    )


@pytest.mark.parametrize(("given", "critic"), [(True, "separate"), (False, "shared"), (None, None)])
def test_a_separate_critic_may_be_asked_for_as_elsewhere(given, critic):
    data = {"training": {"algorithm": "ippo"}, "use_separate_critic": given}
    expected = critic or IPPOConfig().critic
    assert parse_config(data).algorithm_settings().critic == expected
    with pytest.raises(ConfigError, match="critic='shared' is none that this algorithm knows"):
        parse_config({"training": {"algorithm": "mappo"}, "use_separate_critic": False})
