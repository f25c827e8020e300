"""The learning curves: what their page states about identical algorithms and about `climbing` is
true, a quick run trains and continues where it was killed, and the page is what the runs say."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.learning import curves, report
from benchmarks.learning.__main__ import QUICK, main
from benchmarks.learning.curves import Measured, config_of, optimum, rates_of
from benchmarks.learning.environments import GROUNDS
from benchmarks.learning.exact import ascent, better_alone
from benchmarks.learning.families import ALIKE, FAMILIES, HELD, IDENTICAL, TRIALS
from benchmarks.learning.runs import DATA
from benchmarks.learning.table import TABLE
from benchmarks.learning.worlds import Alone
from benchmarks.teams.base import prompts_of
from benchmarks.teams.runs import RESULTS, TUNING, Job

from any_algorithm import LEARNING, settings, weights
from any_algorithm import models as models
from mrlm import ExperimentConfig, Message, check_environment
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core import registry
from mrlm.environments.relay import RelayEnvironment
from mrlm.runs import run_to_end
from places import ROOT

pytestmark = pytest.mark.system

TURNS = {"env_type": "small_environments:Rounds", "rounds": 2, "num_agents": 2}
PAGE = ROOT / "docs" / "algorithms.md"
RENEW = "renew it with: python -m benchmarks.learning --no-runs --page docs/algorithms.md"


# -- what is identical -----------------------------------------------------------------------------


def trained(
    algorithm: str,
    environment: dict[str, Any] | None,
    models: tuple[str, str],
    folder: Path,
    own: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Policy -> weights after two iterations; `own` are further settings of the algorithm."""
    given: dict[str, Any] = settings(algorithm, "separate", 1, models)
    given["output_dir"] = str(folder / algorithm)
    given[algorithm] = {**given.get(algorithm, {}), **(own or {})}
    given["generation"] = {"max_new_tokens": 1}
    if environment is not None:
        given["environments"] = [environment]
        given["policies"] = {"a": {}, "b": {}}
    if "group_size" in given[algorithm]:
        given[algorithm] |= {"group_size": 4}
    kept = {key: value for key, value in TABLE[algorithm].config.items() if key not in LEARNING}
    changes = {**kept, "training.num_iterations": 2, "training.batch_size": 4}
    run = build(ExperimentConfig(**given).merged(changes), LiveObjects())
    run_to_end(run)
    return weights(run)


GROUPS = [
    pytest.param(name, marks=[pytest.mark.slow] * (place > 0))
    for place, name in enumerate(IDENTICAL)
]


@pytest.mark.parametrize("name", GROUPS)
def test_members_said_to_be_identical_are_so_in_games_of_one_step_and_only_there(
    name: str, models: tuple[str, str], tmp_path: Path
) -> None:
    one_step = trained(name, None, models, tmp_path / "one")
    several = trained(name, TURNS, models, tmp_path / "several")
    for other, own in IDENTICAL[name].items():
        found = trained(other, None, models, tmp_path / "one", own)
        assert all(torch.equal(found[policy], one_step[policy]) for policy in one_step), other
        found = trained(other, TURNS, models, tmp_path / "several")
        assert any(not torch.equal(found[policy], several[policy]) for policy in several), other
    assert not torch.equal(one_step["row"], one_step["column"])


@pytest.mark.slow
def test_members_said_to_be_alike_differ_by_rounding_only(
    models: tuple[str, str], tmp_path: Path
) -> None:
    """A constant factor on all advantages is removed by Adam; the deviation of a group is none."""
    for name, others in ALIKE.items():
        first = trained(name, None, models, tmp_path)
        for other in others:
            found = trained(other, None, models, tmp_path)
            assert all(torch.allclose(found[p], first[p], rtol=0, atol=3e-4) for p in first), other
        divided = trained("grpo", None, models, tmp_path)
        assert not torch.allclose(divided["row"], first["row"], rtol=0, atol=2e-3)


# -- climbing --------------------------------------------------------------------------------------


def test_exact_gradient_ascent_passes_the_joint_actions_that_are_no_equilibria() -> None:
    pairs = [(row, column) for row in range(3) for column in range(3)]
    assert [pair for pair in pairs if not better_alone(pair)] == [(0, 0), (1, 1)]
    plain, divided = (ascent(report.STEPS, kind) for kind in (False, True))
    assert plain == pytest.approx([35 / 41, 36 / 41, 37 / 41], abs=2e-3)
    assert divided[1:] == pytest.approx([37 / 41, 37 / 41], abs=2e-3)
    assert divided[0] == pytest.approx(36 / 41, abs=2e-3)


# -- the table -------------------------------------------------------------------------------------


def test_every_algorithm_has_a_curve_or_is_identical_to_one_that_has() -> None:
    known = set(registry.names("algorithms"))
    assert set(TABLE) == known
    taught = {"distill"}  # by a teacher; its runs are on the page Distillation
    assert {trial.algorithm for trial in TRIALS.values()} == known - taught
    several = {trial.algorithm for trial in TRIALS.values() if trial.where == "turns"}
    for name, others in [*IDENTICAL.items(), *ALIKE.items()]:
        assert {*others} <= several, f"where they differ from {name}"
    for family in FAMILIES:
        assert family.shares and family.separates and len(family.trials) > 1
        for trial in family.trials:
            assert TRIALS[trial.name] == trial, "one trial of a name"
            assert len(set(trial.rates)) == 3 or trial.rates == HELD


def test_trials_have_valid_configs_with_equal_batches(tmp_path: Path) -> None:
    for name, trial in TRIALS.items():
        config = config_of(Job(name, trial.rates[0], 0), tmp_path, tmp_path / "run")
        config.algorithm_settings()
        group = config.resolved().get(trial.algorithm, {}).get("group_size", 1)
        many = config.training.batch_size * (group if curves.plays(trial) else 1)
        most = GROUNDS[trial.where].batch / trial.cost
        assert most / 2 <= many <= max(most, group), name


def test_the_optimum_of_every_context_is_given_as_rows() -> None:
    ground = GROUNDS["contexts"]
    rows, pairs = (optimum(ground, DATA[kind]) for kind in ("rows", "pairs"))
    asked = {row["prompt"] for row in rows}
    assert asked == {chat[0][1] for chat in prompts_of(ground.arm, 0)} and len(asked) == 8
    right = {row["prompt"]: row["completion"] for row in rows}
    assert {row["prompt"] for row in pairs} == asked
    assert all(row["chosen"] == right[row["prompt"]] != row["rejected"] for row in pairs)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_quick_run_trains_and_continues_where_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--quick", "--output", str(tmp_path)]
    assert main([*options, "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("8 runs, about ")
    monkeypatch.setattr(curves, "rates_of", lambda name: rates_of(name)[:1])
    assert main(options) == 0
    file = tmp_path / RESULTS
    found = curves.load(file)
    assert len(found) == 4 and {row.arm for row in found} == set(QUICK)
    for row in found:
        assert row.tokens == sorted(row.tokens) and row.tokens[0] == 0
        assert len(row.rewards) == len(row.tokens) > 2 and row.steps > 0 and row.seconds > 0
    text = file.read_text()
    file.write_text(text[:-40])  # killed while it wrote the last row
    capsys.readouterr()
    assert main(options) == 0
    assert capsys.readouterr().err.startswith("1 runs, about ")
    assert [row.rewards for row in curves.load(file)] == [row.rewards for row in found]


def test_a_budget_begins_no_run_that_it_does_not_cover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--output", str(tmp_path), "--budget", "1e-4"]) == 0
    assert "budget used, 8 runs are missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algorithms", "alphago"], "'alphago' is not one of"),
        (["--families", "chess"], "'chess' is not one of"),
        (["--tuning", "0"], "must be at least 1"),
        (["--quick", "--page", "docs/algorithms.md"], "are not for a --page"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert message in capsys.readouterr().err


def test_an_algorithm_is_asked_for_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--list", "--algorithms", "dpo", "--seeds", "2", "--output", str(tmp_path)]
    assert main(given) == 0
    *jobs, _ = capsys.readouterr().out.splitlines()
    seeds = [int(line.split()[-1]) for line in jobs]
    assert all(line.startswith("dpo on optimum ") for line in jobs)
    assert seeds == [TUNING] * 3 + [0, 1]


# -- the page --------------------------------------------------------------------------------------


def measured(name: str, seed: int, final: float, rate: float | None = None) -> Measured:
    """A finished run whose curve rises evenly to `final`."""
    rewards = [final * place / 8 for place in range(7)] + [final, final]
    rate = rates_of(name)[0] if rate is None else rate
    tokens = list(range(0, 9 * 96, 96))
    return Measured(name, rate, seed, tokens, rewards, 32, 100, 2.0)


def runs_of(name: str, ends: list[float]) -> list[Measured]:
    """Runs of a trial, with those that choose the first rate."""
    chosen = [measured(name, TUNING, 1.0 - rate, rate) for rate in rates_of(name)]
    return chosen + [measured(name, seed, end) for seed, end in enumerate(ends)]


def test_a_gain_is_bold_if_its_interval_excludes_0_and_differences_are_paired() -> None:
    first, other = "magrpo on contexts", "mappo on contexts"
    rows = runs_of(first, [0.5, 0.6]) + runs_of(other, [0.6, 0.7])
    rows.append(measured(other, 1, 0.9, rates_of(other)[2]))  # of a rate that was not chosen
    text = report.markdown(rows, 1, "a machine")
    (line,) = (line for line in text.splitlines() if line.startswith("| `mappo` | `contexts` |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:4] == ["2", "0.001"] and cells[7:9] == ["0.000", "0.650"]
    assert cells[9] == "+0.650 ± 0.635".join(("**", "**"))
    assert cells[10] == f"**{0.1 * fmean_of_curve():+.3f} ± 0.000**" and cells[11] == "0 of 2"
    wide = report.markdown(runs_of(first, [0.1, 0.9]), 1, "a machine")
    assert "| +0.500 ± 5.082 |" in wide and "**+0.500" not in wide
    assert "No curve of their own: a2c, " in wide


def fmean_of_curve() -> float:
    """Mean of the curve of `measured` after its start, for an end of 1."""
    return (sum(range(1, 7)) / 8 + 2) / 8


def test_the_page_is_what_the_runs_say() -> None:
    rows, tuning, machine = report.published(PAGE)
    text = PAGE.read_text(encoding="utf-8")
    assert report.markdown(rows, tuning, machine) in text, RENEW
    for family in FAMILIES:
        picture = (PAGE.parent / "learning" / f"{family.name}.svg").read_text(encoding="utf-8")
        assert picture == report.figure(family, rows, tuning), RENEW
        assert f"](learning/{family.name}.svg)" in text
    said = text[text.index("## What they learn") : text.index(report.MARKS[0])]
    numbers = re.findall(r"[+-]\d\.\d{3} ± \d\.\d{3}", said)
    written = report.markdown(rows, tuning, machine)
    assert len(numbers) >= 4 and all(number in written for number in numbers), numbers


def test_a_page_is_published_with_its_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# x\n" + "\n".join(report.MARKS) + "\nafter\n")
    rows = runs_of("magrpo on contexts", [0.5, 0.6])
    for _ in range(2):  # writing it again changes nothing
        report.publish(page, rows, 1, "a machine")
    assert page.read_text().count("| `magrpo` | `contexts` | 2 |") == 2, "in both families"
    assert page.read_text().endswith("\nafter\n")
    assert report.published(page) == (rows, 1, "a machine")
    assert "polyline" in (tmp_path / "learning" / "critics.svg").read_text()


# -- one agent instead of two ----------------------------------------------------------------------


def test_the_single_agent_gets_the_sums_of_the_team() -> None:
    alone, team = Alone(max_number=5), RelayEnvironment(max_number=5)
    check_environment(alone)
    for split in ("train", "eval"):
        one, both = alone.task(7, split), team.task(7, split)
        assert one.answer == both.answer and one.info == both.info
        opening = alone.reset(one).observations["alone"].messages
        assert opening[0].content == "{a}+{b}+{c}=".format(**both.info)
        said = Message(alone.expert("alone", opening) or "")
        assert alone.step({"alone": said}).rewards["alone"].value == 1.0
        alone.reset(one)
        assert alone.step({"alone": Message("x")}).rewards["alone"].value == 0.0
