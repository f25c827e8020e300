"""Signalling: rewards of every code by enumeration, and who is shown what."""

import itertools
from typing import Any

import pytest

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.games.signalling import SignallingEnvironment


def rewards(world: SignallingEnvironment, state: str, *texts: str) -> dict[str, float]:
    """What the agents get for their messages in turn; fewer of them if the episode ends before."""
    result = world.reset(Task("t", info={"state": state}))
    for text in texts:
        (agent,) = result.observations
        result = world.step({agent: Message(text)})
    assert result.done
    return {agent: reward.value for agent, reward in result.rewards.items()}


def total(world: SignallingEnvironment, sends: tuple[str, ...], acts: dict[str, str]) -> float:
    """Sum of all rewards of a pair of codes, over all states."""
    return sum(
        sum(rewards(world, state, signal, acts[signal]).values())
        for state, signal in zip(world.states, sends, strict=True)
    )


def expert_total(world: SignallingEnvironment) -> float:
    found = 0.0
    for state in world.states:
        result = world.reset(Task("t", info={"state": state}))
        while not result.done:
            ((agent, seen),) = result.observations.items()
            text = world.expert(agent, list(seen.messages)) or ""
            result = world.step({agent: Message(text)})
        found += sum(reward.value for reward in result.rewards.values())
    return found


@pytest.mark.parametrize(
    ("states", "signals", "cost", "alignment"),
    [
        (2, 2, 0.0, 1.0), (3, 3, 0.0, 1.0), (3, 2, 0.0, 1.0), (3, 2, 0.9, 1.0), (2, 2, 0.3, 0.3),
        (3, 3, 0.2, 0.2), (3, 3, 0.6, 0.7), (2, 3, 0.0, 0.1), (3, 1, 0.0, 1.0),
    ],
)  # fmt: skip
def test_no_pair_of_codes_gets_more_than_the_expert(
    states: int, signals: int, cost: float, alignment: float
) -> None:
    world = SignallingEnvironment(states, signals, cost, alignment)
    best = max(
        total(world, sends, dict(zip(world.signals, acts, strict=True)))
        for sends in itertools.product(world.signals, repeat=states)
        for acts in itertools.product(world.states, repeat=signals)
    )
    assert expert_total(world) == pytest.approx(best)


@pytest.mark.parametrize(("states", "signals"), [(4, None), (5, 2), (3, 3), (6, 1)])
def test_a_receiver_without_signals_is_right_once_in_n(states: int, signals: int | None) -> None:
    world = SignallingEnvironment(states, signals)
    for act in world.states:
        alone = [rewards(world, state, world.signals[0], act) for state in world.states]
        assert sum(found["receiver"] for found in alone) == 1.0
    assert expert_total(world) == 2 * min(states, signals or states)


def test_the_receiver_is_shown_the_signal_only_and_relays_pass_it_on() -> None:
    world = SignallingEnvironment(states=4, relays=2, signals=("zap", "dod", "mib", "lef"))
    seen: dict[str, set[str]] = {}
    for state in world.states:
        result = world.reset(Task("t", info={"state": state}))
        while not result.done:
            ((agent, shown),) = result.observations.items()
            texts = {message.content for message in shown.messages}
            seen[agent] = seen.get(agent, set()) | texts
            result = world.step({agent: Message("Dod!" if agent != "receiver" else state)})
    assert [*seen] == ["sender", "relay_1", "relay_2", "receiver"]
    assert [len(texts) for texts in seen.values()] == [4, 1, 1, 1], "one signal, one prompt"


def test_interests_that_differ_in_part() -> None:
    world = SignallingEnvironment(states=3, alignment=0.75)
    assert rewards(world, "1", "A", "1") == {"sender": 0.75, "receiver": 1.0}
    assert rewards(world, "1", "A", "2") == {"sender": 0.25, "receiver": 0.0}
    assert rewards(world, "3", "A", "1") == {"sender": 0.25, "receiver": 0.0}
    assert rewards(world, "1", "A", "3") == {"sender": 0.0, "receiver": 0.0}


def test_signals_cost_and_illegal_ones_end_it() -> None:
    world = SignallingEnvironment(states=3, cost=0.25)
    assert rewards(world, "2", "B", "2") == {"sender": 0.75, "receiver": 0.75}
    assert rewards(world, "2", "A", "2") == {"sender": 1.0, "receiver": 1.0}
    assert rewards(world, "2", "A or B") == {"sender": -0.5, "receiver": -0.5}
    assert rewards(world, "2", "B", "2 or 3") == {"sender": -0.75, "receiver": -0.75}
    world.reset(Task("t", info={"state": "2"}))
    ended = world.step({"sender": Message("")})
    assert ended.rewards["sender"].components == {"correct": 0.0, "cost": 0.0, "legal": 0.0}
    assert ended.rewards["receiver"].components["legal"] == 1.0


def test_an_expert_of_any_answer_names_all_alike() -> None:
    world = SignallingEnvironment(states=3, teaches="any")
    found: list[Any] = []
    for seed in range(600):
        world.reset(world.task(seed))
        found.append(world.expert("sender", []))
        assert world.expert("receiver", []) is None, "not its turn"
    assert all(150 < found.count(signal) < 250 for signal in "ABC")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"states": 1}, "states"), ({"signals": 0}, "signals"),
        ({"signals": 27}, "there are 26 letters"), ({"signals": ("up", "Up")}, "different words"),
        ({"signals": "abc"}, "different words"),
        ({"alignment": 0.0}, "alignment=0.0 must be above 0"), ({"alignment": 1.5}, "at most 1"),
        ({"alignment": 0.5, "cost": 0.6}, "cost=0.6 at most alignment"),
        ({"alignment": 0.5, "signals": 2}, "a signal for each of the 4 states"),
        ({"relays": -1}, "relays"), ({"agents": ("a", "b", "c")}, "this environment has 2"),
        ({"illegal": 0}, "illegal"), ({"teaches": "all"}, "teaches must be one of best, any"),
    ],
)  # fmt: skip
def test_impossible_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SignallingEnvironment(**arguments)


def test_a_task_of_another_environment_is_named() -> None:
    with pytest.raises(ConfigError, match="has the state '9'; it must be one of 1, 2, 3, 4"):
        SignallingEnvironment().reset(Task("t", info={"state": "9"}))
