"""The comparison of teams with single agents: equal tokens, equal first weights, predictions that
are scored as they say, and a page that says what was measured."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.teams import report, runs
from benchmarks.teams.__main__ import main
from benchmarks.teams.base import ROWS, prompts_of, rows_of
from benchmarks.teams.environments import Evidence, Guess, Joined, Parts
from benchmarks.teams.runs import TUNING, Job, Row
from benchmarks.teams.settings import ARMS, SETTINGS, verdict

from mrlm import Message, check_environment
from mrlm.build.environments import environment_factory
from mrlm.config.play_sections import EnvironmentConfig
from places import ROOT

pytestmark = pytest.mark.system

PAGE = ROOT / "docs" / "teams.md"


def made(arm: str) -> Any:
    """The environment of an arm."""
    return environment_factory(EnvironmentConfig(**ARMS[arm].environment))


def row(arm: str, seed: int, final: float, rate: float | None = None) -> Row:
    """A finished run whose curve rises evenly to `final`."""
    rewards = [final * place / 8 for place in range(7)] + [final, final]
    rate = ARMS[arm].rates[0] if rate is None else rate
    tokens = list(range(0, 9 * 96, 96))
    return Row(arm, rate, seed, tokens, rewards, 32, 100, 2.0)


def test_a_quick_run_samples_equal_tokens_and_continues_where_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--output", str(tmp_path)]
    assert main([*options, "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[-1].startswith("8 runs, about ") and len(listed) == 9
    assert main(options) == 0
    file = tmp_path / runs.RESULTS
    found = runs.load(file)
    assert len(found) == 8
    assert {each.arm for each in found} == {"evidence/team", "evidence/one view"}
    for each in found:
        assert each.tokens[0] == 0 and each.tokens == sorted(each.tokens)
        assert each.tokens[-1] == 2 * runs.STEP_TOKENS
        assert each.steps == 2 and each.seconds > 0
        assert all(0 <= reward <= 1 for reward in each.rewards)
    episodes = {each.arm: each.episodes for each in found}
    assert episodes["evidence/one view"] == 3 * episodes["evidence/team"]
    text = file.read_text()
    file.write_text(text[: text.rindex("{") + 20])  # killed while it wrote the last row
    capsys.readouterr()
    assert main(options) == 0
    assert capsys.readouterr().err.startswith("1 runs, about ")
    assert [Job(r.arm, r.rate, r.seed) for r in runs.load(file)] == [
        Job(r.arm, r.rate, r.seed) for r in found
    ]
    assert [each.rewards for each in runs.load(file)] == [each.rewards for each in found]


def test_a_budget_begins_no_run_that_it_does_not_cover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--output", str(tmp_path), "--budget", "1e-4"]) == 0
    assert "budget used, 8 runs are missing" in capsys.readouterr().err
    assert not (tmp_path / runs.RESULTS).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--settings", "chess"], "'chess' is not one of"),
        (["--seeds", "0"], "must be at least 1"),
        (["--quick", "--page", "docs/teams.md"], "are not for a --page"),
    ],
)
def test_wrong_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert message in capsys.readouterr().err


def test_rates_are_chosen_on_seeds_of_their_own_and_seeds_are_paired() -> None:
    arms = ["vote/team", "vote/one"]
    jobs = runs.next_jobs([], arms, 2, 1)
    assert [job.seed for job in jobs] == [TUNING] * 6 + [0, 0, 1, 1]
    low, middle, high = ARMS["vote/one"].rates
    known = [row("vote/one", TUNING, value, rate) for rate, value in ((low, 0.2), (high, 0.3))]
    assert runs.chosen_rates(known, arms, 1) == {}, "one rate was not tried yet"
    known.append(row("vote/one", TUNING, 0.5, middle))
    assert runs.chosen_rates(known, arms, 1) == {"vote/one": middle}
    known += [row("vote/team", TUNING, 0.1, rate) for rate in (low, middle, high)]
    assert [(j.arm, j.rate) for j in runs.next_jobs(known, arms, 1, 1)] == [
        ("vote/team", low),
        ("vote/one", middle),
    ]
    known += [row("vote/team", seed, 0.3 + seed / 100, low) for seed in range(3)]
    known += [row("vote/one", seed, 0.4 + seed / 100, middle) for seed in (2, 1, 0)]
    known += [row("vote/one", 0, 0.9, high)]  # of a rate that was not chosen
    (found,) = report.compared(known, 1)
    assert found.difference == pytest.approx((-0.1, -0.1, -0.1))
    assert found.outcome == "one" == found.setting.prediction


def test_a_verdict_needs_an_interval_and_a_margin() -> None:
    assert verdict((0.1, 0.05, 0.15)) == "team"
    assert verdict((-0.1, -0.15, -0.05)) == "one"
    assert verdict((0.01, 0.005, 0.015)) == "tie", "too small to count"
    assert verdict((0.0, -0.04, 0.04)) == "tie"
    assert verdict((0.1, -0.02, 0.22)) == "undecided"


def test_every_arm_starts_from_as_many_rows_and_has_a_valid_config(tmp_path: Path) -> None:
    for name, arm in ARMS.items():
        config = runs.config_of(Job(name, arm.rates[0], 0), tmp_path, tmp_path / "run")
        batch = config.training.batch_size * runs.GROUP * arm.tokens
        assert batch == runs.STEP_TOKENS, name
        assert config.training.num_iterations > runs.BUDGET / runs.STEP_TOKENS
        assert not arm.workflow or len(config.agents) == len(arm.agents)
        rows = rows_of(arm, 0, 0.5)
        assert len(rows) == ROWS, name
        assert {len(text) for _, text in rows} == {arm.length}, name
    assert rows_of(ARMS["parts2/one"], 0, 0.5) != rows_of(ARMS["parts2/one"], 1, 0.5)


def test_both_arms_of_a_setting_are_of_one_game() -> None:
    for setting in SETTINGS:
        team, one = ARMS[setting.team], ARMS[setting.one]
        assert team.game == one.game and len(team.agents) > 1 and len(one.agents) == 1
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS) >= 8
    assert {setting.prediction for setting in SETTINGS} == {"team", "one", "tie"}


@pytest.mark.parametrize("name", [name for name in ARMS if name.split("/")[0] != "debate"])
def test_right_answers_reach_the_best_reward(name: str) -> None:
    env, arm = made(name), ARMS[name]
    total, tasks = 0.0, 400
    for number in range(tasks):
        task = env.task(number, "eval")
        result = env.reset(task)
        while not result.done:
            actions = {
                agent: Message(right(name, env, agent, seen.messages[-1].content))
                for agent, seen in result.observations.items()
            }
            result = env.step(actions)
            rewards = [each.value for each in result.rewards.values()]
            total += sum(rewards) / max(len(rewards), 1)
    assert total / tasks == pytest.approx(arm.best, abs=0.07)


def right(name: str, env: Any, agent: str, prompt: str) -> str:
    """The best answer of an agent to what it reads."""
    game = name.split("/")[0]
    if game == "parts2" or game == "parts6":
        inner = env if isinstance(env, Parts) else env.environment
        every = [inner.right(place, value) for place, value in enumerate(inner.state())]
        return "".join(every) if inner is not env else every[inner.agents.index(agent)]
    if game == "evidence":
        views = prompt.removesuffix("?").split()
        return max("AB", key=views.count)
    if name == "signals/blind":
        return "2"
    if name == "signals/sighted":
        return env.state()
    if isinstance(env, Joined):
        inner: Any = env.environment
        return "".join(inner.words[place] for place in inner.best)
    return env.expert(agent, [])


def test_the_majority_of_views_is_as_good_as_it_says() -> None:
    share = sum(
        0.7 ** sum(views) * 0.3 ** (3 - sum(views))
        for views in itertools.product((0, 1), repeat=3)
        if sum(views) > 1
    )
    assert ARMS["evidence/team"].best == pytest.approx(share)


def test_the_verifier_accepts_an_answer_to_every_question() -> None:
    for name in ("debate/team", "debate/one"):
        env = made(name)
        for number in range(8):
            task = env.task(number)
            accepted = []
            for digit in "0123456789":
                result = env.reset(task)
                while not result.done:
                    result = env.step({agent: Message(digit) for agent in env.agents})
                accepted.append(result.rewards["first"].components["score"] > 0)
            assert any(accepted), (name, number)


def test_environments_keep_the_contract_and_hide_what_is_private() -> None:
    for env in (Parts(3), Parts(3, "team"), Evidence(3, 1), Guess(), Joined(Parts(3))):
        check_environment(env)
    assert Joined(Parts(3)).parts("A B", ("p1", "p2", "p3")) == {"p1": "A", "p2": "B", "p3": ""}
    blind = prompts_of(ARMS["signals/blind"], 0)
    assert [chat[0][1] for chat in blind] == ["state ?: 1 2 3?"]
    seen = {chat[0][1] for chat in prompts_of(ARMS["evidence/team"], 0)}
    assert seen == {"A?", "B?"}


def test_the_page_says_what_was_predicted_and_measured() -> None:
    rows, tuning, machine = report.published(PAGE)
    text = PAGE.read_text(encoding="utf-8")
    renew = "renew it with: python -m benchmarks.teams --no-runs --page docs/teams.md"
    assert report.predictions() in text, renew
    assert report.results(rows, tuning, machine) in text, renew
    picture = (PAGE.parent / "figures" / report.FIGURE).read_text(encoding="utf-8")
    assert picture == report.figure(rows, tuning), renew
    assert len(picture) < 100_000
    said = text[text.index("## Use") : text.index("## Limits")]
    numbers = re.findall(r"[+-]?\d\.\d{3} ± \d\.\d{3}", said)
    table = report.results(rows, tuning, machine)
    assert len(numbers) >= 4 and all(f"| {number} |" in table for number in numbers), numbers
