"""Credit by replay: where it is known which agent erred, that one is named, and the numbers keep
the laws of what they estimate."""

import json
import random
import re
import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from adders import adding_run, culprits
from commands import Mrlm
from mrlm import ForkSession, run_experiment, why
from mrlm.config import parse_config
from mrlm.core.errors import ConfigError
from mrlm.core.replayed import coalitions, shapley
from mrlm.record.files import rows_of
from mrlm.replays.effects import MeanEstimate, Outcomes, shapley_estimates
from mrlm.replays.replacements import Cost
from mrlm.replays.why import Why, explain
from places import ROOT

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def adders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adding_run(tmp_path_factory.mktemp("adders"))


def asked(folder: Path, row: dict[str, Any], **how: Any) -> Why:
    with ForkSession(folder, row["id"], row["step"]) as session:
        return explain(session, **how)


@pytest.mark.parametrize("against", ["resample", "expert"])
@pytest.mark.parametrize("culprit", ["first", "second"])
def test_the_agent_that_erred_is_named(culprit: str, against: str, adders: Path) -> None:
    episodes = culprits(adders)[culprit]
    assert len(episodes) > 2
    for row in episodes[:3]:
        found = asked(adders, row, against=against)
        assert found.decisive == (culprit, 0) and found.suspect == culprit, found
        assert found.exact and not found.solved and not found.notes
        effects = {each.agent: each for each in found.turns}
        repair = effects[culprit]
        assert repair.mean.value is not None and repair.mean.value >= 0.5
        if culprit == "second":  # with an unchanged sum before it, its own error stays
            assert effects["first"].mean.value == pytest.approx(0.0, abs=0.3)


def test_of_a_success_no_turn_is_decisive(adders: Path) -> None:
    row = culprits(adders)["nobody"][0]
    found = asked(adders, row, against="silence")
    assert found.solved and found.decisive is None and found.suspect is None
    for each in found.agents:
        assert each.marginal.value is not None and each.marginal.value > 0.3
    assert found.turns[0].influence["second"] is not None
    assert found.turns[0].influence["second"] > 0 and found.turns[1].influence == {}


def test_the_cost_is_what_is_played(adders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = culprits(adders)["second"][0]
    costs: list[Cost] = []
    with ForkSession(adders, row["id"], row["step"]) as session:
        played: list[int] = []
        play = session.play

        def counted(scripts: Any) -> Any:
            played.append(len(scripts))
            return play(scripts)

        monkeypatch.setattr(session, "play", counted)
        found = explain(session, n=5, announce=costs.append)
    assert costs == [found.cost]
    # two turns, which are all of their agents; both agents together; silence in the first turn
    assert found.cost.episodes == found.played == 2 * 5 + 5 + 1 + 1 == sum(played)
    assert found.cost.passes == 2 and found.cost.tokens > 0
    assert all(each.mean.n == 5 for each in found.turns)


def test_shapley_values_sum_to_the_difference(adders: Path) -> None:
    """With any worth; and as estimates, number by number."""
    rng = random.Random(1)
    agents = ("a", "b", "c", "d")
    worths = {
        frozenset(each): rng.random() for size in range(5) for each in combinations(agents, size)
    }
    values = shapley(agents, worths.__getitem__)
    whole = worths[frozenset(agents)] - worths[frozenset()]
    assert sum(values.values()) == pytest.approx(whole)
    plain = shapley(agents, lambda kept: float("a" in kept) + 2.0 * ({"b", "c"} <= kept))
    assert plain == pytest.approx({"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0})
    row = culprits(adders)["second"][0]
    with ForkSession(adders, row["id"], row["step"]) as session:
        found = explain(session, n=6)
        nobody = [[(None if e.failed else e.reward) for e in session.play(_both(6))]][0]
    total = sum(each.shapley.value for each in found.agents if each.shapley)  # type: ignore[misc]
    assert total == pytest.approx(row["reward"] - sum(nobody) / 6)  # type: ignore[arg-type]


def _both(n: int) -> Any:
    from mrlm.play.sources.branches import Script

    return [
        Script(number=k, agents=frozenset({"first", "second"}), own_rest=False) for k in range(n)
    ]


def test_shapley_leaves_out_numbers_that_failed() -> None:
    agents = ("a", "b")
    replaced = {
        frozenset({"a"}): Outcomes([0.0, 1.0, None]),
        frozenset({"b"}): Outcomes([1.0, 1.0, 1.0]),
        frozenset({"a", "b"}): Outcomes([0.0, 0.5, 0.0]),
    }
    found = shapley_estimates(agents, 1.0, replaced)
    assert [found[name].n for name in agents] == [2, 2]
    assert found["a"].value == pytest.approx((1.0 + 0.25) / 2)
    assert found["b"].value == pytest.approx((0.0 + 0.25) / 2)


def test_many_agents_are_left_out_one_at_a_time() -> None:
    assert len(coalitions("abcde")) == 31
    assert coalitions("abcdef") == [frozenset(each) for each in "abcdef"]


def test_intervals() -> None:
    wilson = MeanEstimate.of([1.0, 1.0, 1.0, 1.0], (0.0, 1.0))
    assert (wilson.value, wilson.high) == (1.0, 1.0) and wilson.low == pytest.approx(
        0.5101, abs=1e-4
    )
    scaled = MeanEstimate.of([-1.0, 1.0], (-1.0, 1.0))
    assert scaled.value == 0.0 and scaled.low == pytest.approx(-0.811, abs=1e-3)
    student = MeanEstimate.of([0.0, 0.5, 1.0], (0.0, 1.0))
    assert student.value == 0.5 and student.low == pytest.approx(
        0.5 - 4.3027 * 0.5 / 3**0.5, abs=1e-3
    )
    assert MeanEstimate.of([0.3]) == MeanEstimate(0.3, None, None, 1)
    assert MeanEstimate.of([]) == MeanEstimate(None, None, None, 0)
    apart = wilson.from_(0.0)
    assert (
        apart.value == -1.0 and apart.low == -1.0 and apart.high == pytest.approx(-0.5101, abs=1e-4)
    )


def test_one_agent_only_and_what_is_refused(adders: Path) -> None:
    row = culprits(adders)["second"][0]
    with ForkSession(adders, row["id"]) as session:
        found = explain(session, agent="second", n=2)
        assert [each.agent for each in found.turns] == ["second"]
        assert found.agents[0].shapley is None and found.played == 3
        with pytest.raises(ConfigError, match="its agents are first, second"):
            explain(session, agent="third")
        with pytest.raises(ConfigError, match="give resample, expert"):
            explain(session, against="magic")
        with pytest.raises(ConfigError, match=r"not a folder, and .* has "):
            explain(session, against="checkpoint:9")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents in two joint steps each, who act at once, with weights of their own."""
    folder = tmp_path_factory.mktemp("several") / "run"
    data = {
        "output_dir": str(folder),
        "environments": [{"env_type": "matrix", "game": "xor", "rounds": 2, "normalized": True}],
        "training": {
            "algorithm": "magrpo",
            "num_iterations": 2,
            "batch_size": 1,
            "learning_rate": 1e-2,
            "save_steps": 1,
            "report_to": "none",
        },
        "magrpo": {"group_size": 2},
        "generation": {"max_new_tokens": 2},
    }
    run_experiment(parse_config(data, [], "the test"))
    return folder


def test_turns_of_several_steps(several: Path) -> None:
    """A turn and all turns of its agent are different changes; concurrent turns do not hear one
    another; an expert may be absent."""
    (row, *_) = rows_of(several)
    found = why(several, row["id"], step=row["step"], n=2, against="checkpoint:1")
    # four turns, two agents alone and together, silence in the two turns of the first step
    assert found.played == found.cost.episodes == 2 * (4 + 3) + 2 + 1
    assert [(each.agent, each.turn) for each in found.turns] == [
        ("column", 0),
        ("row", 0),
        ("column", 1),
        ("row", 1),
    ]
    assert [set(each.influence) for each in found.turns] == [{"row"}, {"column"}, set(), set()]
    assert found.exact


def test_the_command_shows_and_saves(adders: Path, run: Mrlm) -> None:
    row = culprits(adders)["second"][0]
    done = run("why", adders, "--episode", row["id"], "--n", 4, "--save")
    assert done.code == 0, done.err
    assert done.out.startswith("cost: 14 episodes, about ")
    assert "decisive turn: second:0" in done.out and "n = 4 of each change" in done.out
    assert done.out.rstrip().splitlines()[-1].startswith("Limits: replay shows what else")
    name = row["id"].replace("/", "-")
    saved = json.loads((adders / "why" / f"{name}.json").read_text())
    assert saved["decisive"] == {"agent": "second", "turn": 0} and saved["schema"] == 1
    done = run("why", adders, "--episode", row["id"], "--n", 4, "--json")
    printed = json.loads(done.out)
    assert "\ncost: 14 episodes" in done.err
    timed = ("seconds", "cost")
    assert {k: v for k, v in printed.items() if k not in timed} == {
        k: v for k, v in saved.items() if k not in timed
    }
    assert run("why", adders, "--episode", "train/none/0/0").code == 2


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_what_the_page_shows_runs(
    run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    adding_run(tmp_path, output_dir="outputs/relay/2-together")
    for line in blocks("bash")[0].splitlines():
        done = run(*shlex.split(line)[1:])
        assert done.code == 0 and done.out, (line, done.err)
    assert (tmp_path / "outputs/relay/2-together/why/train-relay-1-0.json").is_file()
    for program in blocks("python"):
        exec(compile(program, "why.md", "exec"), {})
    assert "train/relay/1/0@second:0.3" in capfd.readouterr().out
    saved = json.loads((tmp_path / "outputs/relay/2-together/why/train-relay-1-0.json").read_text())
    page = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
    table = page[page.index("## The file") :]
    fields = {*saved, *saved["turns"][0], *saved["agents"][0], *saved["cost"]}
    assert {field for field in fields if f"`{field}`" not in table} == set()
