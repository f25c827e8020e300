"""The benchmark of blame: errors are planted as it says, and methods are scored against them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.blame import report
from benchmarks.blame.__main__ import main
from benchmarks.blame.judge import Judge, named_in
from benchmarks.blame.measure import Answer, Planted, first_loss, last_speaker, planted, play
from benchmarks.blame.scenarios import SCENARIOS

from chat_server import serving
from mrlm.core.errors import EngineError
from mrlm.record.reader import read_run


def test_a_quick_run_writes_its_answers_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def guess(body: dict[str, Any], number: int) -> str:
        asked.append(body["messages"][0]["content"])
        return 'It was {"agent": "second", "turn": 0}.'

    with serving(guess) as server:
        done = main(
            [
                *("--quick", "--scenarios", "relay", "--cases", "slip", "--jobs", "1"),
                *("--judge", server.url, "m", "--output", str(tmp_path)),
            ]
        )
    assert done == 0
    found, settings = report.load(tmp_path / "blame.json")
    assert settings["n"] == 4 and settings["judge"] == "m"
    methods = {each.method for each in found}
    assert methods == set(report.METHODS)
    judged = [each for each in found if each.method == "language model"]
    last = [each for each in found if each.method == "last speaker"]
    assert [(e.agent, e.step) for e in judged] == [(e.agent, e.step) for e in last]
    assert len(asked) == len(judged) == 2
    assert re.search(r"first, turn 0: \d+\nsecond, turn 0: \d+", asked[0])
    for each in found:
        if each.method in ("why, resample", "why, expert"):
            assert each.agent and each.step and each.episodes == 2 * 4 + 4 + 2
    table = capsys.readouterr().out
    assert "| why, expert | 100 (34–100) | 100 (34–100) |" in table
    assert report.markdown(found, settings) in table


def test_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenarios", "chess"]) == 2
    assert "unknown: chess" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--quick", "--page", "docs/why.md"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n not in ("manager", "tools")))
        for n in SCENARIOS
    ],
)
def test_a_team_fails_by_its_planted_errors_only(name: str, tmp_path: Path) -> None:
    """Episodes without a wrong turn succeed; an always wrong agent is the only one that errs
    then."""
    scenario = SCENARIOS[name]
    culprit = scenario.agents[-1]
    policies = {each: "broken" if each == culprit else "flawless" for each in scenario.agents}
    everyone = play(scenario, dict.fromkeys(scenario.agents, "flawless"), tmp_path / "all", 2)
    assert list(planted(everyone, scenario.success)) == []
    one = play(scenario, policies, tmp_path / "one", 2)
    failed = list(planted(one, scenario.success))
    assert len(failed) == (0 if name == "vote" else 8)
    for each in failed:
        assert each.errors == [turn for turn in each.turns if turn[0] == culprit]


def test_baselines_name_what_they_are_called(tmp_path: Path) -> None:
    scenario = SCENARIOS["matrix"]
    run = play(scenario, dict.fromkeys(scenario.agents, "clumsy"), tmp_path / "run", 4)
    failed = list(planted(run, scenario.success))
    assert failed
    for each in failed:
        first = min(index for _, index in each.errors)
        assert first_loss(each) == ("row", ("row", first))
        assert last_speaker(each) == ("row", ("row", 2))


def test_other_scenarios_stay_in_the_output(tmp_path: Path) -> None:
    path = tmp_path / "blame.json"
    one, two, three = (Answer(n, "slip", "random", True, True, True) for n in ("a", "b", "a"))
    assert report.merged(path, [one], {"n": 8, "seconds": 1}) == ([one], {"n": 8, "seconds": 1})
    report.save(path, [one, two], {"n": 8, "seconds": 1})
    three.agent = False
    found, settings = report.merged(path, [three], {"n": 8, "seconds": 2})
    assert found == [two, three] and settings == {"n": 8, "seconds": 3}
    assert report.merged(path, [three], {"n": 4, "seconds": 2})[0] == [three]


def test_shares() -> None:
    assert report.share([True, True, False, None]) == "67 (21–94)"
    assert report.share([None]) == "–"
    assert Answer("relay", "slip", "random", True, None, False).record()["step"] is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"agent": "ann", "turn": 1}', ("ann", ("ann", 1))),
        ('I think {"agent": "ann", "turn": 7}', ("ann", None)),
        ('{"agent": "eve", "turn": 0}', (None, None)),
        ('{"agent": ["ann"], "turn": 0}', (None, None)),
        ("ann did it", (None, None)),
        ("{ann: 1}", (None, None)),
    ],
)
def test_the_answer_of_a_model_is_read(text: str, named: Any) -> None:
    assert named_in(text, [("ann", 0), ("ann", 1), ("ben", 0)]) == named


def test_a_model_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    run = play(SCENARIOS["relay"], {"first": "broken", "second": "steady"}, tmp_path / "run", 1)
    episode = next(iter(read_run(run).episodes()))
    case = Planted(run, episode, [])
    with pytest.raises(EngineError, match="no chat completion came back"):
        Judge("http://127.0.0.1:9/v1", "m")(episode, case.turns)
    with (
        serving(lambda body, number: {"error": json.dumps(body)[:9]}) as server,
        pytest.raises(EngineError, match="give the endpoint of an OpenAI-compatible server"),
    ):
        Judge(server.url, "m")(episode, case.turns)
