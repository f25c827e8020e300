"""Ratings from results: what they say where the answer is known, and matches that are drawn as they
are asked for."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from mrlm.core.statistics import Z
from mrlm.selfplay.matchmaking import drawn, match_number
from mrlm.selfplay.opponent_pool import cycle_share
from mrlm.selfplay.ratings import (
    ANCHOR,
    SCALE,
    STEP,
    MovingRatings,
    Results,
    fitted,
    matrix_table,
    record,
    report,
)


def results(*rows: tuple[str, str, float, int]) -> Results:
    """(player, other, score, how often)."""
    found = Results()
    for player, other, score, times in rows:
        for _ in range(times):
            found.add(player, other, score, reward=2 * score - 1)
    return found


def test_two_players_have_the_rating_of_the_formula() -> None:
    """30 of 40: the odds are 3 to 1; the information of n games is n p (1 - p)."""
    for known in (
        results(("new", "old", 1.0, 30), ("new", "old", 0.0, 10)),
        results(("new", "old", 1.0, 20), ("new", "old", 0.5, 20)),
        results(("old", "new", 0.0, 30), ("old", "new", 1.0, 10)),
    ):
        found = fitted(known, "old", prior=0.0)
        rating, low, high = found["new"]
        assert rating == pytest.approx(1000 + 400 * math.log10(3), abs=1e-6)
        half = Z * SCALE / math.sqrt(40 * 0.75 * 0.25)
        assert (low, high) == pytest.approx((rating - half, rating + half))
        assert found["old"] == (ANCHOR, ANCHOR, ANCHOR)


def test_a_ladder_of_players_each_of_whom_beats_the_one_below() -> None:
    steps = [(f"p{place + 1}", f"p{place}", 1.0, 9) for place in range(6)]
    found = fitted(results(*steps), "p0")
    one = 400 * math.log10(9.5 / 0.5)
    half = Z * SCALE / math.sqrt(10 * 0.95 * 0.05)
    for place in range(7):
        mean, low, high = found[f"p{place}"]
        assert mean == pytest.approx(1000 + place * one, abs=1e-6)
        assert high - mean == pytest.approx(mean - low) == half * math.sqrt(place)


def test_drawn_games_that_nobody_played_keep_a_rating_finite() -> None:
    unbeaten = results(("new", "old", 1.0, 9))
    rating, low, high = fitted(unbeaten, "old")["new"]
    assert rating == pytest.approx(1000 + 400 * math.log10(9.5 / 0.5), abs=1e-6)
    assert low < rating < high < 3000
    more = fitted(results(("new", "old", 1.0, 900)), "old")["new"]
    assert more[0] > rating + 400


def test_ratings_are_those_that_results_were_drawn_with() -> None:
    rng = np.random.default_rng(2)
    true = {"a": 1000.0, "b": 1080.0, "c": 1200.0, "d": 950.0}
    known = Results()
    names = list(true)
    for one in names:
        for other in names:
            if one < other:
                chance = 1 / (1 + 10 ** ((true[other] - true[one]) / 400))
                for win in rng.random(400) < chance:
                    known.add(one, other, float(win))
    found = fitted(known, "a")
    for name in names[1:]:
        rating, low, high = found[name]
        assert low < true[name] < high and high - low < 80
        assert abs(rating - true[name]) < 40
    other_way = Results()
    other_way.load_state_dict(list(reversed(known.state_dict())))
    turned = fitted(other_way, "a")
    assert all(turned[name] == pytest.approx(found[name], abs=1e-6) for name in names)


def test_intervals_cover_what_they_should() -> None:
    """95 in 100, within what chance allows."""
    rng, inside = np.random.default_rng(1), 0
    chance = 1 / (1 + 10 ** (-100 / 400))
    for _ in range(200):
        known = Results()
        for win in rng.random(60) < chance:
            known.add("new", "old", float(win))
        _, low, high = fitted(known, "old")["new"]
        inside += low < 1100 < high
    assert 180 <= inside <= 199


def test_intervals_know_of_the_snapshots_that_were_left_out() -> None:
    """A ladder of players each of whom met only the one before, which is left out then."""
    rng, inside = np.random.default_rng(2), 0
    chance = 1 / (1 + 10 ** (-100 / 400))
    for _ in range(60):
        known, settled = Results(), {}
        for level in range(1, 8):
            for win in rng.random(60) < chance:
                known.add(str(level), str(level - 1), float(win))
            settled = fitted(known, "0", prior=0.0, settled=settled)
        inside += settled["7"][1] < 1700 < settled["7"][2]
    assert inside >= 54


def test_a_circle_makes_all_equal_and_strangers_have_no_rating() -> None:
    circle = [("a", "b", 1.0, 5), ("b", "c", 1.0, 5), ("c", "a", 1.0, 5)]
    found = fitted(results(*circle, ("x", "y", 1.0, 5)), "a")
    assert set(found) == {"a", "b", "c"}
    assert all(found[name][0] == pytest.approx(1000) for name in "abc")
    assert fitted(Results(), "a") == {"a": (1000.0, 1000.0, 1000.0)}


def test_a_pair_is_known_from_both_sides() -> None:
    known = results(("a", "b", 1.0, 3), ("b", "a", 0.5, 1))
    assert known.between("a", "b").mean_score == 3.5 / 4
    assert known.between("b", "a").mean_score == 0.5 / 4
    assert known.between("b", "a").reward == -known.between("a", "b").reward == -3.0
    assert known.between("a", "z").games == 0
    again = Results()
    again.load_state_dict(known.state_dict())
    assert again.between("b", "a") == known.between("b", "a") and again.players() == ["a", "b"]
    text = matrix_table(known, ["a", "b"])
    assert text.splitlines()[1].split() == ["a", "-", "0.88", "(4)"]
    known.add("b", "a", 0.0, reward=-5.0)
    known.add("a", "b", 0.0, reward=0.25)
    assert known.between("a", "b").reward == 3 + 5 + 0.25
    assert known.between("b", "a").mean_reward == -8.25 / 6
    for wrong in (("a", "a", 1.0), ("a", "b", 1.5), ("a", "b", math.nan)):
        with pytest.raises(ValueError, match="no result"):
            known.add(*wrong)


def test_moving_ratings_move_by_what_was_not_expected() -> None:
    ratings = MovingRatings("old")
    ratings.add("new", "old", 1.0)
    assert ratings["new"] == pytest.approx(1000 + STEP)  # half a step each, seen from the anchor
    expected = 1 / (1 + 10 ** (-STEP / 400))
    ratings.add("new", "old", 0.5)
    assert ratings["new"] == pytest.approx(1000 + STEP + 2 * STEP * (0.5 - expected))
    ratings.enter("copy", "new")
    assert ratings["copy"] == ratings["new"] and ratings["old"] == 1000
    again = MovingRatings("old")
    again.load_state_dict(ratings.state_dict())
    assert again["new"] == ratings["new"]


def test_players_without_games_are_rated_as_the_anchor_was_at_first() -> None:
    ratings = MovingRatings("old")
    assert ratings["new"] == ratings["old"] == 1000
    ratings.add("new", "newer", 1.0)
    assert ratings["new"] == 1004 and ratings["newer"] == 996
    ratings.enter("copy", "nobody")
    assert ratings["copy"] == 1000


def test_a_record_and_a_report_have_the_means_of_every_pair() -> None:
    known = Results()
    for player, other, score, reward in (
        ("one@0", "two@0", 1.0, 2.0),
        ("two@0", "one@0", 0.5, 1.0),  # counted as -1 for `one@0`
        ("one@5", "one@0", 1.0, 0.5),
        ("one@12", "one@0", 0.0, -3.0),
    ):
        known.add(player, other, score, reward)
    ratings = {
        "one@0": (1000.0, 1000.0, 1000.0),
        "two@0": (904.6, 712.0, 1097.2),
        "one@5": (1100.0, 900.0, 1300.0),
        "one@12": (800.0, 600.4, 1000.6),
    }
    found = record(known, ratings, kept=["one@0"])
    assert [row["kept"] for row in found["players"]] == [True, False, False, False]
    assert found["players"][1] == {
        "name": "two@0",
        "rating": 904.6,
        "low": 712.0,
        "high": 1097.2,
        "kept": False,
    }
    assert found["payoffs"] == [
        {"player": "one@0", "other": "two@0", "games": 2.0, "score": 0.75, "reward": 0.5},
        {"player": "one@5", "other": "one@0", "games": 1.0, "score": 1.0, "reward": 0.5},
        {"player": "one@12", "other": "one@0", "games": 1.0, "score": 0.0, "reward": -3.0},
    ]
    known.add("one@12", "two@0", 1.0)
    assert "at least, since" not in report(known, ratings, kept=["one@0"])
    flawless = Results()
    flawless.add("one@5", "one@0", 1.0)
    assert "at least, since they won every game: one@5" in report(
        flawless, ratings, kept=["one@0", "one@5"]
    )
    # neither kept nor the latest of its policy: one@5
    assert report(known, ratings, kept=["one@0"]).splitlines() == [
        "player  rating        95 %", "one@0     1000  1000..1000", "two@0      905   712..1097",
        "one@12     800   600..1001", "", "mean score of the row against the column (games)",
        "           one@0     two@0    one@12", "one@0          -  0.75 (2)  1.00 (1)",
        "two@0   0.25 (2)         -  0.00 (1)", "one@12  0.00 (1)  1.00 (1)         -",
    ]  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 0.5, 0.7, 1.0])
def test_a_share_of_the_tasks_are_matches_and_they_are_counted(share: float) -> None:
    numbers = [match_number(task, share) for task in range(1000)]
    matches = [number for number in numbers if number is not None]
    assert matches == list(range(round(1000 * share)))
    for first in range(0, 1000, 20):  # evenly, whenever one looks
        window = [number for number in numbers[first : first + 20] if number is not None]
        assert abs(len(window) - 20 * share) <= 1


def test_opponents_are_drawn_as_asked() -> None:
    names, losses = ["a", "b", "c"], {"a": 0.1, "b": 0.2, "c": 0.4}
    rng = random.Random(0)

    def draw(how: str, count: int = 1, power: float = 2.0) -> list[str]:
        return drawn(names, count, how, losses, power, rng)  # type: ignore[arg-type]

    assert draw("latest") == ["c"] and draw("latest", 2) == ["c", "b"]
    assert draw("latest", 9) == ["c", "b", "a"]
    counts = Counter(name for _ in range(4000) for name in draw("pfsp"))
    for name, weight in {"a": 1, "b": 4, "c": 16}.items():  # (1 - x)^2 of what is won
        assert counts[name] / 4000 == pytest.approx(weight / 21, abs=0.03)
    for how, power in (("uniform", 2.0), ("pfsp", 0.0)):
        counts = Counter(name for _ in range(3000) for name in draw(how, 1, power))
        assert all(abs(count / 3000 - 1 / 3) < 0.04 for count in counts.values())
    assert sorted(draw("pfsp", 3)) == names and sorted(draw("uniform", 5)) == names
    assert drawn(names, 1, "pfsp", dict.fromkeys(names, 0.0), 2.0, rng)[0] in names
    assert drawn([], 2, "pfsp", {}, 2.0, rng) == []


def test_players_whom_nobody_meets_any_more_keep_their_ratings() -> None:
    """And those who play on are rated as if nothing had happened, as far as their ratings held."""
    games = results(("mid", "old", 0.7, 40), ("new", "mid", 0.6, 40), ("new", "old", 0.8, 40))
    everybody = fitted(games, "old")
    rest = fitted(games, "old", settled={"mid": everybody["mid"]})
    assert rest["mid"] == everybody["mid"]
    assert rest["new"][0] == pytest.approx(everybody["new"][0], abs=1e-6)
    assert rest["new"] == pytest.approx(everybody["new"], abs=1e-6), "mid is as uncertain as it was"
    exact = fitted(games, "old", settled={"mid": (everybody["mid"][0],) * 3})
    assert exact["new"][1] > everybody["new"][1], "mid is known"
    moved = fitted(games, "old", settled={"mid": (2000.0, 1900.0, 2100.0)})
    assert moved["new"][0] > everybody["new"][0] and moved["old"][0] == 1000
    assert set(fitted(games, "old", settled={"gone": (1.0, 1.0, 1.0)})) == set(everybody)


def test_rock_beats_scissors_beats_paper_beats_rock() -> None:
    """`opponents/cycles`: a triple is a cycle, is none, or is not known well enough."""
    wins = [("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")]
    players = ["rock", "scissors", "paper", "stick"]
    circle = results(*((one, other, 1.0, 20) for one, other in wins))
    assert cycle_share(circle, players) == 1.0
    worst = [("rock", "stick"), ("scissors", "stick"), ("paper", "stick")]
    whole = results(*((one, other, 1.0, 20) for one, other in [*wins, *worst]))
    assert cycle_share(whole, players) == 1 / 4
    assert (
        cycle_share(results(*((a, b, 1.0, 20) for a, b in worst[:1] + wins[:2])), players) is None
    )
    assert cycle_share(results(*((one, other, 0.6, 20) for one, other in wins)), players) is None
    order = results(
        ("rock", "scissors", 1, 9), ("scissors", "paper", 1, 9), ("rock", "paper", 1, 9)
    )
    assert cycle_share(order, players) == 0.0
