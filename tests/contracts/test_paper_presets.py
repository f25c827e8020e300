"""Presets resolve to the numbers of their papers, which are written down a second time in
`fixtures/paper_presets.yaml`."""

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
from places import FIXTURES

TABLE = FIXTURES / "paper_presets.yaml"
PAPERS: dict[str, tuple[str, float | None, dict[str, Any]]] = {
    preset: tuple(row) for preset, row in yaml.safe_load(TABLE.read_text("utf-8"))["papers"].items()
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
