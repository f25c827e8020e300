"""Leduc poker against its published numbers, and the rules against the environment."""

import itertools
import random
from typing import Any

import pytest

from game_players import played, script
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.environments.poker.hands import conversations, played_policy, read_policy
from mrlm.environments.poker.leduc import (
    LEVELS,
    TOLERANCE,
    VALUE,
    LeducEnvironment,
    leduc_equilibrium,
    leduc_exploitability,
    leduc_rules,
)
from mrlm.environments.poker.zero_sum import GameTree, Policy, best_response, expected


def uniform(ranks: int = 3, raises: int = 2) -> dict[tuple[str, str], list[float]]:
    game = leduc_rules(ranks, raises)
    counts = {key: len(game.moves(key[1])) for node in GameTree(game).nodes for key in node.keys}
    return {key: [1 / count] * count for key, count in counts.items()}


def ends(history: str = "", raises: int = 2) -> list[str]:
    """All histories of a game that is over."""
    game = leduc_rules(3, raises)
    moves = game.moves(history)
    return [e for m in moves for e in ends(game.after(history, m), raises)] or [history]


def test_the_published_value_and_an_expert_that_is_hardly_exploitable() -> None:
    """-0.0856 for the first player, as OpenSpiel finds; a uniform player loses 2.3736."""
    able = leduc_equilibrium()
    assert expected(leduc_rules(), able, able) == pytest.approx(VALUE, abs=TOLERANCE)
    assert -best_response(leduc_rules(), able, 1) <= VALUE <= best_response(leduc_rules(), able, 0)
    assert 0 < leduc_exploitability(able) <= TOLERANCE
    assert leduc_exploitability(uniform()) == pytest.approx(2.373611, abs=1e-6)


@pytest.mark.parametrize(("level", "sets"), [(1, 56), (2, 120), (3, 288), (4, 1116)])
def test_levels_have_as_many_information_sets_as_they_should(level: int, sets: int) -> None:
    env = LeducEnvironment(level=level)
    assert sum(len(node.keys) for node in GameTree(env.game).nodes) == sets
    assert (env.ranks, env.raises) == tuple(LEVELS[level].values())
    if level < 3:
        able = leduc_equilibrium(env.ranks, env.raises)
        assert leduc_exploitability(able, env.ranks, env.raises) <= TOLERANCE


def test_a_best_response_is_what_a_tree_without_tables_finds() -> None:
    """Against random players, by a recursion over beliefs that shares no code with the tables."""
    rng, game = random.Random(0), leduc_rules()
    policy = {
        key: [each / sum(raw) for each in raw]
        for key, chances in uniform().items()
        for raw in [[rng.random() for _ in chances]]
    }
    for role in (0, 1):
        assert best_response(game, policy, role) == pytest.approx(best(policy, role))


def best(policy: Policy, role: int) -> float:
    game = leduc_rules()

    def worth(weights: dict[str, float], history: str) -> float:
        """The value of a set of deals with one own card (and one revealed card, if shown)."""
        moves = game.moves(history)
        if not moves:
            sign = 1 if role == 0 else -1
            return sum(
                weight * sign * game.chips(deal, history) for deal, weight in weights.items()
            )
        if game.mover(history) == role:
            return max(split(weights, game.after(history, move)) for move in moves)
        total = 0.0
        for place, move in enumerate(moves):
            reached = {
                deal: weight * policy[game.view(deal, history), history][place]
                for deal, weight in weights.items()
            }
            total += split(reached, game.after(history, move))
        return total

    def split(weights: dict[str, float], history: str) -> float:
        """The same, where a card may just have been revealed."""
        if history.count("/") != 1 or not history.endswith("/"):
            return worth(weights, history)
        cards = {deal[2] for deal in weights}
        parts = ({d: w for d, w in weights.items() if d[2] == card} for card in cards)
        return sum(worth(part, history) for part in parts)

    deals = game.deals
    own = {card: {d: 0.0 for d in deals if d[role] == card} for card in "JQK"}
    for deal in deals:
        own[deal[role]][deal] += 1 / len(deals)
    return sum(worth(weights, "") for weights in own.values())


@pytest.mark.parametrize(
    ("deal", "moves", "won"),
    [
        ("KJQ", "cccc", 1),
        ("KJQ", "rcrc", 7),
        ("KJQ", "rrcrrc", 13),
        ("KJJ", "crrccrrc", -13),  # a pair beats the higher card
        ("QQK", "rcrc", 0),
        ("JKQ", "rf", 1),
        ("KJQ", "rrf", -3),
        ("KJQ", "crf", -1),
        ("KJQ", "ccrf", 1),
        ("KJQ", "rccrrf", 7),
    ],
)
def test_hands_that_were_worked_out_by_hand(deal: str, moves: str, won: int) -> None:
    env = LeducEnvironment(style="short")
    paid, seen, _ = played(env, Task("t", info={"deals": [deal]}), script(*moves))
    assert paid == {"first": won, "second": -won}
    assert len(seen) == len(moves) <= (env.max_turns or 0)


def test_the_environment_rewards_what_the_rules_say() -> None:
    game, rng = leduc_rules(), random.Random(0)
    env = LeducEnvironment(style="short")
    assert max(len(end.replace("/", "")) for end in ends()) == env.max_turns == 8
    for end in ends():
        deal = rng.choice(game.deals)
        task = Task("t", info={"deals": [deal]})
        assert played(env, task, script(*end.replace("/", "")))[0]["first"] == game.chips(deal, end)
    assert {abs(game.chips("KJQ", end)) for end in ends()} == {1, 3, 5, 7, 9, 11, 13}


@pytest.mark.parametrize("words", ["", "rc", "check", "x", "f", "r" * 9_999, "fold or call"])
def test_an_illegal_answer_folds_with_what_was_put_in(words: str) -> None:
    env = LeducEnvironment(style="short", illegal=0.5)
    task = Task("t", info={"deals": ["KJQ"]})
    paid, _, parts = played(env, task, script("r", "c", words))
    assert paid == {"first": -3.5, "second": 3}
    assert parts["first"] == {"chips": -3, "illegal": 1} and parts["second"] == {"chips": 3}


def test_prompts_hold_all_a_player_may_know_and_nothing_else() -> None:
    env = LeducEnvironment()
    for style in ("full", "short"):
        shown = conversations(LeducEnvironment(style=style))
        assert len({tuple(m.content for m in each) for each in shown.values()}) == 288
    short = {
        key: each[-1].content
        for key, each in conversations(LeducEnvironment(style="short")).items()
    }
    assert short["K", ""] == "K?" and short["KQ", "crc/r"] == "Kcrc/Qr?"
    text = conversations(env)["KQ", "crc/r"][-1].content
    assert text == (
        "Your card: K. Revealed card: Q. Round 1: the other: check, you: bet, the other: call. "
        "Round 2: the other: bet. You have put in 3, the other 7. fold, call or raise?"
    )
    for moves, (role, card) in itertools.product(
        ("cccc", "rcrrc", "crf"), itertools.product((0, 1), "JQK")
    ):
        views = set()
        for deal in {d for d in env.game.deals if d[role] == card and d[2] == "Q"}:
            task = Task("t", info={"deals": [deal]})
            seen = played(LeducEnvironment(style="short"), task, script(*moves))[1]
            views.add(tuple(text for agent, text in seen if agent == env.agents[role]))
        assert len(views) == 1, "it does not depend on the card of the other"


def test_a_board_hides_the_card_of_the_other_and_what_is_not_revealed() -> None:
    env = LeducEnvironment(style="short")
    env.reset(Task("t", info={"deals": ["KJQ"]}))
    mine, all_cards = str(env.render("first")), str(env.render())
    assert "K<" in mine and "J<" not in mine and "Q<" not in mine
    assert "K<" in all_cards and "J<" in all_cards


def test_strategies_are_read_from_answers_and_from_episodes(tokenizer: Any) -> None:
    from mrlm.core.sync_async import run_async
    from scripted_play import play

    env = LeducEnvironment(style="short", level=1)
    shape = uniform(2, 1)
    found = read_policy(env, lambda messages, words: [2.0] + [1.0] * (len(words) - 1))
    assert {key: len(each) for key, each in found.items()} == {k: len(v) for k, v in shape.items()}
    assert all(each[0] > each[-1] for each in found.values())
    source, _ = play(tokenizer, env, lambda request: "c", env.agents, group_size=1)
    episodes = [episode for group in run_async(source.take(40)) for episode in group]
    calls = played_policy(env, episodes)
    assert calls["J", ""] == (1.0, 0.0) and calls["JQ", "cc/c"] == (1.0, 0.0)
    assert calls["J", "r"] == (0.5, 0.5), "it never occurred"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": 5}, "level must be one of 1, 2, 3, 4, not 5"),
        ({"level": True}, "level"),
        ({"ranks": 1}, "ranks must be a whole number of at least 2"),
        ({"ranks": 7}, "ranks must be at most 6"),
        ({"raises": 0}, "raises"),
        ({"num_hands": 0}, "num_hands"),
    ],
)
def test_settings_out_of_range_are_named(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LeducEnvironment(**settings)


def test_a_policy_without_an_information_set_is_refused() -> None:
    for wrong in ({}, uniform() | {("K", ""): [0.5, 0.6]}, uniform() | {("K", ""): [1.0]}):
        with pytest.raises(ValueError, match=r"at \('[JQK]"):
            leduc_exploitability(wrong)
    with pytest.raises(ConfigError, match=r"info\['deals'\]"):
        LeducEnvironment().reset(Task("t", info={"deals": ["KKK"]}))
