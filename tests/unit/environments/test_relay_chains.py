"""Chains of `relay`: what each agent sees, and what counts."""

from collections.abc import Sequence
from typing import Any

import pytest

from mrlm.core.environment import check_environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, StepResult, Task
from mrlm.environments.relay import RelayEnvironment

NUMBERS = {"a": 3, "b": 1, "c": 2, "d": 9}


def chain(terms: Sequence[int], *texts: str, **settings: Any) -> tuple[list[str], StepResult]:
    """What is asked of each agent, and the end, after these messages."""
    world = RelayEnvironment(terms=terms, **settings)
    names = list(NUMBERS)[: sum(terms)]
    result = world.reset(Task("t", info={name: NUMBERS[name] for name in names}))
    asked = []
    for text in texts:
        ((agent, seen),) = result.observations.items()
        asked.append(seen.messages[0].content)
        result = world.step({agent: Message(text)})
    return asked, result


def test_an_actor_sees_the_reasoner_s_message_only() -> None:
    asked, end = chain([4, 0], "15", "15", agents=("reasoner", "actor"))
    assert asked == ["3+1+2+9=", "15="]
    assert {a: r.value for a, r in end.rewards.items()} == {"reasoner": 1.0, "actor": 1.0}
    cut, end = chain([4, 0], "3 + 1 + 2 + 9", "15", max_message=5)
    assert cut[1] == "3 + 1="
    assert end.rewards["first"].components == {"correct": 1.0, "partial": 0.0}


def test_longer_chains_and_the_sums_on_the_way() -> None:
    asked, end = chain([2, 1, 1], "4", "7", "15")
    assert asked == ["3+1=", "4+2=", "7+9="] and [*end.rewards] == ["agent_1", "agent_2", "agent_3"]
    assert end.rewards["agent_1"].components == {"correct": 1.0, "partial": 0.5}
    assert chain([1, 0, 0], "3", "", "3")[0] == ["3=", "3=", "="]
    assert chain([1, 0, 0], "3", "", "3")[1].rewards["agent_3"].components["partial"] == 0.5


@pytest.mark.parametrize("terms", [(4, 0), (2, 1, 1), (1, 1), (3, 0, 0)])
def test_experts_are_right_and_tasks_are_held_out(terms: tuple[int, ...]) -> None:
    world = RelayEnvironment(terms=terms, style="full", max_number=5)
    check_environment(world)
    sums: dict[str, set[str]] = {}
    for split in ("train", "eval"):
        for seed in range(60):
            task = world.task(seed, split)
            sums.setdefault(split, set()).add(str(sorted(task.info.items())))
            result = world.reset(task)
            while not result.done:
                ((agent, _),) = result.observations.items()
                result = world.step({agent: Message(world.expert(agent, []) or "")})
            assert set(result.rewards[agent].components.values()) == {1.0}
            assert task.answer == str(sum(task.info.values()))
    assert not sums["train"] & sums["eval"]


def test_the_full_style_names_what_is_seen() -> None:
    asked, _ = chain([2, 1, 0], "4", "6", "6", style="full", max_message=7)
    assert "Your numbers, which only you see: 3, 1" in asked[0] and "7 characters" in asked[0]
    assert "The message of agent_1: 4" in asked[1] and "see: 2" in asked[1]
    assert "only you see" not in asked[2] and "total of all numbers" in asked[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"terms": (3,)}, "at least two whole numbers"),
        ({"terms": (0, 3)}, "the first above 0"),
        ({"terms": (2, -1)}, "terms"),
        ({"terms": (20, 7)}, "at most 26 in all"),
        ({"terms": (1.5, 1)}, "terms"),
        ({"terms": (2, 0), "max_number": 1}, "leaves no held-out task"),
        ({"terms": (2, 1, 1), "agents": ("a", "b")}, "this environment has 3"),
        ({"max_message": 0}, "max_message"),
    ],
)
def test_impossible_chains_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RelayEnvironment(**arguments)


def test_a_task_with_too_few_numbers_is_named() -> None:
    with pytest.raises(ConfigError, match="has no numbers a, b, c and d in its info"):
        RelayEnvironment(terms=(4, 0)).reset(Task("t", info={"a": 1}))


def test_a_pretrained_model_is_asked_in_words_and_read_by_its_last_number() -> None:
    words = {"style": "question", "partial_weight": 0.5}
    prompts, end = chain([2, 1], "3 + 1 = 4", "The answer is 6.", **words)
    assert prompts == [
        "What is 3 + 1? Answer with the number only.",
        "What is 3 + 1 = 4 + 2? Answer with the number only.",
    ]
    assert {r.value for r in end.rewards.values()} == {1.0}
    assert chain([2, 1], "4", "7", **words)[1].rewards["first"].value == 0.5
    assert chain([2, 1], "4, or 5", "6", **words)[1].rewards["second"].value == 0.5
    assert chain([2, 1], "four", "six", **words)[1].rewards["second"].value == 0.0
    check_environment(RelayEnvironment(style="question", partial_weight=0.5))
    with pytest.raises(ConfigError, match="partial_weight must be at most 1, not 2"):
        RelayEnvironment(partial_weight=2)
