"""Contextual matrix games: tables by enumeration, and what agents are shown of them."""

import itertools
from typing import Any

import pytest

from mrlm.core.environment import check_environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Reward, Task
from mrlm.environments.games.contextual_matrix import PARTS, ContextualMatrixEnvironment


def played(world: ContextualMatrixEnvironment, context: Any, *texts: str) -> dict[str, Reward]:
    """The rewards of one joint answer in a context."""
    world.reset(Task("t", info={"context": context}))
    actions = {agent: Message(text) for agent, text in zip(world.agents, texts, strict=True)}
    return world.step(actions).rewards


def by_joint(world: ContextualMatrixEnvironment, context: Any) -> dict[str, dict[str, Reward]]:
    joints = map("".join, itertools.product(world.words, repeat=len(world.agents)))
    return {joint: played(world, context, *joint) for joint in joints}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("agents", "actions"), [(("row", "column"), 3), (("a", "b", "c"), 2)])
def test_the_best_joint_action_has_the_stake_and_others_a_share(
    seed: int, agents: tuple[str, ...], actions: int
) -> None:
    world = ContextualMatrixEnvironment(4, actions, agents, seed=seed)
    stakes = []
    for context in range(1, 5):
        found = by_joint(world, context)
        values = {joint: rewards[agents[0]].value for joint, rewards in found.items()}
        assert all(
            {r.value for r in rewards.values()} == {values[j]} for j, rewards in found.items()
        )
        stakes.append(max(values.values()))
        best = [joint for joint, value in values.items() if value == stakes[-1]]
        assert len(best) == 1
        assert set(values.values()) <= {stakes[-1] * part for part in (*PARTS, 1.0)}
        world.reset(Task("t", info={"context": context}))
        assert "".join(world.expert(agent, []) or "" for agent in agents) == best[0]
        for joint, rewards in found.items():
            parts = rewards[agents[-1]].components
            assert parts["regret"] == pytest.approx(stakes[-1] - values[joint])
            assert parts["optimal"] == float(joint == best[0])
    assert sorted(stakes) == [0.25, 0.5, 0.75, 1.0], "each context has a stake of its own"


def test_own_rewards_differ_and_the_expert_maximises_their_mean() -> None:
    world = ContextualMatrixEnvironment(3, 3, reward="own", seed=2)
    differs = False
    for context in range(1, 4):
        found = by_joint(world, context)
        means = {j: sum(r.value for r in rewards.values()) / 2 for j, rewards in found.items()}
        differs |= any(len({r.value for r in rewards.values()}) > 1 for rewards in found.values())
        world.reset(Task("t", info={"context": context}))
        expert = "".join(world.expert(agent, []) or "" for agent in world.agents)
        assert means[expert] == max(means.values()) > 0
        for joint, rewards in found.items():
            regret = rewards["row"].components["regret"]
            assert regret == pytest.approx(means[expert] - means[joint])
    assert differs


def test_noise_belongs_to_the_task_and_leaves_the_regret() -> None:
    world, plain = (ContextualMatrixEnvironment(noise=noise) for noise in (0.125, 0.0))
    task = world.task(3)
    sums = 0.0
    for seed in range(200):
        task = Task(f"t{seed}", info={"context": 1})
        values = []
        for env in (world, world, plain):
            env.reset(task)
            values.append(env.step({agent: Message("A") for agent in env.agents}).rewards["row"])
        assert values[0].value == values[1].value != values[2].value
        assert values[0].components == values[2].components
        assert abs(values[0].value - values[2].value) <= 0.125
        sums += values[0].value - values[2].value
    assert abs(sums / 200) < 0.02, "its mean is 0"


def test_rounds_share_the_reward_and_an_illegal_answer_costs_all() -> None:
    world = ContextualMatrixEnvironment(rounds=2, style="short")
    result = world.reset(Task("t", info={"context": 3}))
    assert result.observations["row"].messages[0].content == "row 3: A B C?"
    result = world.step({"row": Message("A or B"), "column": Message("C")})
    first = result.rewards
    assert [reward.value for reward in first.values()] == [-0.125, -0.125]
    assert [reward.components["legal"] for reward in first.values()] == [0.0, 0.5]
    assert first["row"].components["optimal"] == 0.0
    assert result.observations["row"].messages[0].content == "? C. row 3: A B C?"
    best = {agent: Message(world.expert(agent, []) or "") for agent in world.agents}
    last = world.step(best)
    assert last.done and last.rewards["row"].value == max(world.payoffs.values()) / 2


def test_tables_of_their_own_are_shown_and_held_out() -> None:
    world = ContextualMatrixEnvironment(None, 2, show="table", style="short")
    check_environment(world)
    shown = {
        split: {world.task(seed, split).prompt[0].content for seed in range(400)}
        for split in ("train", "eval")
    }
    assert len(shown["train"]) > 200 and not shown["train"] & shown["eval"]
    task = world.task(1)
    table = task.prompt[0].content.removeprefix("row ").partition(":")[0]
    listed = dict(cell.split() for cell in table.split(", "))
    found = by_joint(world, task.info["context"])
    assert {j: f"{rewards['row'].value:.4g}" for j, rewards in found.items()} == listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contexts": 0}, "contexts"),
        ({"contexts": None}, "set show=table"),
        ({"num_actions": 1}, "num_actions"),
        ({"num_actions": 27, "agents": ("a",)}, "at most 26 actions"),
        ({"num_actions": 17}, "256 joint actions .2 agents have 289"),
        ({"num_actions": 6, "show": "table"}, "32 joint actions"),
        ({"noise": float("inf")}, "a finite noise"),
        ({"noise": -1}, "noise"),
        ({"illegal": 0}, "illegal"),
        ({"reward": "all"}, "reward must be one of common, own"),
    ],
)
def test_impossible_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ContextualMatrixEnvironment(**arguments)


def test_a_context_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="task 't' has the context 5"):
        ContextualMatrixEnvironment().reset(Task("t", info={"context": 5}))
