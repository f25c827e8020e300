"""Everything the README and the pages on experiments, trainers and loops show is run, and what the
README says is tested."""

import json
import re
import shlex
import statistics
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from scripts import notebooks

from forking import Launcher
from grids import quick
from mrlm.build.run import build
from mrlm.config import parse_config
from mrlm.core import registry
from mrlm.experiment import dry_run, run_experiment
from places import ROOT
from shown_commands import blocks, check_command, commands_in


@pytest.mark.parametrize(
    "program",
    [
        *blocks("README.md", "python"),
        *blocks("docs/trainers.md", "python"),
        *blocks("docs/own_loop.md", "python"),
        *blocks("docs/environments.md", "python"),
        *blocks("docs/presets.md", "python"),
        *blocks("docs/coming_from/rllib.md", "python"),
        *blocks("docs/coming_from/seeds.md", "python"),
        *blocks("docs/coming_from/verifiers.md", "python"),
    ],
)
def test_a_program_of_a_page_runs(program: str, launcher: Launcher) -> None:
    Path("program.py").write_text(program)
    done = launcher.run([str(Path("program.py").absolute())], Path.cwd())
    assert done.code == 0, done.err[-2000:]


@pytest.mark.parametrize("steps", quick([2, 100], [2]))
def test_the_commands_of_experiments_run_on_their_yaml_which_learns(
    steps: int, launcher: Launcher
) -> None:
    """At its full length it learns, too."""
    (text,) = blocks("docs/experiments.md", "yaml")
    name = re.match(r"# (\S+\.yaml)", text)
    assert name
    if steps == 2:
        text = text.replace("episodes: 64", "episodes: 4")
    Path(name[1]).write_text(notebooks.shortened(text, steps))
    commands = [
        line
        for block in blocks("docs/experiments.md", "bash")
        for line in block.splitlines()
        if line.startswith("mrlm ")
    ]
    assert len(commands) >= 5
    for line in commands:
        done = launcher.run(shlex.split(line), Path.cwd())
        assert done.code == 0, (line, done.err[-2000:])
    assert Path("outputs/two_writers/final/first/model.safetensors").is_file()
    assert Path("eval.json").is_file() and Path("trajectories.json").is_file()
    file = Path("outputs/two_writers/2-together/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(rewards) == min(steps, 40)
    warmup = Path("outputs/two_writers/1-warmup/metrics.jsonl").read_text()
    before = json.loads(warmup.splitlines()[0])
    if steps == 100:
        assert statistics.mean(rewards[-10:]) > before["eval/reward/mean"] + 0.4


README = (ROOT / "README.md").read_text(encoding="utf-8")
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
CLAIMS = {
    "Several models, one reward": [
        "unit/learn/test_team_learner.py::test_agents_of_one_model_share_a_policy_and_others_may_be_frozen",
        "unit/learn/test_policy.py::test_adapters_of_one_base_learn_apart",
        "system/test_api_agents.py::test_a_trained_agent_learns_beside_one_behind_an_api",
    ],
    "Credit that is checked": [
        "properties/test_exact_credit.py::test_credit_without_scales_points_where_the_gradient_does",
        "properties/test_against_trl.py::test_grpo_and_its_kin_have_the_same_loss_and_gradient",
        "contracts/test_one_new_file.py::test_one_new_file_is_enough",
    ],
    "Exact runs": [
        "system/test_resume.py::test_two_runs_of_one_config_log_the_same_numbers",
        "system/test_resume.py::test_kill_minus_nine_loses_nothing",
    ],
    "Nothing is hidden": [
        "system/test_viewer.py::test_every_page_is_clean_and_fits",
        "system/test_doctor_runs.py::test_a_planted_disease_is_found",
        "properties/test_why.py::test_the_agent_that_erred_is_named",
    ],
    "Text is never control": [
        "properties/test_control.py::test_no_source_writes_a_control_token",
        "safety/test_attacks.py::test_in_namespaces",
    ],
    "A team is one object": [
        "system/test_publishing.py::test_a_pulled_team_plays_as_in_the_last_evaluation_of_its_run"
    ],
}
"""Claim of the README -> the tests that hold it."""


def test_every_claim_of_the_readme_has_its_tests() -> None:
    assert re.findall(r"^- \*\*(.+?)\.\*\*", README, re.MULTILINE) == list(CLAIMS)
    for test in chain.from_iterable(CLAIMS.values()):
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
    counts = {
        kind: len(registry.names(kind)) for kind in ("algorithms", "environments", "workflows")
    }
    found = {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)\]", README)}
    assert found == counts


def test_the_readme_is_a_screen_whose_links_work_on_the_package_index() -> None:
    text = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    raw = URLS["Repository"].replace("github.com", "raw.githubusercontent.com") + "/main/"
    page = URLS["Repository"] + "/blob/main/"
    assert len(README.splitlines()) <= 70 and len(targets) > 20
    for target in targets:
        assert target.startswith((raw, page)), target
        path = target.removeprefix(raw).removeprefix(page).partition("#")[0]
        assert (ROOT / path).is_file(), target


def test_the_commands_of_the_readme_exist() -> None:
    for words in commands_in(README):
        check_command(words)


def test_a_small_model_with_a_default_learning_rate_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = {
        "output_dir": str(tmp_path / "run"),
        "environments": [{"env_type": "relay"}],
        "training": {"num_iterations": 1, "batch_size": 2},
        "generation": {"max_new_tokens": 2},
    }
    with caplog.at_level("WARNING", logger="mrlm"):
        build(parse_config(data))
        assert "default of grpo, 1e-06" in caplog.text and "hardly changes" in caplog.text
        caplog.clear()
        build(parse_config(data, ["training.learning_rate=1e-3"]))
    assert "learning_rate" not in caplog.text


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:`|^)make (\w+)", README, re.MULTILINE))
    assert named == {"quickstart", "test", "docs"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


@pytest.mark.parametrize("number", range(len(blocks("docs/configuration.md", "yaml"))))
def test_a_configuration_of_the_docs_is_complete_and_runs(number: int) -> None:
    data = yaml.safe_load(blocks("docs/configuration.md", "yaml")[number])
    config = parse_config(data, (), "docs/configuration.md")
    text, problems = dry_run(config)
    assert "optimizer step" in text and not problems
    result = run_experiment(config)
    assert result.history and (result.run_folder / "final").exists()
