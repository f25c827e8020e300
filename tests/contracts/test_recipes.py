"""Recipes of papers: the same keys at every scale, a source beside every number, working commands,
and tables that state what was run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Mrlm
from mrlm.cli.recipe import RECIPES, config_of, names, scales
from mrlm.config import load_config
from mrlm.config.normalize import section_key
from mrlm.experiment import at_most, dry_run, run_experiment

FILES = [(name, scale) for name in names() for scale in scales(name)]
CPU = [(name, scale) for name, scale in FILES if scale.startswith("cpu")]
SCALED = (
    r"experiment_name|model\..*|policies\.\w+\.(model|lora.*)",
    r"environments\.\d\.(dataset|eval_dataset|topics|level|hops|preset|search|max_turns)",
    r"environments\.\d\.(max_observation|style|prompts|instruction)",
    r"generation\.max_(new|prompt)_tokens|agents\.\w+\.generation\.max_new_tokens",
    r"training\.(num_iterations|batch_size|(critic_)?learning_rate|precision)",
    r"training\.(gradient_checkpointing|max_tokens_per_microbatch)",
    r"\w+\.group_size|evaluation\.(every|episodes|samples)",
)
"""Keys whose values differ between scales: the model, its data and prompts, sizes and budgets."""
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "What is 1 + {n}?", "answer": "#### 2"},
    "math": {"problem": "Find {n}.", "level": "1", "type": "a", "solution": "\\boxed{1}"},
    "dapo": {"prompt": "Find {n}.", "solution": "34", "data_source": "math_dapo"},
    "aime": {"id": 0, "problem": "Find {n}.", "solution": "So.", "answer": "116", "url": ""},
    "nq": {"question": "who was number {n}", "answer": ["Ada"]},
    "bamboogle": {"id": "{n}", "question": "who was number {n}", "golden_answers": ["Ada"]},
    "tldr": {"prompt": "SUBREDDIT: r/a\n\nPOST: A cat {n} slept.\n\nTL;DR:", "completion": "A."},
}
"""Preset -> a row in its form."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets of the larger scales, with a dozen rows each."""
    monkeypatch.setenv("MRLM_DATA", str(tmp_path / "data"))
    for name, row in ROWS.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        lines = [json.dumps(row).replace("{n}", str(number)) for number in range(20)]
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(lines))


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Dotted keys -> values; rows of data sets stay whole."""
    rows = (
        isinstance(value, list) and value and isinstance(value[0], dict) and "env_type" in value[0]
    )
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if rows else ()
    inner = [flat(each, f"{key}.{name}" if key else str(name)) for name, each in pairs]
    return {k: v for part in inner for k, v in part.items()} if inner else {key: value}


def trained(name: str, scale: str) -> dict[str, Any]:
    """The settings of the stage in which a recipe trains as its paper does."""
    config = load_config(config_of(name, scale))
    return flat(config.stage_configs()[-1][1].given())


def test_there_are_recipes_and_every_paper_has_the_three_scales() -> None:
    assert {"magrpo_gsm8k", "magrpo", "at_grpo", "dr_mas", "c3", "spiral"} <= {*names()}
    for name in names():
        assert scales(name)[:3] == ["paper", "gpu1", "cpu"]
        assert {path.stem for path in (RECIPES / name).glob("*.yaml")} == {*scales(name)}


@pytest.mark.parametrize("scale", ["gpu1", "cpu"])
@pytest.mark.parametrize("name", names())
def test_scales_differ_in_model_data_sizes_and_budgets_only(name: str, scale: str) -> None:
    paper, other = trained(name, "paper"), trained(name, scale)
    changed = {key for key in paper.keys() | other.keys() if paper.get(key) != other.get(key)}
    changed = {re.sub(r"(policies\.\w+)$", r"\1.lora", key) for key in changed}
    assert [key for key in sorted(changed) if not re.fullmatch("|".join(SCALED), key)] == []
    assert changed >= {"model.model_name_or_path", "training.num_iterations"}


@pytest.mark.parametrize(("name", "scale"), FILES)
def test_every_setting_of_an_algorithm_has_its_source(name: str, scale: str) -> None:
    text = config_of(name, scale).read_text(encoding="utf-8")
    algorithm = section_key(yaml.safe_load(text)["training"]["algorithm"])
    lines = text.split(f"\n{algorithm}:\n")[1].split("\n\n")[0].splitlines()
    for place, line in enumerate(lines):
        above = lines[place - 1] if place else ""
        assert "# " in line or above.strip().startswith("#"), f"{name}/{scale}: {line}"


@pytest.mark.parametrize("name", names())
def test_a_readme_has_a_table_with_a_row_for_each_scale(name: str) -> None:
    text = (RECIPES / name / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# ") and "## What differs" in text
    assert "| scale | paper | ours | seeds | hours | device | commit |" in text
    rows = {scale: re.search(rf"^\| `{scale}` \|.*$", text, re.MULTILINE) for scale in scales(name)}
    for scale, row in rows.items():
        assert row, f"{name}: no row for {scale}"
        cells = [cell.strip() for cell in row[0].strip("|").split("|")]
        if scale in ("paper", "gpu1"):
            assert cells[2] == "not run"
        elif cells[2] != "not run":
            assert re.search(r"-?[\d.]+ -> -?[\d.]+", cells[2]) and re.fullmatch(
                r"`\w{7}`", cells[6]
            )


@pytest.mark.parametrize("name", names())
def test_the_commands_of_a_readme_run(name: str, run: Mrlm) -> None:
    text = (RECIPES / name / "README.md").read_text(encoding="utf-8")
    commands = re.findall(rf"^mrlm (recipe run {name} --scale .+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[words.index("--scale") + 1] == "paper":  # its model is not here
            assert len(load_config(config_of(name, "paper"), words[5:]).given()) > 5
            continue
        assert run(*words, "--dry-run").code == 0, command


@pytest.mark.parametrize(("name", "scale"), FILES)
def test_a_recipe_can_be_run(name: str, scale: str, data: None) -> None:
    changes = {} if scale.startswith("cpu") else {"model": {"model_name_or_path": "mrlm/tiny"}}
    config = load_config(config_of(name, scale)).merged(changes)
    frozen = {key: {"model": "mrlm/tiny"} for key, each in config.policies.items() if each.model}
    text, problems = dry_run(config.merged({"policies": frozen}) if frozen else config)
    assert problems == [] and "first prompts" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), CPU)
def test_a_recipe_trains_at_cpu_scale(name: str, scale: str, tmp_path: Path) -> None:
    config = at_most(load_config(config_of(name, scale)), 2)
    changes = {"output_dir": str(tmp_path / "run"), "evaluation": {"episodes": 2, "samples": 1}}
    result = run_experiment(config.merged(changes))
    rows = [row for row in result.history if row.get("stage") == 1 and "reward/mean" in row]
    assert len(rows) == 2


# -- the command -----------------------------------------------------------------------------------


def test_the_command_lists_shows_and_runs(run: Mrlm, tmp_path: Path) -> None:
    listed = run("recipe", "list")
    assert listed.code == 0 and [line.split()[0] for line in listed.out.splitlines()] == names()
    assert run("recipe", "show", "c3").out.startswith("# C3")
    shown = run("recipe", "show", "c3", "--scale", "paper").out
    assert shown == config_of("c3", "paper").read_text(encoding="utf-8")
    words = ["recipe", "run", "magrpo_gsm8k", "training.seed=3", "--steps", "1", "--quiet"]
    done = run(*words, "-o", tmp_path / "run")
    assert done.code == 0, done.err
    assert (tmp_path / "run" / "final").is_dir()
    dry = run("recipe", "run", "spiral", "--dry-run")
    assert dry.code == 0 and "experiment_name: spiral_cpu" in dry.out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["run"], "mrlm recipe run needs a name; mrlm recipe list has them"),
        (["run", "magrp"], "recipes: 'magrp' does not exist; did you mean 'magrpo'?"),
        (["run", "c3", "--scale", "gpu"], "recipe c3: --scale: 'gpu' does not exist"),
        (["list", "c3"], "mrlm recipe list takes no name; use mrlm recipe show c3"),
    ],
)
def test_a_recipe_that_does_not_exist(run: Mrlm, words: list[str], reported: str) -> None:
    done = run("recipe", *words)
    assert done.code == 2 and reported in done.err
