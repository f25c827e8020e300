"""Kuhn poker's known numbers, against the world itself and against trying everything."""

import itertools
import math
import random
from typing import Any

import pytest
from benchmarks.learning.answers import answer_logprobs

from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, SamplingParams, Task
from mrlm.engines.hf import HFEngine
from mrlm.environments.poker import zero_sum
from mrlm.environments.poker.hands import conversations, played_policy, read_policy
from mrlm.environments.poker.kuhn_poker import (
    DEALS,
    KUHN,
    SEEN,
    VALUE,
    KuhnPokerEnvironment,
    Strategy,
    equilibrium,
    exploitability,
    policy_of,
)
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request
from scripted_play import play


def expected(first: Strategy, second: Strategy) -> float:
    return zero_sum.expected(KUHN, policy_of(first), policy_of(second))


def best_response(strategy: Strategy, role: int) -> float:
    return zero_sum.best_response(KUHN, policy_of(strategy), role)


def always(chance: float) -> dict[tuple[str, str], float]:
    return dict.fromkeys(SEEN, chance)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1 / 3])
def test_every_equilibrium_is_unbeatable_and_worth_minus_one_eighteenth(alpha: float) -> None:
    best = equilibrium(alpha)
    assert exploitability(best) == pytest.approx(0.0, abs=1e-12)
    assert expected(best, best) == pytest.approx(VALUE) == pytest.approx(-1 / 18)
    assert best_response(best, 0) == pytest.approx(-1 / 18)
    assert best_response(best, 1) == pytest.approx(1 / 18)


def test_known_players_lose_what_can_be_worked_out_by_hand() -> None:
    """Who always folds loses 1 to any bet. Who always bets and calls loses 2 to K, wins 1 from a J
    that folds, and is even with Q: (2 - 1 + 0) / 3."""
    assert exploitability(always(0.0)) == pytest.approx(1.0)
    assert exploitability(always(1.0)) == pytest.approx(1 / 3)
    honest = {(card, said): float(card == "K") for card, said in SEEN}
    # J bets: +1 from Q, -2 to K; Q checks: +1 from J, -1 to a bet of K; K wins 1 in any way
    assert best_response(honest, 0) == pytest.approx((-0.5 + 0.0 + 1.0) / 3)
    beyond = equilibrium(1 / 3) | {("J", ""): 0.5}
    assert exploitability(beyond) > 0.01, "too many bluffs"


def test_the_best_answer_is_the_best_of_all_there_are() -> None:
    rng = random.Random(0)
    moves_of = {0: ("", "pb"), 1: ("p", "b")}
    places = {role: [seen for seen in SEEN if seen[1] in said] for role, said in moves_of.items()}
    for _ in range(3):
        strategy = {seen: rng.random() for seen in SEEN}
        for role in (0, 1):
            tried = []
            for moves in itertools.product((0.0, 1.0), repeat=6):
                own = strategy | dict(zip(places[role], moves, strict=True))
                value = expected(own, strategy) if role == 0 else -expected(strategy, own)
                tried.append(value)
            assert best_response(strategy, role) == pytest.approx(max(tried))


def test_what_is_expected_is_what_the_world_pays() -> None:
    """All pure strategies of a few random pairs, on every deal."""
    world = KuhnPokerEnvironment(style="short")
    rng = random.Random(1)
    for _ in range(20):
        first, second = ({seen: float(rng.random() < 0.5) for seen in SEEN} for _ in range(2))
        won = [paid(world, deal, (first, second)) for deal in DEALS]
        assert expected(first, second) == pytest.approx(sum(won) / len(DEALS))


def paid(world: KuhnPokerEnvironment, deal: str, sides: tuple[Strategy, Strategy]) -> float:
    """What the first player is paid."""
    game = world.spawn()
    game.reset(Task("t", info={"deals": [deal]}))
    while True:
        assert game.mover is not None
        word = game.words()[int(sides[game.mover][game.seen])]
        result = game.step({game.agents[game.mover]: Message(word)})
        if result.done:
            return result.rewards["first"].value


@pytest.mark.parametrize("wrong", [{}, always(1.1), always(math.nan), {("J", ""): 0.5}])
def test_what_is_no_strategy_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        exploitability(wrong)


# -- the strategy of a model -----------------------------------------------------------------------


@pytest.mark.parametrize("style", ["short", "full"])
def test_a_strategy_is_read_where_it_is_asked(style: Any) -> None:
    world = KuhnPokerEnvironment(style=style)
    table = conversations(world)
    texts = [tuple(message.content for message in table[seen]) for seen in SEEN]
    assert len(set(texts)) == 12
    wanted = {seen: (number + 1) / 20 for number, seen in enumerate(SEEN)}
    by_text = dict(zip(texts, wanted.values(), strict=True))
    asked: list[tuple[str, str]] = []

    def scores(messages: list[Message], words: tuple[str, str]) -> list[float]:
        asked.append(words)
        chance = by_text[tuple(message.content for message in messages)]
        return [0.5 * (1 - chance), 0.5 * chance]  # half of what it says is neither word

    bets = {seen: bet for seen, (_, bet) in read_policy(world, scores).items()}
    assert bets == pytest.approx(wanted)
    words = {"short": {("p", "b")}, "full": {("check", "bet"), ("fold", "call")}}
    assert set(asked) == words[style]


def test_a_policy_is_read_by_its_log_probs_as_it_plays(model: Any, tokenizer: Any) -> None:
    """The engine's log-probs of an answer are those that are computed for it."""
    policy = Policy("policy", model, tokenizer)
    engine, messages = HFEngine({"policy": policy}), [Message("K?")]
    sampling = SamplingParams(max_new_tokens=1, temperature=0.7)
    prompt = policy.chat.prompt(messages).ids
    requests = [Request("policy", prompt, sampling, seed) for seed in range(20)]
    said = {each.text: each for each in run_async(engine.generate(requests))}
    known = {
        t: c.logprobs[0] for t, c in said.items() if t.isascii() and len(t) == 1 and c.logprobs
    }
    assert len(known) >= 3
    begun = answer_logprobs(policy, messages, list(known), 0.7, ended=False)
    assert begun == pytest.approx(list(known.values()), abs=1e-4)
    whole = answer_logprobs(policy, messages, list(known), 0.7)
    assert all(ended < open_ended for ended, open_ended in zip(whole, begun, strict=True))


def test_played_hands_tell_the_strategy(tokenizer: Any) -> None:
    from mrlm.core.sync_async import run_async

    world = KuhnPokerEnvironment(style="short")
    strategy = {seen: float(seen[0] != "Q") for seen in SEEN}
    by_text = {
        messages[-1].content: strategy[seen] for seen, messages in conversations(world).items()
    }

    def answer(request: Any) -> str:
        text = tokenizer.decode(request.prompt_ids)
        shown = max((each for each in by_text if each in text), key=text.rindex)
        return "pb"[int(by_text[shown])]

    source, _ = play(tokenizer, world, answer, world.agents, group_size=1)
    episodes = [episode for group in run_async(source.take(60)) for episode in group]
    bets = {seen: bet for seen, (_, bet) in played_policy(world, episodes).items()}
    played = [seen for seen in SEEN if bets[seen] != 0.5]
    assert len(played) >= 8 and all(bets[seen] == strategy[seen] for seen in played)
    assert played_policy(world, episodes, policy="nobody") == policy_of(always(0.5))
