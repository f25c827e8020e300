"""Past selves as opponents: who sits where, what is kept, what it costs, and runs that go on bit by
bit."""

import gc
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from logged_rows import logged
from mrlm import Callback, ExperimentConfig, load_config, run_experiment
from mrlm.build.run import build
from mrlm.config import OpponentsConfig, parse_config
from mrlm.config.normalize import merge
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import CheckpointError, ConfigError, ModelError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.checkpoint import verify, write_folder
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import SamplingParams
from mrlm.selfplay.matchmaking import loss_rate, rated_agents, results_of, with_opponents
from mrlm.selfplay.opponent_pool import Population, mean_scores
from mrlm.selfplay.ratings import STEP
from mrlm.selfplay.snapshots import PastPlayer, thinned
from mrlm.train import iterate
from mrlm.training.run import Run
from places import ROOT

pytestmark = pytest.mark.system

WORLD = {"env_type": "small_environments:Higher"}
POKER = {"env_type": "kuhn_poker", "style": "short"}
TEAMS: dict[str, dict[str, Any]] = {
    "whole": {"policies": {"player": {}}},
    "adapter": {"policies": {"player": {"lora": {"r": 2}}}},
    "two": {"policies": {"first": {"lora": {"r": 2}}, "second": {}}},
}


def config(folder: Path, team: str = "whole", **changes: Any) -> ExperimentConfig:
    data: dict[str, Any] = {
        "experiment_name": "league",
        "output_dir": str(folder),
        "environments": [WORLD],
        "training": {
            "algorithm": "spiral",
            "num_iterations": 4,
            "batch_size": 8,
            "learning_rate": 1e-2,
            "save_steps": 2,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 2},
        "opponents": {"every": 1, "keep": 3, "games": 4, "matchmaking": "pfsp"},
        "evaluation": {"episodes": 2, "every": 2, "greedy": False},
        **TEAMS[team],
    }
    return ExperimentConfig(**data).merged(changes)


def played(run: Run, count: int = 8) -> list[Episode]:
    """An iteration's episodes, with the first opponents."""
    run.population.grow(run.step)
    run.assign_policies(run.step)
    run_async(run.population.meet(run.step))
    return [episode for group in run_async(run.source.take(count)) for episode in group]


# -- who sits where --------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_both_seats_are_met_equally_and_only_the_learner_learns(
    share: float, tmp_path: Path
) -> None:
    run = build(config(tmp_path / "run", **{"opponents.self": share}))
    episodes = played(run, 16)
    lineups = Counter(tuple(episode.policies.values()) for episode in episodes)
    guest = "player-opponent"
    own, each = round(16 * share), round(16 * (1 - share) / 2)
    wanted = {("player", "player"): own, ("player", guest): each, (guest, "player"): each}
    assert lineups == {key: count for key, count in wanted.items() if count}
    turns = [turn for episode in episodes for turn in episode.turns]
    assert {turn.trained for turn in turns if turn.policy == guest} == {False}
    assert {turn.trained for turn in turns if turn.policy == "player"} == {True}
    metrics = run.population.note([Group([episode]) for episode in episodes])
    assert metrics["opponents/share"] == 1 - share


def test_an_opponent_gets_no_gradient(tmp_path: Path) -> None:
    run = build(config(tmp_path / "run", "adapter", **{"opponents.self": 0.0}))
    run.population.grow(0)
    (stand_in,) = run.population.opponents["player"]
    run_async(iterate(run))
    before = run.learners[0].weights_of.fingerprint()
    assert stand_in.fingerprint() != before, "the policy moved, the opponent did not"
    run_async(run.population._load({"player": run.population.past["player"]}))
    again = stand_in.fingerprint()
    run.step = 1
    run_async(iterate(run))
    assert stand_in.fingerprint() == again
    assert all(value.grad is None for value in stand_in.parameters())


def test_two_policies_meet_each_others_past(tmp_path: Path) -> None:
    run = build(config(tmp_path / "run", "two", **{"opponents.self": 0.0}))
    lineups = Counter(tuple(episode.policies.values()) for episode in played(run, 8))
    assert lineups == {("first", "second-opponent"): 4, ("first-opponent", "second"): 4}
    run_async(iterate(run))
    run.step += 1
    run.population.grow(1)
    assert run.evaluator is not None
    metrics = run_async(run.population.evaluate(run.evaluator, 1, greedy=False))
    assert {"rating/first", "rating/second"} <= set(metrics)
    games = {(a, b): tally.games for a, b, tally in run.population.results.pairs()}
    assert games[("second@1", "first@0")] == 4 and games[("first@1", "second@0")] == 4
    assert ("first@1", "first@0") not in games, "nobody plays against its own seat"


def test_a_frozen_turn_is_no_hero_and_several_opponents_are_met_at_once(tmp_path: Path) -> None:
    changes = {"opponents.at_once": 2, "opponents.self": 0.0, "opponents.matchmaking": "latest"}
    run = build(config(tmp_path / "run", **changes))
    run.population.grow(0)
    run.population.grow(1)
    lineups = Counter(policy for episode in played(run, 8) for policy in episode.policies.values())
    assert lineups == {"player": 8, "player-opponent": 4, "player-opponent-2": 4}
    assert [past.name for past in run.population.facing["player"]] == ["player@1", "player@0"]
    alternating = config(
        tmp_path / "turns", "two", **{"opponents.self": 0.0, "training.schedule": "alternating"}
    )
    lineups = Counter(tuple(e.policies.values()) for e in played(build(alternating), 4))
    assert lineups == {("first", "second-opponent"): 4}


def test_an_evaluation_plays_every_deal_from_both_seats(tmp_path: Path) -> None:
    run = build(config(tmp_path / "run", **{"opponents.tasks_per_game": 3}))
    run.population.grow(0)
    play, seen = run.evaluator, []
    assert play is not None

    async def matches(*given: Any) -> list[Group]:
        groups = await type(play).matches(play, *given)
        seen.extend(groups)
        return groups

    play.matches = matches  # type: ignore[method-assign]
    metrics = run_async(run.population.evaluate(play, 5, greedy=False))
    assert len(seen) == 4 * 3
    for group in seen:
        one, other = group
        assert one.task.info == other.task.info and one.task.seed == other.task.seed
        assert [*one.policies.values()] == ["player", "player-opponent"]
        assert [*other.policies.values()] == ["player-opponent", "player"]
    assert run.population.results.between("player@5", "player@0").games == 4
    assert metrics["rating/player/low"] < metrics["rating/player"] < metrics["rating/player/high"]
    data = json.loads((tmp_path / "run" / "ratings.json").read_text())
    assert {row["name"] for row in data["players"]} == {"player@0", "player@5"}
    (payoff,) = data["payoffs"]
    games = [seen[first : first + 3] for first in range(0, 12, 3)]
    gains = [
        float(np.mean([hero_gain(episode) for group in game for episode in group]))
        for game in games
    ]
    scores = [0.5 + 0.5 * float(np.sign(gain)) for gain in gains]
    assert payoff["games"] == 4 and payoff["score"] == np.mean(scores)
    assert metrics["eval/opponents/player/score"] == np.mean(scores)
    assert metrics["eval/opponents/player/reward"] == np.mean(gains) == payoff["reward"]
    assert run.population.form["player"]["player@0"][0] == pytest.approx(
        1 + 0.99 + 0.99**2 + 0.99**3
    )
    assert len(set(gains)) > 1 and metrics["rating/player/moving"] != 1000
    assert run.population.settled == {}
    run_async(run.population.evaluate(play, 6, greedy=False))
    settled = run.population.settled
    assert settled == {"player@5": run.population.ratings()["player@5"]}, "nobody meets it again"


def hero_gain(episode: Episode) -> float:
    """How much more `player` was paid than the one who stood for its past."""
    paid = {episode.policies[name]: rollout.reward for name, rollout in episode.rollouts.items()}
    return paid["player"] - paid["player-opponent"]


def test_seats_swapped_take_luck_out_and_nobody_is_paid_unseen() -> None:
    def episode(hero: str, rewards: dict[str, float], silent: str = "") -> Episode:
        found = Episode("e", Task("t"), policies={"a": "guest", "b": "guest"} | {hero: "live"})
        for name, reward in rewards.items():
            if name == silent:
                found.metrics[f"{name}/unspoken_reward"] = reward
            else:
                turn = Turn(name, found.policies[name], [1], [2])
                turn.reward = reward
                found.rollouts[name] = Rollout(agent=name, turns=[turn])
        return found

    def score(*episodes: Episode) -> list[tuple[float, float]]:
        found = results_of(episodes, {"live"}, {"guest": "old@3"})
        assert all((each.player, each.other) == ("live", "old@3") for each in found)
        return [(each.score, each.reward) for each in found]

    lucky = episode("a", {"a": 2.0, "b": -2.0})
    unlucky = episode("b", {"a": 2.0, "b": -2.0})
    better = episode("b", {"a": 1.0, "b": -1.0}, silent="a")
    assert score(lucky) == [(1.0, 4.0)] and score(unlucky) == [(0.0, -4.0)]
    assert score(lucky, unlucky) == [(0.5, 0.0)]
    assert score(lucky, better) == [(1.0, 1.0)]
    broken = episode("a", {"a": 1.0, "b": 0.0})
    broken.status = "error"
    assert score(lucky, broken) == []
    assert results_of([lucky], {"somebody"}, {"guest": "old@3"}) == []


def test_only_a_live_policy_with_somebody_to_meet_is_a_hero() -> None:
    """Of three seats one is frozen and one has no past; the fourth name is no agent there."""
    seats: dict[str, Any] = {
        name: AgentSettings(name, policy, None, SamplingParams(), 8)
        for name, policy in {"a": "live", "b": "judge", "c": "other", "d": "live"}.items()
    }
    world: Any = SimpleNamespace(agents=("a", "b", "c", "e"))

    def policies(hero: str, stands_in: dict[str, str]) -> dict[str, tuple[str, bool]]:
        found = with_opponents(world, seats, hero, stands_in)
        return {name: (seat.policy, seat.trained) for name, seat in found.items()}

    unchanged = {name: (seat.policy, True) for name, seat in seats.items()}
    live, both = {"live": "guest"}, {"live": "guest", "other": "guest-2"}
    assert rated_agents(world, seats, ["live", "other"], live) == ["c"]  # nobody stands for `c`
    assert rated_agents(world, seats, ["live", "other"], both) == ["a", "c"]
    assert rated_agents(world, seats, ["live"], live) == []
    assert policies("c", live) == {**unchanged, "a": ("guest", False)}
    assert policies("a", both) == {**unchanged, "c": ("guest-2", False)}
    assert policies("a", {}) == unchanged


def game(name: str, reward: float, greedy: bool = False) -> Episode:
    """`live` has the first seat, and is paid so much more than `guest`."""
    found = Episode(name, Task("t"), policies={"a": "live", "b": "guest"}, greedy=greedy)
    for agent, paid in (("a", reward), ("b", -reward)):
        turn = Turn(agent, found.policies[agent], [1], [2], reward=paid)
        found.rollouts[agent] = Rollout(agent=agent, turns=[turn])
    return found


def league(*past: str) -> Population:
    """`live` against its past, which `guest` stands for; no weights are needed to keep accounts."""
    guest: Any = SimpleNamespace(name="guest", load=lambda folder: None)
    live: Any = object()
    settings = OpponentsConfig(every=1, matchmaking="pfsp")
    found = Population(settings=settings, trained={"live": live}, opponents={"live": [guest]})
    found.past["live"] = [PastPlayer(name, "live", step) for step, name in enumerate(past)]
    found.facing["live"] = found.past["live"][:1]
    return found


def test_games_count_for_those_who_learn_and_greedy_ones_for_nobody() -> None:
    population = league("live@0")
    greedy = [game(f"g{place}", -1.0, greedy=True) for place in range(3)]
    metrics = population.note([Group([game("e0", 2.0), *greedy]), Group([game("e1", 0.0)])])
    assert metrics == {"opponents/share": 1.0, "opponents/live/score": 0.75}
    assert population.form == {"live": {"live@0": [1.99, 1.49]}}  # the older game counts 0.99
    first = STEP / 2
    expected = 1 / (1 + 10 ** (-2 * first / 400))
    points = first + STEP * (0.5 - expected)
    assert population.moving["live"] == pytest.approx(1000 + 2 * points)
    assert population.note([Group(greedy)]) == {"opponents/share": 0.0}


def test_a_stand_in_is_read_again_only_where_it_stands_for_another_one() -> None:
    population = league("a", "b", "c")
    read: list[tuple[str, str]] = []
    sent: list[list[tuple[str, int]]] = []

    def stand_in(name: str) -> Any:
        return SimpleNamespace(name=name, load=lambda folder: read.append((name, folder.name)))

    async def exchange(loaded: Any) -> None:
        sent.append([(each.policy, each.version) for each in loaded])

    population.opponents["live"] = [stand_in("guest"), stand_in("guest-2")]
    population.facing, population.exchange = {}, exchange
    a, b, c = population.past["live"]
    abroad = PastPlayer("live@source", "live", None)
    for chosen, now_read, now_sent, facing in (
        ([a, c], [("guest", "a"), ("guest-2", "c")], [("guest", 0), ("guest-2", 2)], [a, c]),
        ([b], [("guest", "b")], [("guest", 1)], [b, c]),
        ([b, a], [("guest-2", "a")], [("guest", 1), ("guest-2", 0)], [b, a]),
        ([b, a], [], [("guest", 1), ("guest-2", 0)], [b, a]),
        ([abroad], [("guest", "live@source")], [("guest", 0)], [abroad, a]),
    ):
        read.clear()
        run_async(population._load({"live": chosen}))
        assert (read, sent.pop(), population.facing["live"]) == (now_read, now_sent, facing)
    run_async(population._load({"live": []}))
    assert not sent and population.standing() == {"guest": "live@source", "guest-2": "a"}


def test_ratings_are_listed_by_policy_and_age_and_settled_ones_stay() -> None:
    population = league("live@0")
    assert population.report() == "" and population.anchor == "live@0"
    assert mean_scores(population) == ([], [])
    for player, other in (
        ("live@10", "live@0"),
        ("live@9", "live@source"),
        ("live@0", "live@source"),
        ("live@10", "live@9"),
        ("late@3", "live@9"),
    ):
        population.results.add(player, other, 1.0)
    population.settled["live@9"] = (1234.0, 1200.0, 1300.0)
    found = population.ratings()
    assert list(found) == ["late@3", "live@source", "live@0", "live@9", "live@10"]
    assert found["live@9"] == (1234.0, 1200.0, 1300.0) and found["live@0"][0] == 1000
    assert population.report().splitlines()[1].split()[:2] == [
        "late@3",
        f"{found['late@3'][0]:.0f}",
    ]
    names, scores = mean_scores(population)
    lines = population.report().splitlines()[1 : 1 + len(names)]
    assert names == [line.split()[0] for line in lines] == ["late@3", "live@source", "live@0"]
    assert scores == [[None, None, None], [None, None, 0.0], [None, 1.0, None]]


def test_those_who_beat_us_come_more_often() -> None:
    """`power` is 2; a game that nobody played yet is a draw."""
    population = league("weak", "strong", "new")
    population.form = {"live": {"weak": [9.0, 8.5], "strong": [9.0, 2.5]}}
    chances = {name: loss_rate(population.form, name) for name in ("weak", "strong", "new")}
    assert chances == pytest.approx({"weak": 0.1, "strong": 0.7, "new": 0.5})

    async def sample(_: object) -> None:
        """Nobody samples from them here."""

    population.exchange = sample
    met: Counter[str] = Counter()
    for step in range(600):
        run_async(population.meet(step))
        met.update(population.standing().values())
    for name, weight in {"weak": 0.01, "strong": 0.49, "new": 0.25}.items():
        assert met[name] / 600 == pytest.approx(weight / 0.75, abs=0.06)


# -- what is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "keep", "kept"),
    [
        ([0, 10, 20], 3, [0, 10, 20]),
        ([0, 10, 20, 30], 3, [0, 20, 30]),  # both have neighbours 20 apart: the older one goes
        ([0, 3, 4, 6], 3, [0, 3, 6]),  # 4 apart and 3 apart
        ([1, 3, 4, 6], 3, [1, 4, 6]),
        ([0, 5, 6, 7, 30], 3, [0, 7, 30]),
        ([0, None, 2, None, 4, 6], 2, [0, None, None, 6]),  # those from elsewhere do not count
    ],
)
def test_the_snapshot_whose_neighbours_are_closest_is_forgotten(
    steps: list[int | None], keep: int, kept: list[int | None]
) -> None:
    past = [PastPlayer(str(number), "live", step) for number, step in enumerate(steps)]
    assert [each.step for each in thinned(past, keep)] == kept


def saved_player(folder: Path, text: str) -> None:
    write_folder(folder, lambda temporary: (temporary / "weights").write_text(text))


def test_a_league_that_is_taken_up_again_has_the_players_of_its_state_and_no_others(
    tmp_path: Path,
) -> None:
    """Those of the same run and those of another folder; what a killed run left is removed."""
    before = league("live@0", "live@1")
    before.note([Group([game("e", 2.0)])])
    before.results.add("live@1", "live@0", 1.0, reward=3.0)
    before.settled["live@9"] = (1.0, 0.5, 2.5)
    state = json.loads(json.dumps(before.state_dict()))
    elsewhere, here = tmp_path / "old", tmp_path / "new"
    for run, name, text in (
        (elsewhere, "live@0", "there"),
        (elsewhere, "live@1", "there"),
        (here, ".live@0.old-1", "here"),  # set aside when it was killed: it is put back
        (here, "live@7", "here"),
    ):
        saved_player(run / "snapshots" / name, text)
    (here / "snapshots" / ".live@8.tmp-1").mkdir()
    after = Population(
        here, settings=before.settings, trained=before.trained, opponents=before.opponents
    )
    after.facing["live"] = [PastPlayer("live@7", "live", 7)]
    after.load_state_dict(state, elsewhere)
    assert after.state_dict() == before.state_dict() and after.facing == {}
    assert {each.name for each in (here / "snapshots").iterdir()} == {"live@0", "live@1"}
    for name, text in (("live@0", "here"), ("live@1", "there")):
        assert verify(here / "snapshots" / name) is None
        assert (here / "snapshots" / name / "weights").read_text() == text
    (elsewhere / "snapshots" / "live@0" / "weights").write_text("3")
    again = Population(elsewhere, settings=before.settings, opponents=before.opponents)
    with pytest.raises(CheckpointError, match=r"live@0.*damaged"):
        again.load_state_dict(state, here)
    shutil.rmtree(elsewhere / "snapshots" / "live@0")
    with pytest.raises(CheckpointError, match=r"gone.*live@0.*snapshot is missing"):
        again.load_state_dict(state, tmp_path / "gone")
    nobody = Population(here)
    nobody.load_state_dict({**state, "past": {}}, elsewhere)
    nobody.tidy()
    assert len(list((here / "snapshots").iterdir())) == 2, "a run without opponents looks away"


def test_snapshots_are_thinned_evenly_and_never_the_first_or_newest(tmp_path: Path) -> None:
    run = build(config(tmp_path / "run", **{"opponents.every": 10, "opponents.keep": 5}))
    kept = []
    for step in range(0, 200, 5):
        run.population.grow(step)
        kept = [past.step for past in run.population.past["player"]]
        assert len(kept) <= 5 and kept[0] == 0 and kept[-1] == step // 10 * 10
    gaps = [b - a for a, b in pairwise(kept)]  # type: ignore[operator]
    assert max(gaps) <= 2 * 200 / 4
    names = {folder.name for folder in (tmp_path / "run" / "snapshots").iterdir()}
    assert names == {f"player@{step}" for step in kept}
    rated = run.population.moving
    rated.add("player", "player@0", 1.0)
    run.population.grow(200)
    assert rated["player@200"] == rated["player"] != rated["player@190"], "it begins as strong"


@pytest.mark.parametrize("team", ["whole", "adapter"])
def test_a_snapshot_is_a_model_that_anybody_loads(team: str, tmp_path: Path) -> None:
    run = build(config(tmp_path / "run", team))
    run.population.grow(0)
    before = run.learners[0].weights_of.fingerprint()
    run_async(iterate(run))
    run.population.grow(1)
    folder = tmp_path / "run" / "snapshots"
    assert verify(folder / "player@0") is None and verify(folder / "player@1") is None
    population = run.population
    (stand_in,) = population.opponents["player"]
    run_async(population._load({"player": population.past["player"][:1]}))
    assert stand_in.fingerprint() == before
    run_async(population._load({"player": population.past["player"][1:]}))
    assert stand_in.fingerprint() == run.learners[0].weights_of.fingerprint() != before
    if team == "whole":
        loaded = AutoModelForCausalLM.from_pretrained(folder / "player@1")
        pairs = zip(loaded.parameters(), stand_in.model.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    else:
        assert (folder / "player@1" / "adapter_config.json").is_file()


def models() -> int:
    gc.collect()
    return sum(type(each) is Qwen3ForCausalLM for each in gc.get_objects())


@pytest.mark.parametrize("team", [pytest.param("whole", marks=pytest.mark.slow), "adapter"])
def test_as_many_weights_are_held_however_many_snapshots_there_are(
    team: str, tmp_path: Path
) -> None:
    before = models()
    run = build(config(tmp_path / "run", team, **{"opponents.keep": 20}))
    built = models() - before
    policy = run.learners[0].weights_of
    assert built == (2 if team == "whole" else 1)
    size = policy.size
    for step in range(4):
        run.population.grow(step)
        run_async(run.population._load({"player": run.population.past["player"][-1:]}))
        assert policy.size == size
    assert models() - before == built
    if team == "adapter":
        assert set(policy.model.peft_config) == {"player", "player-opponent"}
        (stand_in,) = run.population.opponents["player"]
        assert stand_in.model is policy.model, "one base for all"


# -- runs that go on -------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, bytes]:
    found = sorted((folder / "snapshots").rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("team", ["whole", "two"])
def test_half_a_run_and_the_other_half_are_the_run_bit_by_bit(team: str, tmp_path: Path) -> None:
    run_experiment(config(tmp_path / "whole", team))
    half: dict[str, Any] = {"training.num_iterations": 2}
    run_experiment(config(tmp_path / "parts", team, **half))
    # other players that a killed run took after the checkpoint must not stay
    (tmp_path / "parts" / "snapshots" / "player@99").mkdir()
    run_experiment(config(tmp_path / "parts", team), resume=tmp_path / "parts")
    expected, found = logged(tmp_path / "whole"), logged(tmp_path / "parts")
    assert found == expected and len(expected) == 5
    assert len({row["loss"] for row in found[1:]}) == 4 and found[-1]["opponents/share"] > 0
    ratings = [(tmp_path / part / "ratings.json").read_text() for part in ("whole", "parts")]
    assert ratings[0] == ratings[1]
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


class Killed(Exception):
    """The run ends at once and saves nothing."""


class Kill(Callback):
    def on_step_end(self, run: Any, metrics: Any) -> None:
        if run.step == 3:
            raise Killed


def test_a_killed_run_finds_the_opponents_of_its_checkpoint(tmp_path: Path) -> None:
    """Also those that were thinned out since; and in another folder too."""
    changes = {"opponents.keep": 2, "opponents.matchmaking": "uniform"}
    run_experiment(config(tmp_path / "whole", **changes))
    with pytest.raises(Killed):
        run_experiment(config(tmp_path / "parts", **changes), callbacks=[Kill()])
    kept = {folder.name for folder in (tmp_path / "parts" / "snapshots").iterdir()}
    assert {"player@0", "player@2", "player@3"} == kept
    checkpoint = tmp_path / "parts" / "checkpoint-2"
    moved = config(tmp_path / "moved", **changes)
    run_experiment(moved, resume=checkpoint)
    whole = [row for row in logged(tmp_path / "whole") if row["step"] > 2]
    assert logged(tmp_path / "moved") == whole
    found, expected = files(tmp_path / "moved"), files(tmp_path / "whole")
    assert {name: expected[name] for name in found} == found and len(found) == 2 * 7
    assert (tmp_path / "moved" / "ratings.json").read_text() == (
        tmp_path / "whole" / "ratings.json"
    ).read_text()


# -- opponents from elsewhere ----------------------------------------------------------------------


def test_a_plain_run_plays_against_another_run(tmp_path: Path) -> None:
    short: dict[str, Any] = {"training": {"num_iterations": 1}}
    plain: dict[str, Any] = {"opponents": {"every": None}, "evaluation": {"episodes": 0}}
    run_experiment(config(tmp_path / "old", **plain, **short))
    source = {"every": None, "source": str(tmp_path / "old"), "self": 0.0, "games": 4}
    run = build(config(tmp_path / "new", opponents=source))
    episodes = played(run)
    assert {"player-opponent"} < {p for episode in episodes for p in episode.policies.values()}
    old = AutoModelForCausalLM.from_pretrained(tmp_path / "old" / "final")
    (stand_in,) = run.population.opponents["player"]
    pairs = zip(old.parameters(), stand_in.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    run.population.past["player"].clear()
    run.population.grow(0)
    assert not run.population.facing.get("player"), "it was read through the stand-in"
    source["source"] = [str(tmp_path / "old"), str(tmp_path / "old" / "final")]
    result = run_experiment(config(tmp_path / "again", opponents=source, **short))
    players = json.loads((tmp_path / "again" / "ratings.json").read_text())["players"]
    assert {each["name"]: each["kept"] for each in players} == {
        "player@source": True,
        "player@source-2": True,
        "player@0": False,
        "player@1": False,
    }
    assert players[0]["name"] == "player@source" and players[0]["rating"] == 1000
    assert "rating/player" in result.metrics
    seated = {
        "policies": {"player": {}, "old": {"model": str(tmp_path / "old"), "trainable": False}},
        "agents": {"first": {"policy": "player"}, "second": {"policy": "old"}},
    }
    beside = build(config(tmp_path / "seated", **plain).merged(seated))
    policies = {tuple(episode.policies.values()) for episode in played(beside, 2)}
    assert policies == {("player", "old")} and not beside.population


@pytest.mark.parametrize("team", ["whole", "adapter"])
def test_an_opponent_of_another_shape_is_refused(team: str, tmp_path: Path, gpt2_path: str) -> None:
    run = build(config(tmp_path / "run", team, opponents={"source": gpt2_path}))
    with pytest.raises(ModelError, match=r"opponents\.source"):
        run.population.grow(0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"opponents": {"policies": ["nobody"]}}, "nobody"),
        ({"opponents": {"every": None, "policies": ["player"]}}, r"opponents\.every"),
        ({"environments": [{"env_type": "math"}]}, "an opponent replaces"),
        ({"environments": [{**POKER, "opponent": "random"}]}, "an opponent replaces"),
        ({"training": {"algorithm": "sft"}}, "in rollouts"),
        ({"opponents": {"keep": 1}}, "keep"),
        ({"opponents": {"self": 1.5}}, "self"),
    ],
)
def test_opponents_that_nobody_would_meet_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        build(config(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_config_of_poker_against_the_past_runs(tmp_path: Path) -> None:
    """The first steps of every stage, on few hands."""
    loaded = load_config(ROOT / "configs" / "self_play_poker.yaml", [f"output_dir={tmp_path}/run"])
    few: dict[str, Any] = {"training": {"num_iterations": 2, "batch_size": 8, "report_to": "none"}}
    play = {"opponents": {"every": 1, "games": 2, "tasks_per_game": 2}, "evaluation": {"every": 1}}
    stages = [
        merge(stage.changes, {"name": stage.name, **few, **(play if stage.name == "play" else {})})
        for stage in loaded.stages
    ]
    result = run_experiment(loaded.merged({"stages": stages}))
    assert "rating/player" in result.metrics
    assert (result.run_folder / "2-play" / "ratings.json").is_file()


@pytest.mark.parametrize("number", range(2))
def test_what_the_page_shows_is_a_config(number: int) -> None:
    page = (ROOT / "docs" / "self_play.md").read_text(encoding="utf-8")
    block = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[number]
    assert parse_config(yaml.safe_load(block)).opponents.on


@pytest.mark.slow
def test_the_evidence_is_gathered(tmp_path: Path) -> None:
    command = ["-m", "benchmarks.learning.poker", "--seeds", "2", "--quick"]
    done = subprocess.run(
        [sys.executable, *command, "--work", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "rating gained" in done.stdout
