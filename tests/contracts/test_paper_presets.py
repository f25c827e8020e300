"""Presets resolve to the numbers of their papers, which are written down here a second time."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.presets import PAGE, page

from mrlm import GRPOConfig, GRPOTrainer, Learner, default_model, load_config
from mrlm.algorithms.dr_mas import DrMAS
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.marft import MARFT
from mrlm.config import ExperimentConfig
from mrlm.config.flat_words import algorithm_fields, changed_fields, split_config
from mrlm.core import registry
from mrlm.core.errors import ConfigError

HARL = {"clip_range": 0.2, "gamma": 0.99, "gae_lambda": 0.95, "entropy_coef": 0.01}
TEAM = {"loss_type": "reinforce", "gamma": 1.0, "group_size": 4, "returns": "joint"}
PAPERS: dict[str, tuple[str, float | None, dict[str, Any]]] = {
    "grpo": (
        "grpo",
        1e-6,
        {
            "loss_type": "grpo",
            "scale_rewards": "group",
            "kl_coef": 0.04,
            "kl_estimator": "k3",
            "group_size": 64,
            "update_epochs": 1,
            "num_minibatches": 1,
        },
    ),
    "deepseek_r1": (
        "grpo",
        3e-6,
        {"clip_range": 10.0, "kl_coef": 0.001, "group_size": 16, "num_minibatches": 16},
    ),
    "dr_grpo": (
        "grpo",
        1e-6,
        {"loss_type": "dr_grpo", "scale_rewards": "none", "group_size": 8, "kl_coef": 0.0},
    ),
    "dapo": (
        "grpo",
        1e-6,
        {
            "loss_type": "ppo",
            "aggregation": None,
            "scale_rewards": "group",
            "clip_range": 0.2,
            "clip_range_high": 0.28,
            "kl_coef": 0.0,
            "group_size": 16,
            "num_minibatches": 16,
            "dynamic_sampling": True,
            "overlong_max_length": 16384 + 4096,
            "overlong_cache": 4096,
        },
    ),
    "gspo": (
        "grpo",
        None,
        {
            "loss_type": "gspo",
            "scale_rewards": "group",
            "clip_range": 3e-4,
            "clip_range_high": 4e-4,
            "num_minibatches": 4,
            "kl_coef": 0.0,
        },
    ),
    "cispo": (
        "grpo",
        None,
        {
            "loss_type": "cispo",
            "cispo_cap_mode": "absolute",
            "cispo_cap": 5.0,
            "kl_coef": 0.0,
            "dynamic_sampling": True,
        },
    ),
    "rloo": ("rloo", 1e-6, {"loss_type": "reinforce", "kl_coef": 0.03, "group_size": 2}),
    "ppo": (
        "ppo",
        None,
        {
            "clip_range": 0.2,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "update_epochs": 10,
            "critic": "separate",
            "value_clip_range": None,
            "level": "token",
        },
    ),
    "instruct_gpt": (
        "ppo",
        None,
        {
            "clip_range": 0.2,
            "gamma": 1.0,
            "kl_coef": 0.02,
            "update_epochs": 1,
            "num_minibatches": 512 // 64,
            "level": "token",
        },
    ),
    "a2c": (
        "a2c",
        None,
        {"estimator": "n_step", "n_steps": 5, "gamma": 0.99, "entropy_coef": 0.01},
    ),
    "router_r1": (
        "router_r1",
        1e-6,
        {
            "gamma": 1.0,
            "gae_lambda": 1.0,
            "clip_range": 0.2,
            "value_clip_range": 0.5,
            "entropy_coef": 0.001,
            "kl_coef": 0.001,
            "num_minibatches": 64 // 32,
            "level": "token",
        },
    ),
    "mappo": ("mappo", None, {**HARL, "update_epochs": 15, "value_normalization": True}),
    "ippo": ("ippo", None, {**HARL, "update_epochs": 15, "value_normalization": True}),
    "happo": (
        "happo",
        None,
        {**HARL, "factor": "exact", "factor_range": None, "update_epochs": 5, "critic_epochs": 5},
    ),
    "marft": (
        "marft",
        5e-7,
        {
            **HARL,
            "level": "turn",
            "normalization": "sum",
            "update_epochs": 5,
            "num_minibatches": 4,
            "target_kl": 1e-3,
        },
    ),
    "cory": (
        "cory",
        1.41e-5,
        {
            "swap_freq": 5,
            "kl_penalty": "full",
            "kl_coef": 0.4,
            "kl_target": 6.0,
            "kl_horizon": 1e4,
            "vf_coef": 0.1,
            "gae_lambda": 0.95,
            "gamma": 1.0,
            "update_epochs": 4,
            "level": "token",
        },
    ),
    "maporl": (
        "maporl",
        1e-5,
        {
            "influence_gamma": 0.3,
            "vf_coef": 0.1,
            "kl_coef": 0.002,
            "update_epochs": 4,
            "num_minibatches": 8,
            "level": "token",
        },
    ),
    "magrpo": ("magrpo", 5e-6, {**TEAM, "baseline": "mean"}),
    "marloo": ("marloo", 5e-6, {**TEAM, "baseline": "leave_one_out"}),
    "maremax": ("maremax", 5e-6, {**TEAM, "baseline": "group_max"}),
    "mareinforce": ("mareinforce", 5e-6, {**TEAM, "baseline": "none"}),
    "at_grpo": (
        "at_grpo",
        1e-6,
        {"group_size": 8, "alpha": 1.0, "clip_range": 0.2, "kl_coef": 0.001},
    ),
    "dr_mas": (
        "dr_mas",
        1e-6,
        {"group_size": 8, "kl_coef": 0.0, "invalid_penalty": 0.1, "scale_rewards": "group"},
    ),
    "spiral": ("spiral", 1e-6, {"decay": 0.95, "gamma": 1.0, "update_epochs": 2, "debias": False}),
    "rema": ("rema", 1e-6, {"loss_type": "turn", "dual_clip": 3.0, "group_size": 16}),
    "dpo": ("dpo", 1e-6, {"loss_type": "sigmoid", "beta": 0.1}),
    "marshal": (
        "marshal",
        1e-6,
        {
            "gamma": 1.0,
            "baseline_by": "role",
            "kl_coef": 0.2,
            "clip_range": 0.2,
            "update_epochs": 1,
            "scale_rewards": "group",
        },
    ),
    "matpo": (
        "matpo",
        1e-5,
        {"group_size": 8, "num_minibatches": 1, "scale_rewards": "group", "kl_coef": 0.0},
    ),
    "malt": ("malt", None, {"loss_type": "sigmoid", "pairing": "threshold", "rewards": "team"}),
    "madpo": ("madpo", 5e-6, {"beta": 0.1, "group_size": 80, "rewards": "team"}),
    "reinforce": (
        "reinforce",
        None,
        {"loss_type": "reinforce", "baseline": "none", "whiten": False, "update_epochs": 1},
    ),
    "reinforce_pp": (
        "reinforce_pp",
        5e-7,
        {
            "baseline": "none",
            "baseline_by": "batch",
            "group_size": 1,
            "kl_coef": 0.01,
            "num_minibatches": 1024 // 128,
        },
    ),
    "remax": (
        "remax",
        1e-6,
        {"loss_type": "reinforce", "aggregation": "token_mean", "kl_coef": 0.05, "group_size": 1},
    ),
    "online_dpo": ("online_dpo", None, {"loss_type": "sigmoid", "group_size": 2}),
    "gkd": ("distill", None, {"divergence": "forward", "aggregation": "sequence_mean_token_mean"}),
    "sft": ("sft", 9.65e-6, {"mode": "behavioral_cloning"}),
    "reward_model": ("reward_model", None, {"center_rewards_coefficient": 0.0, "update_epochs": 1}),
    "vdn": ("vdn", None, {"mode": "bon", "gamma": 0.99, "gae_lambda": 0.0}),
    "qmix": (
        "qmix",
        None,
        {
            "mode": "bon",
            "gamma": 0.99,
            "gae_lambda": 0.0,
            "mixing_size": 32,
            "hypernet_layers": 2,
            "hypernet_size": 64,
        },
    ),
    "sac": (
        "sac",
        None,
        {"auto_alpha": True, "alpha": 1.0, "gae_lambda": 0.0, "value_clip_range": None},
    ),
    "spin": ("spin", 5e-7, {"loss_type": "sigmoid", "beta": 0.1, "use_previous": True}),
    "c3": ("c3", 1e-6, {"update_epochs": 5, "kl_coef": 0.01, "clip_range": 0.2}),
    "ccpo": ("ccpo", 1e-6, {"team_coef": 1.0, "credit_coef": 0.2, "group_size": 16}),
    "m_grpo": ("m_grpo", 1e-6, {"group_size": 8, "clip_range_high": 0.28}),
    "sharp": ("sharp", None, {"credit_by": "shapley", "scale_rewards": "group"}),
}
"""Preset -> its algorithm, its learning rate where the paper has one, and its numbers."""


def algorithms() -> dict[str, Any]:
    return {name: registry.load("algorithms", name) for name in registry.names("algorithms")}


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_resolves_to_the_numbers_of_its_paper(name: str, tmp_path: Path) -> None:
    algorithm, rate, numbers = PAPERS[name]
    written = {
        "preset": name,
        "training": {"algorithm": algorithm, "batch_size": 32},
        "environments": [{"env_type": "relay"}],
    }
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(written))
    resolved = load_config(tmp_path / "x.yaml").resolved()
    assert {key: resolved[algorithm][key] for key in numbers} == numbers
    own = registry.load("algorithms", algorithm).default_learning_rate
    assert resolved["training"]["learning_rate"] == (own if rate is None else rate)
    again = ExperimentConfig(**resolved)
    assert again.resolved() == resolved and again.hash() == load_config(tmp_path / "x.yaml").hash()


def test_every_preset_is_checked_and_says_where_its_numbers_are_from() -> None:
    found = {key: name for name, kind in algorithms().items() for key in kind.presets}
    assert all(kind.presets for kind in algorithms().values())
    assert found == {name: algorithm for name, (algorithm, *_) in PAPERS.items()}
    for kind in algorithms().values():
        for preset in kind.presets.values():
            assert preset.settings.keys() <= algorithm_fields(kind).keys()
            places = [where for _, where in preset.settings.values()]
            assert "arXiv" in preset.paper or "(1992)" in preset.paper
            assert all(places) and preset.departs


def test_no_algorithm_takes_the_presets_of_the_one_it_refines() -> None:
    for kind in algorithms().values():
        assert "presets" in vars(kind) or not kind.presets
    with pytest.raises(ConfigError, match=r"dapo.*not a preset of DrMAS; use dr_mas"):
        DrMAS(preset="dapo")


def test_the_page_is_that_of_the_tables() -> None:
    text = "renew it with: python -m benchmarks.presets"
    assert PAGE.read_text(encoding="utf-8") == page(), text


# -- what wins -------------------------------------------------------------------------------------


def test_what_is_written_beside_a_preset_wins_by_every_entry(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("preset: dapo\ntraining: {batch_size: 16}\ngrpo: {clip_range_high: null}\n")
    found = [
        GRPO(preset="dapo", clip_range_high=None, group_size=4),
        load_config(path, ["grpo.group_size=4"]).algorithm_settings(),
        load_config(path).merged({"num_generations": 4}).algorithm_settings(),
        GRPOTrainer(
            model=default_model(),
            environment=registry.load("environments", "relay")(),
            args=GRPOConfig(preset="dapo", clip_range_high=None, num_generations=4),
            batch_size=16,
        ).config.algorithm_settings(),
    ]
    for settings in found:
        assert (settings.clip_range_high, settings.group_size) == (None, 4)
        assert (settings.clip_range, settings.dynamic_sampling) == (0.2, True)
        assert changed_fields(settings) == {
            "preset": "dapo",
            "clip_range_high": None,
            "group_size": 4,
        }


def test_a_learning_rate_wins_over_the_preset_s() -> None:
    both = ExperimentConfig(preset="magrpo", training={"learning_rate": 1e-3})
    assert both.resolved()["training"]["learning_rate"] == 1e-3
    fields, paths = split_config(GRPOConfig(preset="gspo", epsilon=0.1, learning_rate=1e-3))
    assert fields == {"preset": "gspo", "clip_range": 0.1}
    assert paths == {"training.learning_rate": 1e-3}


def test_a_preset_in_a_loop_of_one_s_own(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, GRPO(preset="cispo"))
    assert learner.algorithm.loss_type == "cispo"  # type: ignore[attr-defined]


def test_a_preset_named_after_an_algorithm_chooses_it() -> None:
    assert ExperimentConfig(preset="magrpo").training.algorithm == "magrpo"
    assert ExperimentConfig(training={"preset": "rloo"}).algorithm_settings().kl_coef == 0.03
    named = ExperimentConfig(preset="gspo")
    assert named.training.algorithm == "grpo" and named.grpo.preset == "gspo"
    with pytest.raises(ConfigError, match="not a preset of PPO; use ppo or instruct_gpt"):
        ExperimentConfig(preset="magrpo", training={"algorithm": "ppo"})
    with pytest.raises(ConfigError, match="not a preset of PPO"):
        ExperimentConfig(training={"algorithm": "ppo"}).merged({"preset": "magrpo"})


def test_a_preset_that_needs_a_larger_batch_says_so() -> None:
    with pytest.raises(ConfigError, match=r"training.batch_size: 8 .* use 16"):
        ExperimentConfig(preset="dapo")


# -- names of losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dapo", "bnpo"])
def test_other_names_of_a_loss_resolve_to_it(name: Any) -> None:
    assert GRPO(loss_type=name).loss_type == "ppo"
    assert changed_fields(GRPO(loss_type=name)) == {}
    assert MARFT(level="turn", loss_type=name).loss_type == "ppo"


def test_gspo_brings_its_clip_ranges_unless_they_are_set() -> None:
    def ranges(**settings: Any) -> tuple[float, float | None]:
        found = GRPO(loss_type="gspo", **settings)
        again = GRPO(**changed_fields(found))
        assert (again.clip_range, again.clip_range_high) == (
            found.clip_range,
            found.clip_range_high,
        )
        return found.clip_range, found.clip_range_high

    assert ranges() == (3e-4, 4e-4)
    assert ranges(clip_range=0.1) == (0.1, None)
    assert ranges(clip_range_high=0.5) == (3e-4, 0.5)
    assert ranges(clip_range=0.2, clip_range_high=0.3) == (0.2, 0.3)
    assert GRPO().clip_range == 0.2
