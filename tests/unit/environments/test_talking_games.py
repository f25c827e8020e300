"""Games that are talked through: negotiation and twenty questions."""

import itertools
from collections import Counter
from typing import Any

import pytest

from game_players import Speaks, expert, played, says, script
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.environments.games.negotiation import (
    NegotiationEnvironment,
    best_division,
    held_out,
    valuations,
)
from mrlm.environments.games.twenty_questions import (
    ATTRIBUTES,
    SHORT,
    TRUE,
    TwentyQuestionsEnvironment,
)

# -- negotiation -----------------------------------------------------------------------------------

HOUSE = {"pool": [2, 1, 3], "values": [[1, 2, 2], [3, 4, 0]]}
"""The largest product, 60, and the largest sum, 16, are where the first has all of the third kind
and nothing else."""


def bargain(*words: str, **arguments: Any) -> tuple[float, float]:
    """What both are paid after these words in turn."""
    world = NegotiationEnvironment(**{"max_turns": 4, **arguments})
    paid, _, _ = played(world, Task("t", info=HOUSE), script(*words))
    return paid["opener"], paid["partner"]


@pytest.mark.parametrize(
    ("wants", "selfish", "cooperative", "fair"),
    [
        ("0 0 3", (0.6, 1.0), 1.0, 1.0),
        ("2 0 1", (0.4, 0.4), 8 / 16, 16 / 60),
        ("2 1 3", (1.0, 0.0), 10 / 16, 0.0),
        ("0 0 0", (0.0, 1.0), 10 / 16, 0.0),
        ("1 0 3", (0.7, 0.7), 14 / 16, 49 / 60),
    ],
)
def test_a_deal_pays_by_private_values(
    wants: str, selfish: tuple[float, float], cooperative: float, fair: float
) -> None:
    deal = (f"propose {wants}", "accept")
    assert bargain(*deal) == pytest.approx(selfish)
    assert bargain(*deal, reward="cooperative") == pytest.approx((cooperative, cooperative))
    assert bargain(*deal, reward="fair") == pytest.approx((fair, fair))
    other = {"2 0 1": "0 1 2", "0 0 3": "2 1 0", "2 1 3": "0 0 0", "0 0 0": "2 1 3"}
    if wants in other:  # the same division, proposed by the other seat
        assert bargain("reject", f"propose {other[wants]}", "accept") == pytest.approx(selfish)
    short = (wants.replace(" ", ""), "a")
    assert bargain(*short, style="short") == pytest.approx(selfish)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "yes",
        "accept",  # nothing is proposed
        "propose",
        "propose 3 0 0",  # more than there are
        "propose 1 0",
        "propose 1 0 0 0",
        "propose -1 0 0",
        "propose 0 0 3 or 1 0 3",
        "propose 0 0 3, accept",
        "I do not accept",
        "003",
        "propose " + "0 0 3 " * 1000,
        "propose " + "9" * 5000,
    ],
)
def test_a_malformed_answer_costs_a_turn_and_a_penalty(said: str) -> None:
    assert bargain(said, said, said, said, illegal=0.3) == pytest.approx((-0.6, -0.6))
    assert bargain(said, "propose 2 1 0", "accept") == pytest.approx((0.6 - 0.2, 1.0))
    if said != "accept":
        after = ("propose 0 0 3", said, "accept", "propose 2 1 0")
        assert bargain(*after) == pytest.approx((-0.2, -0.2)), "the offer is off the table"


def test_to_agree_on_nothing_pays_nothing() -> None:
    for words in (["reject"] * 4, ["propose 0 0 3"] * 4, ["propose 0 0 3", "reject"] * 2):
        assert bargain(*words) == (0, 0)
        assert bargain(*words, reward="cooperative") == bargain(*words, reward="fair") == (0, 0)
    assert bargain("propose 2 1 3", "reject", "accept", "reject") == (-0.2, 0), "a rejected offer"


def test_a_negotiator_never_sees_the_values_of_the_other() -> None:
    words = ("propose 1 0 2", "reject", "x", "propose 2 1 0")
    for style in ("full", "short"):
        lines = words if style == "full" else ("102", "r", "x", "210")
        for role in (0, 1):
            shown = set()
            for other in valuations((2, 1, 3)):
                values = [other, other]
                values[role] = tuple(HOUSE["values"][role])
                world = NegotiationEnvironment(style=style, max_turns=4)
                task = Task("t", info={"pool": HOUSE["pool"], "values": values})
                seen = played(world, task, script(*lines))[1]
                shown.add(tuple(text for agent, text in seen if agent == world.agents[role]))
            assert len(shown) == 1 and len(valuations((2, 1, 3))) > 5


def test_what_negotiators_are_shown() -> None:
    world = NegotiationEnvironment(style="short", max_turns=4)
    _, seen, _ = played(world, Task("t", info=HOUSE), script("102", "r", "x", "210"))
    assert [text for _, text in seen] == ["213 122?", "213 340 102?", "r 213 122?", "- 213 340?"]
    full = NegotiationEnvironment()
    full.reset(Task("t", info=HOUSE))
    text = says(full, "propose 1 0 2").observations["partner"].messages[0].content
    assert text.endswith(
        "Items: 2 books, 3 points each; 1 hats, 4 points each; 3 balls, 0 points each. "
        "The other wants 1 0 2, which leaves you 1 1 1. Your turn."
    )
    assert full.state() == "213 worth 122 and 340, turn 2 of 6, partner, offer 102"


@pytest.mark.parametrize("kinds", [2, 3, 4])
@pytest.mark.parametrize("reward", ["selfish", "cooperative", "fair"])
def test_experts_agree_at_once_on_the_best_division(kinds: int, reward: Any) -> None:
    world = NegotiationEnvironment(reward=reward, kinds=kinds)
    for seed, split in itertools.product(range(15), ("train", "eval")):
        task = world.task(seed, split)
        paid, seen, parts = played(world, task, expert)
        goal = "sum" if reward == "cooperative" else "product"
        assert len(seen) == 2 and parts["opener"][goal] == pytest.approx(1.0)
        assert parts["opener"]["deal"] == 1 and not parts["partner"]["illegal"]
        if reward != "selfish":
            assert list(paid.values()) == pytest.approx([1.0, 1.0])
        assert min(paid.values()) > 0


def test_a_scripted_negotiator_takes_a_crumb_at_the_last_turn_only() -> None:
    world = NegotiationEnvironment(opponent="expert", seat="opener", max_turns=2)
    task = Task("t", info=HOUSE)
    assert played(world, task, script("propose 1 1 3"))[0] == {"player": pytest.approx(0.9)}
    assert played(world, task, script("propose 2 1 3"))[0] == {"player": 0.0}
    longer = NegotiationEnvironment(opponent="expert", seat="opener", max_turns=4)
    _, seen, _ = played(longer, task, script("propose 1 1 3", "accept"))
    assert "The other wants 2 1 0, which leaves you 0 0 3." in seen[1][1]


def test_no_view_of_a_held_out_negotiation_is_trained_on() -> None:
    for kinds in (2, 3):
        world = NegotiationEnvironment(kinds=kinds)
        for split in ("train", "eval"):
            for seed in range(200):
                info = world.task(seed, split).info
                for values in info["values"]:
                    assert held_out(tuple(info["pool"]), tuple(values)) == (split == "eval")
                    assert sum(v * n for v, n in zip(values, info["pool"], strict=True)) == 10


def test_the_best_division_is_the_best_of_all() -> None:
    pool, one, two = (2, 1, 3), (1, 2, 2), (3, 4, 0)
    assert best_division(pool, one, two, "product") == ((0, 0, 3), 60)
    assert best_division(pool, two, one, "product") == ((2, 1, 0), 60)
    assert best_division(pool, one, two, "sum") == ((0, 0, 3), 16)
    for make, said in (
        (lambda: NegotiationEnvironment(kinds=5), "at most 4"),
        (lambda: NegotiationEnvironment(max_turns=1), "max_turns"),
        (lambda: NegotiationEnvironment(reward="greedy"), "selfish, cooperative, fair"),  # type: ignore[arg-type]
        (lambda: NegotiationEnvironment().reset(Task("t")), "pool"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


# -- twenty questions ------------------------------------------------------------------------------


def twenty(thing: str, *words: str, **arguments: Any) -> tuple[dict[str, float], Any]:
    """What is paid, and its components, for words in turn about a thing."""
    world = TwentyQuestionsEnvironment(**{"agents": "me", **arguments})
    paid, _, parts = played(world, Task("t", answer=thing), script(*words))
    return paid, parts


def test_the_table_tells_all_things_apart() -> None:
    assert len(TRUE) >= 60 and len(ATTRIBUTES) >= 25
    assert len(set(TRUE.values())) == len(TRUE)
    assert not set(TRUE) & set(ATTRIBUTES) and set().union(*TRUE.values()) == set(ATTRIBUTES)
    assert all(word.isalpha() and word.islower() for word in [*TRUE, *ATTRIBUTES])


def test_a_right_guess_pays_less_the_later_it_comes() -> None:
    assert twenty("dog", "Is it a dog?")[0] == {"me": 1.0}
    assert twenty("dog", "alive", "legs", "It is a DOG!")[0] == {"me": pytest.approx(0.95)}
    paid, parts = twenty("dog", "alive", "cat", "hm", "dog", max_questions=4, speed=0.8, wrong=0.3)
    assert paid["me"] == pytest.approx(1 - 0.8 * 3 / 4 - 0.3 - 0.1)
    assert parts["me"] == {"asked": 4, "wrong": 1, "illegal": 1, "found": 1}
    assert twenty("dog", "alive", "legs", "alive", max_questions=3)[0] == {"me": 0.0}
    paid, parts = twenty("dog", "cat", "cow", max_questions=2, wrong=0.2)
    assert paid["me"] == pytest.approx(-0.4) and parts["me"]["found"] == 0


@pytest.mark.parametrize(
    "said", ["", "yes", "dog cat", "dog alive", " ".join(TRUE), "is it a farm animal", "x" * 99999]
)
def test_a_message_that_names_nothing_or_several_is_malformed(said: str) -> None:
    paid, parts = twenty("dog", said, said, max_questions=2, illegal=0.25)
    assert paid == {"me": -0.5} and parts["me"] == {"asked": 2, "illegal": 2, "found": 0}


def test_honest_questions_earn_more_than_guessing_or_repeating() -> None:
    for arguments in ({}, {"num_things": 8}, {"num_things": 4}):
        world = TwentyQuestionsEnvironment(**arguments)  # type: ignore[arg-type]
        able = guessed = 0.0
        for seed in range(60):
            task = world.task(seed)
            able += sum(played(world, task, expert)[0].values())
            guesses = iter([*task.info["things"], *["dog"] * 20])
            line: Speaks = lambda w, a, s, guesses=guesses: next(guesses)  # noqa: E731
            guessed += sum(played(world, task, line)[0].values())
            assert sum(played(world, task, lambda *_: "alive")[0].values()) == 0
        assert able / 60 > 0.8 and able > guessed + 3


def test_the_expert_finds_everything_in_ten() -> None:
    world = TwentyQuestionsEnvironment(max_questions=10)
    counts = Counter()
    for thing in TRUE:
        _, _, parts = played(world, Task("t", answer=thing), expert)
        assert parts["player"]["found"] == 1 and not parts["player"]["wrong"]
        counts[parts["player"]["asked"]] += 1
    assert sum(count * n for count, n in counts.items()) / len(TRUE) < 8


def answered(*words: str, **arguments: Any) -> tuple[dict[str, float], list[tuple[str, str]], Any]:
    world = TwentyQuestionsEnvironment(opponent="agent", style="short", **arguments)
    return played(world, Task("t", answer="dog"), script(*words))


def test_an_answerer_is_checked_and_the_asker_is_told_the_truth() -> None:
    dog, alive, bird = SHORT["dog"], SHORT["alive"], SHORT["bird"]
    for answers, cost in ((("y", "n"), 0.0), (("n", "n"), 0.5), (("n", "cat"), 0.6)):
        words = (alive, answers[0], bird, answers[1], dog)
        paid, seen, parts = answered(*words)
        assert paid["asker"] == pytest.approx(0.95)
        assert paid["answerer"] == pytest.approx(0.95 - cost)
        shown = [text for agent, text in seen if agent == "asker"]
        assert shown == ["* 20?", "y 19?", "n 18?"], "whatever the answerer said"
        assert [text for a, text in seen if a == "answerer"] == [f"{dog} a?", f"{dog} d?"]
        paid, _, parts = answered(*words, answerer_reward="truth")
        share = sum(a == b for a, b in zip(answers, "yn", strict=True)) / 2
        assert paid["answerer"] == pytest.approx(share - cost) and parts["answerer"][
            "truth"
        ] == pytest.approx(share)


def test_an_answerer_cannot_give_the_thing_away() -> None:
    for said in ("yes", "no", "dog", "It is a dog. Yes.", "the thing is: dog"):
        world = TwentyQuestionsEnvironment(opponent="agent", max_questions=3)
        words = script("alive", said, "cat", "legs")
        _, seen, _ = played(world, Task("t", answer="dog"), words)
        told = [text for agent, text in seen if agent == "asker"]
        assert told[1:] == [
            "alive: yes.\nYou may say 2 more. What is it?",
            "It is not: cat.\nYou may say 1 more. What is it?",
        ]
        question = seen[1][1]
        assert question.startswith("The thing is: dog. True or not: it is or was a living")


def test_seats_of_twenty_questions() -> None:
    world = TwentyQuestionsEnvironment(opponent="expert", seat="answerer", agents="me")
    task = Task("t", answer="dog")
    paid, seen, _ = played(world, task, expert)
    assert all("The thing is: dog" in text for _, text in seen) and paid["me"] > 0.8
    liar = played(world, task, lambda *_: "no")
    assert liar[0]["me"] < 0 < liar[2]["me"]["lie"] and len(liar[1]) == len(seen)
    wild = TwentyQuestionsEnvironment(opponent="random", seat="answerer", max_questions=5)
    assert played(wild, task, expert)[2]["player"]["lie"] == 0
    assert TwentyQuestionsEnvironment().agents == ("player",)
    world.reset(task)
    assert world.state().startswith("dog, 1 of 20 said, 86 possible, asked: ")


def test_things_and_choices_are_held_out() -> None:
    world = TwentyQuestionsEnvironment()
    found = [{world.task(i, split).answer for i in range(400)} for split in ("train", "eval")]
    assert len(found[0]) > 60 and len(found[1]) >= 5 and not found[0] & found[1]
    few = TwentyQuestionsEnvironment(num_things=4, style="short")
    offers = [{few.task(i, s).prompt[0].content for i in range(200)} for s in ("train", "eval")]
    assert not offers[0] & offers[1] and all(len(text.split()) == 4 for text in offers[0])
    for make, said in (
        (lambda: TwentyQuestionsEnvironment(opponent="random"), "must be true"),
        (lambda: TwentyQuestionsEnvironment(max_questions=1), "max_questions"),
        (lambda: TwentyQuestionsEnvironment(num_things=999), "at most 86"),
        (lambda: TwentyQuestionsEnvironment(speed=1.0), "speed"),
        (lambda: TwentyQuestionsEnvironment(answerer_reward="own"), "team, truth"),  # type: ignore[arg-type]
        (lambda: world.reset(Task("t", answer="unicorn")), "of the table"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()
