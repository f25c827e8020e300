"""Hanabi: rules on decks that are known, what players may see, and what the convention reaches."""

import copy
import random
from typing import Any

import pytest

from game_players import expert, played, says, script
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.games.hanabi import HanabiEnvironment
from mrlm.environments.games.hanabi.rules import Move, Table, full_deck

RED = ["r1", "r2", "r1", "r3", "r1", "r2"]
"""A deck of level 1: the hands r1 r2 and r1 r3, then r1 and r2."""


def game(deck: list[str], *words: str, **settings: Any) -> tuple[Any, dict[str, float]]:
    """What the players are paid, and the components of the first one."""
    env = HanabiEnvironment(**{"level": 1, "style": "short", **settings})
    paid, _, parts = played(env, Task("t", info={"cards": deck}), script(*words))
    assert len(set(paid.values())) == 1, "the reward is common"
    assert len({str(part) for part in parts.values()}) == 1
    return paid["first"], dict(parts["first"])


def test_decks_have_the_cards_they_should() -> None:
    assert full_deck(1, 3) == sorted(RED)
    assert len(full_deck(5, 5)) == 50 and full_deck(5, 5).count("w5") == 1
    assert [len(full_deck(n, 3)) for n in (1, 2, 3)] == [6, 12, 18]


def test_a_perfect_game_rewards_all_with_one() -> None:
    reward, parts = game(RED, "p1", "hr", "p1", "p2")
    assert reward == pytest.approx(1.0)
    assert parts == {"score": 3, "perfect": 1, "misplay": 0, "crash": 0}


def test_a_lost_life_and_a_crash() -> None:
    deck = ["r3", "r1", "r2", "r1", "r1", "r2"]
    words = ("p2", "p2", "p1")  # r1, then r1 again, then r3
    assert game(deck, *words) == (0.0, {"score": 0, "misplay": 2, "perfect": 0, "crash": 1})
    kept, parts = game(deck, *words, crash="keep")
    assert kept == pytest.approx(1 / 3) and parts["score"] == 1 and parts["crash"] == 1
    alive, parts = game(deck, "p2", "p2", "hr", "d1", lives=3, tokens=1)
    assert alive == pytest.approx(1 / 3) and parts["misplay"] == 1 and not parts["crash"]


def test_the_last_card_is_followed_by_one_turn_of_each() -> None:
    env = HanabiEnvironment(level=1, style="short")
    env.reset(Task("t", info={"cards": RED}))
    for word, turns in (("p1", None), ("p1", 2), ("h2", 1)):
        assert not says(env, word).done
        assert env._game.turns_left == turns
    assert says(env, "hr").done and env._game.score == 1 and env._game.lives == 1


def test_hints_and_discards_move_tokens() -> None:
    table = HanabiEnvironment(level=2)._dealt(["r1", "r2", "g1", "g1", "r3", "g3"])
    assert [held.card for held in table.hands[1]] == ["g1", "g1"]
    assert table.problem(0, Move("discard")) and not table.problem(0, Move("play"))
    assert table.problem(0, Move("hint", target=1, value="r")) == (
        "A hint must name at least one card."
    )
    table.apply(0, Move("hint", target=1, value="g"))
    assert table.tokens == 2 and [held.known for held in table.hands[1]] == ["g.", "g."]
    assert [held.pointed for held in table.hands[1]] == [True, False]
    table.apply(1, Move("discard", slot=1))
    assert table.tokens == 3 and table.discarded == ["g1"]
    assert [held.known for held in table.hands[1]] == ["g.", ".."], "the new card comes last"
    table.tokens = 0
    assert table.problem(1, Move("hint", target=1, value="g")) == "No hint is left."
    assert not any(move.kind == "hint" for move in table.legal(1))


def test_negative_information_is_kept_and_completed_stacks_restore_a_hint() -> None:
    env = HanabiEnvironment(level=1)
    env.reset(Task("t", info={"cards": RED}))
    says(env, "hint 1")
    held = env._game.hands[1]
    assert [each.ranks for each in held] == ["1", "23"]
    assert "1: red 1; 2: red 2 or 3" in env.question(1)
    env = HanabiEnvironment(level=2, style="short", tokens=1)
    deck = ["r1", "r2", "r3", "g1"]
    rest = full_deck(2, 3)
    for card in deck:
        rest.remove(card)
    env.reset(Task("t", info={"cards": ["r1", "r2", "r3", "g1", *rest]}))
    for word in ("p1", "p2", "p1"):
        says(env, word)
    assert env._game.tokens == 1
    env._game.tokens = 0
    says(env, "p1")
    assert env._game.stacks == {"r": 3, "g": 1} and env._game.tokens == 1


@pytest.mark.parametrize(
    "words", ["", "p3", "p", "d1", "hg", "p1 p2", "play", "x", "hint", "p1" * 5_000]
)
def test_an_illegal_answer_costs_all_and_ends_the_game_or_is_forgiven(words: str) -> None:
    reward, parts = game(RED, "p1", words)
    assert (
        reward == pytest.approx(-0.5)
        and parts["illegal"] == 1
        and parts["crash"] == 1
        and not parts["score"]
    )
    kept = game(RED, "p1", words, crash="keep", illegal=0.25)[0]
    assert kept == pytest.approx(1 / 3 - 0.25)
    forgiven, parts = game(RED, words, "p1", "hr", "p1", "p2", forgiven=1)
    assert forgiven == pytest.approx(0.5) and parts["perfect"] == 1


def test_moves_are_read_strictly() -> None:
    env = HanabiEnvironment(level=2, players=3)
    env.reset(env.task(0))
    hands = env._game.hands
    colour = {"r": "red", "g": "green"}[hands[2][0].card[0]]
    for text, move in (
        ("Play 1.", Move("play")),
        ("I will play 2", Move("play", 1)),
        (f"  HINT  third {colour}!", Move("hint", target=2, value=colour[0])),
        ("hint second 3", Move("hint", target=1, value="3")),
        ("play 1 or play 2", None),
        ("play 12", None),
        ("hint red", None),
        ("hint first red", None),
        ("display 1", None),
    ):
        assert env._move(0, text) == move, text


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("players", [2, 3])
def test_no_player_sees_its_own_cards(style: Any, players: int) -> None:
    """Prompts and boards of a player do not depend on its own cards, only on hints."""
    env = HanabiEnvironment(style=style, players=players)
    shown = []
    for mine in ("r1 r2", "g3 r3"):
        deck = mine.split()
        rest = full_deck(2, 3)
        for card in ["r1", "r2", "g3", "r3"]:
            rest.remove(card)
        others = [card for card in ["r1", "r2", "g3", "r3"] if card not in deck]
        env.reset(Task("t", info={"cards": [*deck, *rest, *others]}))
        board, text, all_cards = env.render("first"), env.question(0), env.render()
        shown.append((board, text))
        assert all_cards != board
    assert shown[0] == shown[1]
    assert env.state().split()[-1] == "first"


def best_possible(table: Table, role: int, seen: dict[str, int]) -> int:
    """The highest score of players who see everything; to them all hints are alike."""
    cards = [[held.card for held in hand] for hand in table.hands]
    counts = (table.tokens, table.lives, table.turns_left, table.score, len(table.deck))
    key = repr((cards, counts, role))
    if key not in seen:
        scores = [table.score if table.lives else 0]
        moves = [] if table.over else table.legal(role)
        hints = [move for move in moves if move.kind == "hint"]
        for move in [*(m for m in moves if m.kind != "hint"), *hints[:1]]:
            after = table.copy()
            after.apply(role, move)
            scores.append(best_possible(after, (role + 1) % table.players, seen))
        seen[key] = max(scores)
    return seen[key]


def test_the_convention_comes_near_what_players_who_see_everything_reach() -> None:
    """Level 1, where that can be computed: never more, and mostly as much."""
    env, reached, bounds = HanabiEnvironment(level=1, style="short"), [], []
    for seed in range(12):
        task = env.task(seed, "eval" if seed % 2 else "train")
        _, _, parts = played(env, task, expert)
        reached.append(parts["first"]["score"])
        bounds.append(best_possible(env._dealt(task.info["cards"]), 0, {}))
        assert reached[-1] <= bounds[-1] <= 3 and not parts["first"]["crash"]
    assert sum(reached) >= 0.8 * sum(bounds)


def test_the_convention_uses_only_what_its_player_sees() -> None:
    """Its move is the same whatever its own cards are, as long as hints allow them."""
    rng, compared = random.Random(0), 0
    for seed in range(30):
        env = HanabiEnvironment(style="short")
        env.reset(env.task(seed))
        while env.mover is not None:
            role, word = env.mover, env.best(env.mover)
            twin = copy.deepcopy(env)
            hidden = [held.card for held in twin._game.hands[role]] + twin._game.deck
            rng.shuffle(hidden)
            hand = twin._game.hands[role]
            if all(
                card[0] in held.colours and card[1] in held.ranks
                for card, held in zip(hidden, hand, strict=False)
            ):
                for card, held in zip(hidden, hand, strict=False):
                    held.card = card
                twin._game.deck = hidden[len(hand) :]
                assert twin.best(role) == word
                compared += 1
            says(env, word)
    assert compared > 50


def test_games_end_within_their_turns_however_they_are_played() -> None:
    rng = random.Random(0)

    def careless(world: Any, agent: str, shown: str) -> str:
        return "?" if rng.random() < 0.1 else expert(world, agent, shown)

    for players in (2, 3):
        env = HanabiEnvironment(players=players, lives=5, forgiven=1, teaches="any", style="short")
        for seed in range(30):
            _, seen, _ = played(env, env.task(seed), careless)
            assert len(seen) <= (env.max_turns or 0)
        hints = HanabiEnvironment(players=players, style="short")
        hints.reset(hints.task(0))
        turns = 0
        while hints.mover is not None:  # as slowly as possible
            legal = hints._game.legal(hints.mover)
            hint = next((m for m in legal if m.kind == "hint"), Move("discard"))
            says(hints, hints.word(hints.mover, hint))
            turns += 1
        assert turns <= (hints.max_turns or 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": 5}, "level must be one of 1, 2, 3, 4"),
        ({"players": 4}, "players must be at most 3"),
        ({"players": 3, "level": 1}, "a pile of 6 cards leaves none"), ({"colours": 6}, "colours"),
        ({"ranks": 1}, "ranks"), ({"hand": 0}, "hand"), ({"tokens": 9}, "tokens"),
        ({"lives": 0}, "lives"), ({"crash": "half"}, "crash"), ({"illegal": 0}, "illegal"),
        ({"forgiven": -1}, "forgiven"), ({"agents": ["one"]}, "has 2, but"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HanabiEnvironment(**settings)
    with pytest.raises(ConfigError, match=r"info\['cards'\]"):
        HanabiEnvironment().reset(Task("t", [Message("?")], info={"cards": RED}))
