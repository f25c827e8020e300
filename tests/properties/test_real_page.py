"""The runs of a pretrained model: settings that exist, tasks that reward what they say, outcomes
that follow from runs, and a page that says what was measured."""

from pathlib import Path

import pytest
from benchmarks.learning.worlds import Alone
from benchmarks.real import aligned, peer_table, report, runs
from benchmarks.real.worlds import Guess, Lengths, Sums

from mrlm import Message, check_environment, load_config
from mrlm.environments.relay import RelayEnvironment
from places import ROOT

PAGE = ROOT / "docs" / "real-models.md"


@pytest.mark.parametrize("arm", runs.ARMS)
def test_every_arm_has_a_config(arm: str, tmp_path: Path) -> None:
    name, chosen = runs.ARMS[arm]
    changes = runs.changes_of(runs.Job(arm, 0.0, 7), "mrlm/tiny", tmp_path)
    config = load_config(runs.CONFIGS / f"{chosen['config']}.yaml", changes)
    assert config.training.seed == 7 and config.output_dir == str(tmp_path)
    setting = runs.SETTINGS[name]
    assert setting["because"] and ("winner" in setting or setting["low"] < setting["high"])


def test_tasks_reward_what_they_say() -> None:
    alone = Alone(20, style="question")
    for env in (Guess(), alone, Sums(3), Lengths()):
        check_environment(env)
    task = Guess().task(3)
    for hint, named, reward in (("a hint", task.answer, 1.2), (task.answer, task.answer, -0.1)):
        env = Guess()
        env.reset(task)
        env.step({"describer": Message(str(hint))})
        result = env.step({"guesser": Message(str(named))})
        assert result.rewards["describer"].value == pytest.approx(reward)
    lengths = Lengths()
    lengths.reset(lengths.task(1))
    result = lengths.step({"short": Message("one two"), "long": Message("one two three four five")})
    assert result.rewards["short"].value == pytest.approx(0.5)
    assert alone.task(5, "eval").answer == RelayEnvironment(max_number=20).task(5, "eval").answer


def test_outcomes_follow_from_the_runs() -> None:
    def row(arm: str, seed: int, end: float) -> runs.Measured:
        return runs.Measured(arm, 1e-4, seed, [0, 100], [0.1, end])

    assert report.outcome("sums", [row("sums/one", 0, 0.6)]) == "right"
    assert report.outcome("sums", [row("sums/one", 0, 0.2)]) == "wrong"
    pairs = [
        row(f"relay/{side}", s, e + s / 100)
        for side, e in (("team", 0.7), ("one", 0.2))
        for s in range(3)
    ]
    assert report.outcome("relay", pairs).startswith("right: +0.500")
    assert report.outcome("relay", pairs[:3]).startswith("undecided")
    text = report.results(pairs, "a machine")
    assert "relay/team" not in text.split("**Not run**")[1] and "sums/one" in text


def test_the_page_says_what_was_predicted_and_measured() -> None:
    rows, machine = report.published(PAGE)
    text = PAGE.read_text(encoding="utf-8")
    renew = "renew it with: python -m benchmarks.real --no-runs --page docs/real-models.md"
    assert report.predictions() in text and report.results(rows, machine) in text, renew
    picture = (PAGE.parent / "figures" / report.FIGURE).read_text(encoding="utf-8")
    assert picture == report.figure(rows), renew
    assert peer_table.table(peer_table.published(PAGE)) in text


def test_runs_are_compared_step_by_step() -> None:
    theirs = {"steps": [{"loss": 2.0}, {"loss": 1.0}], "rewards": [0.1, 0.5]}
    ours = {"steps": [{"loss": 2.0}, {"loss": 1.25}], "rewards": [0.1, 0.0]}
    assert aligned.compare(theirs, ours) == {"loss": 0.25, "held-out reward": 0.5}
    for steps in ([], theirs["steps"][:1], [{"loss": 2.0}, {"grad_norm": 1.0}]):
        with pytest.raises(ValueError):
            aligned.compare(theirs, {"steps": steps, "rewards": [0.1, 0.5]})
    with pytest.raises(ValueError):
        aligned.compare({"steps": [], "rewards": []}, {"steps": [], "rewards": []})
