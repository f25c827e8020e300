"""A team with a reward function of the user's over several turns: how `external_transition` is
called, what it changes, and that none of its settings is ignored."""

import asyncio
import functools
import sys
import types
from typing import Any

import pytest

import mrlm
from fake_trackers import fake as fake
from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects
from mrlm.config import ExperimentConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role, StepResult
from mrlm.environments.reward import RewardEnvironment
from mrlm.learn.bases.spec import SamplingPlan
from mrlm.play.external_transition import ARGUMENTS, Transition
from mrlm.workflows.tree import Tree
from mrlm.workflows.turns import Turns

ROWS = [{"prompt": f"Say {i}."} for i in range(4)]
GIVEN = ("Say 0.", ["a0", "b0"], 2, [["p"], ["q"]], [["a0"], ["b0"]])
Calls = list[dict[str, Any]]


def lengths(a: list[str], b: list[str]) -> list[float]:
    return [float(len(a[0]) - len(b[0]))]


def keyword(calls: Calls) -> Any:
    """As CoMLRL's documentation writes it."""

    def custom_external(
        prompt: str,
        agent_completions: list[str],
        num_agents: int,
        prompt_history_per_agent: list[list[str]] | None = None,
        response_history_per_agent: list[list[str]] | None = None,
    ) -> list[str]:
        values = (
            prompt,
            agent_completions,
            num_agents,
            prompt_history_per_agent,
            response_history_per_agent,
        )
        calls.append(dict(zip(ARGUMENTS, values, strict=True)))
        return [f"{prompt} Revise {agent_completions[i]}" for i in range(num_agents)]

    return custom_external


# -- how it is called ------------------------------------------------------------------------------


def shuffled(*, num_agents: int, agent_completions: Any, prompt: str, **rest: Any) -> Any:
    return [prompt, agent_completions, num_agents, *rest.values()]


def without_histories(prompt: str, agent_completions: Any, num_agents: int) -> Any:
    return [prompt, agent_completions, num_agents]


def positional(text: str, said: Any, count: int, prompts: Any, answers: Any) -> Any:
    return [text, said, count, prompts, answers]


def short(text: str, said: Any) -> Any:
    return [text, said]


def anything(*given: Any) -> Any:
    return list(given)


async def awaited(prompt: str, agent_completions: Any, **rest: Any) -> Any:
    await asyncio.sleep(0)
    return [prompt, agent_completions, *rest.values()]


def bound(mode: str, prompt: str, agent_completions: Any, num_agents: int) -> Any:
    return [mode, prompt, agent_completions, num_agents]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (shuffled, [*GIVEN]),
        (without_histories, [*GIVEN[:3]]),
        (positional, [*GIVEN]),
        (short, [*GIVEN[:2]]),
        (anything, [*GIVEN]),
        (awaited, [*GIVEN]),
        (functools.partial(bound, mode="plain"), ["plain", *GIVEN[:3]]),
    ],
)
def test_it_is_called_by_name_or_by_position(function: Any, expected: list[Any]) -> None:
    transition = Transition(function)
    returned: list[Any] = []
    given = dict(zip(ARGUMENTS, GIVEN, strict=True))
    returned = asyncio.run(transition._called(given))
    assert returned == expected


@pytest.mark.parametrize(
    "function", [lambda: [], lambda a, b, c, d, e, f: [], "no function", types.SimpleNamespace()]
)
def test_what_cannot_be_called_so_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match="external_transition"):
        Transition(function)


# -- the environment by hand -----------------------------------------------------------------------


def played(world: RewardEnvironment, *turns: tuple[str, ...]) -> list[StepResult]:
    async def play() -> list[StepResult]:
        copy = world.spawn()
        task = copy.task(0)
        found = [copy.reset(task, task.seed)]
        for said in turns:
            actions = {
                agent: Message(text, Role.ASSISTANT, agent=agent)
                for agent, text in zip(copy.agents, said, strict=True)
            }
            found.append(await copy.step(actions))
        return found

    return asyncio.run(play())


def shown(result: StepResult) -> dict[str, list[str]]:
    return {name: [m.content for m in o.messages] for name, o in result.observations.items()}


def test_every_turn_has_prompts_and_a_reward() -> None:
    calls: Calls = []
    world = RewardEnvironment(
        ROWS, lengths, num_agents=2, max_turns=3, external_transition=keyword(calls)
    )
    start, first, second, last = played(world, ("aa", "b"), ("c", "ddd"), ("e", "e"))
    assert shown(start) == {"agent_0": ["Say 0."], "agent_1": ["Say 0."]}
    assert shown(first) == {"agent_0": ["Say 0. Revise aa"], "agent_1": ["Say 0. Revise b"]}
    assert all(each.info["new_conversation"] for each in first.observations.values())
    values = [step.rewards["agent_0"].value for step in (first, second, last)]
    assert values == [1.0, -2.0, 0.0]
    assert (first.done, second.done, last.done) == (False, False, True)
    assert [call["response_history_per_agent"] for call in calls] == [
        [["aa"], ["b"]],
        [["aa", "c"], ["b", "ddd"]],
    ]
    assert calls[1]["prompt_history_per_agent"] == [
        ["Say 0.", "Say 0. Revise aa"],
        ["Say 0.", "Say 0. Revise b"],
    ]
    assert {call["prompt"] for call in calls} == {"Say 0."} and calls[0]["num_agents"] == 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "<Say 0. Revise aa>"),
        ({"external_prompt_passthrough": True}, "Say 0. Revise aa"),
        ({"transition_mode": "append"}, "Say 0. Revise aa"),
    ],
)
def test_formatters_see_new_prompts_unless_they_are_passed_through(
    settings: dict[str, Any], expected: str
) -> None:
    world = RewardEnvironment(
        ROWS,
        lengths,
        [lambda row: f"<{row['prompt']}>"] * 2,
        num_agents=2,
        max_turns=2,
        external_transition=keyword([]),
        **settings,
    )
    _, first = played(world, ("aa", "b"))
    assert shown(first)["agent_0"] == [expected]
    new = first.observations["agent_0"].info["new_conversation"]
    assert new is (settings.get("transition_mode") != "append")


def test_a_formatter_may_ask_for_the_external_prompt() -> None:
    def formatter(row: dict[str, Any], external_prompts: str | None = None) -> str:
        return f"{row['prompt']} | {external_prompts}"

    world = RewardEnvironment(
        ROWS, lengths, formatter, num_agents=2, max_turns=2, external_transition=keyword([])
    )
    start, first = played(world, ("aa", "b"))
    assert shown(start)["agent_1"] == ["Say 0. | None"]
    assert shown(first)["agent_1"] == ["Say 0. Revise b | Say 0. Revise b"]


def test_siblings_do_not_share_histories() -> None:
    calls: Calls = []
    world = RewardEnvironment(
        ROWS, lengths, num_agents=2, max_turns=2, external_transition=keyword(calls)
    )
    for said in ("x", "y"):
        played(world, (said, said))
    assert [call["response_history_per_agent"] for call in calls] == [
        [["x"], ["x"]],
        [["y"], ["y"]],
    ]


# -- several turns through every door --------------------------------------------------------------


def trainer(name: str = "magrpo", **given: Any) -> Any:
    kind = registry.load("algorithms", name)
    face = f"{getattr(kind, 'face', kind.__name__)}Trainer"
    words: dict[str, Any] = {
        "model": "mrlm/tiny",
        "num_agents": 2,
        "reward_func": lengths,
        "train_dataset": ROWS,
        "max_new_tokens": 3,
        "max_steps": 1,
        "batch_size": 1,
        "report_to": "none",
    }
    return getattr(mrlm, face)(**{**words, **given})


def test_turns_without_prompts_for_them_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"num_turns\)=2 needs external_transition"):
        trainer(num_turns=2)


def test_prompts_that_no_turn_reads_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"num_turns\) is 1, so it would never be called"):
        trainer(external_transition=keyword([]))


@pytest.mark.parametrize("workflow", ["single_turn", "majority_vote"])
def test_a_workflow_that_does_not_call_it_is_an_error(workflow: str) -> None:
    with pytest.raises(ConfigError, match="does not call it"):
        trainer(workflow=workflow, external_transition=keyword([]))


def test_two_different_values_are_an_error() -> None:
    world = RewardEnvironment(
        ROWS, lengths, num_agents=2, max_turns=3, external_transition=keyword([])
    )
    with pytest.raises(ConfigError, match="max_turns is 3 here and 2 in the workflow"):
        mrlm.MAGRPOTrainer("mrlm/tiny", world, num_turns=2, report_to="none")


def taken(run: Any) -> list[Any]:
    return run_async(run.source.take(1))


def test_a_chain_trains_every_turn() -> None:
    """Every turn has the reward of its own step, and the run learns from all of them."""
    calls: Calls = []
    made = trainer(num_turns=3, num_generations=2, external_transition=keyword(calls))
    groups = taken(made.run)
    for episode in groups[0]:
        assert len(episode.step_rewards) == 3 and episode.status == "done"
        for rollout in episode.rollouts.values():
            assert [turn.reward for turn in rollout.turns] == episode.step_rewards
    assert len(calls) == 2 * 2
    made.train()
    assert len(calls) == 2 * 4


def test_the_workflow_given_alive_reaches_the_environment() -> None:
    calls: Calls = []
    made = trainer(
        workflow=Turns(max_turns=2, external_transition=keyword(calls)), num_generations=2
    )
    (group,) = taken(made.run)
    assert [len(episode.step_rewards) for episode in group] == [2, 2] and len(calls) == 2


def test_a_tree_calls_it_once_for_every_joint_action() -> None:
    calls: Calls = []
    made = trainer(
        workflow=Tree(max_turns=2, branches=2, external_transition=keyword(calls)),
        num_generations=2,
    )
    (group,) = taken(made.run)
    assert len(group.episodes) == 4 and {len(e.step_rewards) for e in group} == {2}
    assert len(calls) == 2
    followed = [sorted(call["agent_completions"]) for call in calls]
    said = {
        tuple(sorted(r.turns[0].message.content for r in episode.rollouts.values()))
        for episode in group
    }
    assert {tuple(each) for each in followed} <= said


@pytest.mark.parametrize(("threshold", "turns"), [(-100.0, 1), (100.0, 3)])
@pytest.mark.parametrize("workflow", ["turns", "tree"])
def test_a_high_reward_ends_an_episode_early(workflow: str, threshold: float, turns: int) -> None:
    made = trainer(
        workflow=workflow,
        num_turns=3,
        num_generations=2,
        early_termination_threshold=threshold,
        external_transition=keyword([]),
    )
    (group,) = taken(made.run)
    assert {len(episode.step_rewards) for episode in group} == {turns}
    assert {episode.status for episode in group} == {"done"}


def _reads_elsewhere(plan: SamplingPlan) -> bool:
    return plan.rows or plan.tree or plan.greedy


PLAYING = [
    name
    for name in registry.names("algorithms")
    if not _reads_elsewhere(registry.load("algorithms", name)().spec.sampling)
    and name not in ("cory", "malt", "router_r1", "sft", "rema", "matpo")  # worlds of their own
]


@pytest.mark.parametrize("name", PLAYING)
def test_every_trainer_takes_it(name: str) -> None:
    calls: Calls = []
    sizes: dict[str, Any] = {"batch_size": 8}
    if registry.load("algorithms", name)().group_size > 1:
        sizes["num_generations"] = 2
    made = trainer(name, num_turns=2, external_transition=keyword(calls), **sizes)
    (world,) = make_environments(made.config, made._parts)
    assert world.template.max_turns == 2 and world.workflow.max_turns == 2
    results = played(world.make(), ("a", "b"), ("c", "d"))
    assert [result.done for result in results] == [False, False, True] and len(calls) == 1


@pytest.mark.parametrize("place", ["words", "workflow", "environment"])
def test_yaml_names_the_function(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    module = types.ModuleType("own_rules")
    module.revise, module.lengths = keyword(calls), lengths  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_rules", module)
    world: dict[str, Any] = {
        "env_type": "reward",
        "dataset": ROWS,
        "reward_func": "own_rules:lengths",
        "num_agents": 2,
    }
    data: dict[str, Any] = {
        "training": {"algorithm": "magrpo", "report_to": "none"},
        "environments": [world],
    }
    if place == "words":
        data |= {"num_turns": 2, "external_transition": "own_rules:revise"}
    elif place == "workflow":
        data["workflow"] = {"max_turns": 2, "external_transition": "own_rules:revise"}
    else:
        world |= {"max_turns": 2, "external_transition": "own_rules:revise"}
    (spec,) = make_environments(ExperimentConfig(**data), LiveObjects())
    results = played(spec.make(), ("a", "b"), ("c", "d"))
    assert [result.done for result in results] == [False, False, True] and len(calls) == 1


# -- CoMLRL's programs -----------------------------------------------------------------------------


def test_a_reward_processor_is_applied_to_every_reward() -> None:
    world = RewardEnvironment(
        ROWS, lengths, num_agents=2, reward_processor=mrlm.RewardProcessors.scale(factor=100.0)
    )
    _, last = played(world, ("aaa", "b"))
    assert last.rewards["agent_0"].value == 200.0
    assert last.rewards["agent_0"].components == {"lengths": 2.0}


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_wandb_is_started_with_the_users_arguments(fake: Any) -> None:
    trainer(wandb_config={"project": "mine", "name": "length-ratio"}, num_generations=2).train()
    started = next(call[1] for call in fake.calls if call[0] == "init")
    assert started["project"] == "mine" and started["name"] == "length-ratio"
