"""Noisy debates: how often the verifier is wrong, and that it cannot be asked twice."""

from typing import Any

import pytest

from mrlm.core.environment import check_environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, StepResult
from mrlm.environments.debate import Topic
from mrlm.environments.noisy_debate import NoisyDebateEnvironment, Sums

CLAIMS = [{"claim": "fish swim", "truth": True}, {"claim": "fish fly", "truth": False}]


def rounds(world: NoisyDebateEnvironment, seed: int, *answers: tuple[str, ...]) -> list[StepResult]:
    """The results of rounds, in each of which every agent gives its answer."""
    world.reset(world.task(seed))
    return [
        world.step({a: Message(text) for a, text in zip(world.agents, texts, strict=True)})
        for texts in answers
    ]


def questions(count: int) -> list[Topic]:
    return [Topic(f"{i}+{i}=", answer=str(2 * i)) for i in range(count)]


@pytest.mark.parametrize("wrong", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("right", [True, False])
def test_a_verdict_is_wrong_as_often_as_it_should(wrong: float, right: bool) -> None:
    world = NoisyDebateEnvironment(wrong)
    verdicts = [world.accepts(t, t.solution if right else "999") for t in questions(2000)]
    errors = sum(verdict != right for verdict in verdicts) / 2000
    assert errors == pytest.approx(wrong, abs=4 * (wrong * (1 - wrong) / 2000) ** 0.5)


def test_a_verdict_belongs_to_seed_question_and_answer() -> None:
    one, again, other = (NoisyDebateEnvironment(0.5, seed=seed) for seed in (0, 0, 1))
    topics = questions(100)

    def verdicts(world: NoisyDebateEnvironment, form: str, add: int) -> list[bool]:
        return [world.accepts(t, form.format(int(t.solution) + add)) for t in topics]

    for add in (0, 1):
        found = verdicts(one, "{}", add)
        assert 25 < sum(found) < 75
        for form in (" {}. ", "Answer: {}", "I add.\nanswer: {}\n", "Answer: {0}\nAnswer: {0}"):
            assert verdicts(one, form, add) == found, "another wording is no second try"
        assert verdicts(again, "{}", add) == found != verdicts(other, "{}", add)
    assert verdicts(one, "{}", 0) != verdicts(one, "{}", 1)


def test_a_weakness_for_an_answer_holds_for_all_questions() -> None:
    topics = [Topic(f"{i}+{i}=", answer=str(2 * i)) for i in range(50)]
    by = {}
    for wrong_by in ("question", "answer"):
        world = NoisyDebateEnvironment(0.5, wrong_by=wrong_by)
        by[wrong_by] = {a: {world.accepts(t, a) for t in topics} for a in ("101", "103", "105")}
    assert all(len(verdicts) == 1 for verdicts in by["answer"].values())
    assert all(len(verdicts) == 2 for verdicts in by["question"].values())


@pytest.mark.parametrize(
    "text", ["", "five", "5 6", "Answer: 4\nAnswer: 5", "x" * 50, "9" * 41, "the answer is 4"]
)
def test_what_is_no_answer_is_always_refused(text: str) -> None:
    world = NoisyDebateEnvironment(1.0)
    assert not any(world.accepts(topic, text) for topic in questions(50))
    assert not world.accepts(Topic("fish fly", truth=False), "maybe")
    assert world.accepts(Topic("fish fly", truth=False), "true"), "wrong=1 accepts the wrong one"
    assert not world.accepts(Topic("fish fly", truth=False), "False.")


def test_truth_and_score_are_apart_and_rounds_share_the_reward() -> None:
    world = NoisyDebateEnvironment(1.0, max_turns=2)
    right = world.task(0).answer
    assert right is not None
    first, last = rounds(world, 0, (right, "77"), ("77", "?"))
    assert {a: r.value for a, r in first.rewards.items()} == {"first": 0.0, "second": 0.5}
    assert first.rewards["first"].components == {"score": 0.0, "truth": 0.5, "readable": 0.5}
    assert {a: r.value for a, r in last.rewards.items()} == {"first": 0.5, "second": 0.0}
    assert last.rewards["second"].components["readable"] == 0.0
    assert not first.done and last.done
    shown = {a: [m.content for m in o.messages] for a, o in first.observations.items()}
    assert shown == {"first": ["second answers: 77"], "second": [f"first answers: {right}"]}
    check_environment(world)


def test_the_last_round_the_team_and_the_majority() -> None:
    world = NoisyDebateEnvironment(
        0.0, rewarded="last", share="team", agents=("a", "b", "c"), prompts="short"
    )
    right = world.task(4).answer or ""
    first, last = rounds(world, 4, ("0", "1", "2"), (right, right, "99"))
    assert not first.rewards
    assert [r.value for r in last.rewards.values()] == pytest.approx([2 / 3] * 3)
    assert [r.components["truth"] for r in last.rewards.values()] == [1.0, 1.0, 0.0]
    assert last.rewards["c"].components["majority"] == 1.0
    tie = rounds(world, 4, ("", "", ""), (right, "98", "99"))[-1]
    assert tie.rewards["a"].components["majority"] == 0.0


def test_scripts_answer_too_and_are_not_rewarded() -> None:
    world = NoisyDebateEnvironment(
        0.0, CLAIMS, eval_dataset=CLAIMS, opponents={"second": ["true", "false"]}
    )
    assert world.agents == ("first",)
    for seed, claim in enumerate(CLAIMS):
        right = str(claim["truth"]).lower()
        first, last = rounds(world, seed, (right,), (right,))
        assert first.observations["first"].messages[0].content == "second answers: true"
        assert last.rewards["first"].components["majority"] == float(right == "false")
        assert [*last.rewards] == ["first"] and last.rewards["first"].value == 0.5


def test_sums_are_held_out_in_any_order() -> None:
    sums = Sums(max_number=3)
    asked = {
        split: {tuple(sorted(sums.topic(seed, split).claim)) for seed in range(300)}
        for split in ("train", "eval")
    }
    assert asked["train"] and asked["eval"] and not asked["train"] & asked["eval"]
    topic = Sums(max_number=12, terms=4).topic(5, "train")
    assert str(sum(map(int, topic.claim[:-1].split("+")))) == topic.answer


def test_an_expert_of_any_answer_gives_those_of_other_questions() -> None:
    world = NoisyDebateEnvironment(0.0, CLAIMS, eval_dataset=CLAIMS, teaches="any", prompts="short")
    found = []
    for seed in range(200):
        world.reset(world.task(seed), seed)
        found += [world.expert(agent, []) for agent in world.agents]
    assert set(found) == {"true", "false"} and 140 < found.count("true") < 260


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wrong": 1.5}, "wrong must be at most 1"),
        ({"wrong": -0.1}, "wrong"),
        ({"wrong_by": "mood"}, "wrong_by must be one of question, answer"),
        ({"rewarded": "first"}, "rewarded must be one of every, last"),
        ({"share": "side"}, "share must be one of own, team"),
        ({"topics": "motions"}, "truth is not known"),
        ({"topics": {"kind": "sums", "max_number": 1}}, "leaves no held-out question"),
        ({"topics": {"kind": "sums", "most": 3}}, "topics: sums: .*most"),
        ({"agents": ()}, "agents must be"),
    ],
)
def test_impossible_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NoisyDebateEnvironment(**arguments)


def test_one_agent_alone_answers_without_reading_anybody() -> None:
    world = NoisyDebateEnvironment(0.0, max_turns=1, agents=("alone",))
    check_environment(world)
    begun = world.reset(world.task(3))
    (message,) = begun.observations["alone"].messages
    assert "agents answer" not in message.content and "Answer: <your answer>" in message.content
    result = world.step({"alone": Message(f"Answer: {world._topic.solution}")})
    assert result.done and result.rewards["alone"].value == 1.0
