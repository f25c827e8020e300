"""The reward-function world: both forms, one call for all who wait, errors that name the sample."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mrlm.core.errors import ConfigError, DataError, EpisodeError, MRLMError, RewardError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Reward, Role, StepResult, Task
from mrlm.environments.reward import RewardEnvironment
from mrlm.environments.shared.reward_functions import NotFinite

ROWS = [{"prompt": f"Say {i}.", "answer": str(i), "weight": i} for i in range(20)]


def world(reward_func: Any, **kwargs: Any) -> RewardEnvironment:
    return RewardEnvironment(**({"dataset": ROWS, "reward_func": reward_func} | kwargs))


async def one(template: RewardEnvironment, place: int, *said: str, late: int = 0) -> StepResult:
    copy = template.spawn()
    task = copy.task(place)
    copy.reset(task, task.seed)
    for _ in range(late):
        await asyncio.sleep(0)
    actions = {
        a: Message(s, Role.ASSISTANT, agent=a) for a, s in zip(copy.agents, said, strict=True)
    }
    return await copy.step(actions)


def paid(template: RewardEnvironment, *said: str, place: int = 0) -> Reward:
    rewards = list(run_async(one(template, place, *said)).rewards.values())
    assert all(reward == rewards[0] for reward in rewards)
    return rewards[0]


# -- the joint form --------------------------------------------------------------------------------


def test_joint_form_gets_one_list_per_agent() -> None:
    def ratio(a: list[str], b: list[str]) -> list[float]:
        return [len(b[0]) / len(a[0])]

    reward = paid(world(ratio, num_agents=2), "ab", "abcd")
    assert reward.value == 2.0 and reward.components == {"ratio": 2.0}
    assert paid(world(lambda a, b: [-1.0], num_agents=2), "x", "y").components == {"reward_0": -1.0}


def test_joint_form_may_ask_for_columns_and_be_async() -> None:
    async def near(a: list[str], answer: list[str], *, weight: list[int]) -> list[float]:
        return [float(a[0] == answer[0]) * weight[0]]

    template = world(near)
    right = template.task(3).answer
    assert paid(template, right, place=3).value == float(right)


def test_functions_of_comlrl_are_called_as_there() -> None:
    def any_agents(*completions: list[str], batch_items: Any = None, **more: Any) -> list[float]:
        assert completions == (["a"], ["b"]) and more["weight"] == [row["weight"]]
        return [float(batch_items[0]["answer"])]

    def prompts_first(prompts: list[str], x: list[str], y: list[str]) -> list[float]:
        return [float(prompts + x + y == [row["prompt"], "a", "b"])]

    def rows(x: list[str], y: list[str], batch_items: list[dict[str, Any]]) -> list[float]:
        return [float(batch_items == [row])]

    template = world([any_agents, prompts_first, rows], num_agents=2)
    row = ROWS[int(template.task(3).answer)]
    assert paid(template, "a", "b", place=3).value == float(row["answer"]) + 2


def test_joint_form_is_called_once_per_joint_action() -> None:
    calls: list[tuple[list[str], list[str]]] = []

    def note(a: list[str], b: list[str]) -> list[float]:
        calls.append((a, b))
        return [0.0]

    template = world(note, num_agents=2)

    async def both() -> None:
        await asyncio.gather(one(template, 0, "a", "b"), one(template, 1, "c", "d"))

    run_async(both())
    assert calls == [(["a"], ["b"]), (["c"], ["d"])]


# -- the batched form ------------------------------------------------------------------------------


def test_all_who_wait_are_scored_in_one_call_in_the_order_of_tasks() -> None:
    calls: list[tuple[list[str], list[str], list[str]]] = []

    def right(
        prompts: list[str], completions: list[str], answer: list[str], **more: Any
    ) -> list[float]:
        assert more["weight"] == [int(gold) for gold in answer]
        calls.append((prompts, completions, answer))
        return [float(said == gold) for said, gold in zip(completions, answer, strict=True)]

    template = world(right)

    async def many(places: list[int]) -> list[float]:
        plays = (one(template, p, template.task(p).answer, late=p % 3) for p in places)
        return [result.rewards["agent"].value for result in await asyncio.gather(*plays)]

    places = [5, 1, 7, 3, 3, 0]
    for order in (places, places[::-1]):  # a second event loop serves as well as the first
        assert run_async(many(order)) == [1.0] * 6
    assert len(calls) == 2 and calls[0] == calls[1]
    assert calls[0][0] == [template.task(p).prompt[0].content for p in sorted(places)]


def test_batches_in_two_threads_do_not_mix() -> None:
    template = world(lambda prompts, completions: [float(len(said)) for said in completions])
    results: dict[int, list[float]] = {}

    def run(length: int) -> None:
        async def many() -> list[float]:
            done = await asyncio.gather(*(one(template, p, "x" * length) for p in range(10)))
            return [result.rewards["agent"].value for result in done]

        results[length] = [value for _ in range(5) for value in run_async(many())]

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [float(n)] * 50 for n in (1, 2, 3)}


def test_where_all_functions_abstain_the_reward_is_missing() -> None:
    def silent(completions: list[str]) -> list[float | None]:
        return [None for _ in completions]

    def some(completions: list[str]) -> list[float | None]:
        return [0.0 if said == "zero" else None for said in completions]

    assert not paid(world(silent), "hello").known
    both = world([silent, some])
    assert not paid(both, "hello").known
    assert paid(both, "zero") == Reward(0.0, {"some": 0.0})


def test_functions_are_added_and_abstaining_adds_nothing() -> None:
    def style(completions: list[str], **columns: Any) -> list[float | None]:
        return [None if said == "skip" else 0.5 for said in completions]

    async def length(completions: list[str]) -> list[float]:
        return [float(len(said)) for said in completions]

    both = world([style, length])
    assert paid(both, "abc").components == {"style": 0.5, "length": 3.0}
    assert paid(both, "abc").value == 3.5
    assert paid(both, "skip").components == {"length": 4.0}
    assert paid(world(style), "skip").value == 0.0


def test_conversations_stay_conversations() -> None:
    rows = [
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": str(i)}]}
        for i in range(12)
    ]
    seen: dict[str, Any] = {}

    def note(prompts: Any, completions: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions)
        return [0.0]

    paid(world(note, dataset=rows), "yes")
    assert seen["completions"] == [[{"role": "assistant", "content": "yes"}]]
    assert seen["prompts"][0][0] == {"role": "system", "content": "s"}


def test_every_completion_of_a_team_is_a_sample_and_the_team_earns_the_mean() -> None:
    def long(completions: list[str], agent: list[str]) -> list[float | None]:
        assert agent == ["a", "b"]
        return [float(len(said)) if said else None for said in completions]

    assert paid(world(long, agents=("a", "b")), "xx", "xxxx").value == 3.0
    assert paid(world(long, agents=("a", "b")), "xx", "").value == 2.0


# -- what goes wrong -------------------------------------------------------------------------------


def explode(completions: list[str]) -> list[float]:
    raise ZeroDivisionError("inside")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (explode, r"'explode'.*task 'row-train-4'.*ZeroDivisionError\('inside'\)"),
        (lambda completions: [1.0, 2.0], "expected a list of 1 numbers, got 2 values"),
        (lambda completions: [], "got 0 values"),
        (lambda completions: 1.0, "got 1.0"),
        (lambda completions: None, "got None"),
        (lambda completions: [float("nan")], r"'reward_0', sample of task 'row-train-4'.*nan"),
        (lambda completions: [float("inf")], "inf"),
        (lambda completions: ["1"], "'1'"),
        (lambda a: [float("-inf")], "-inf"),
        (lambda a: 0.5, "got 0.5"),
        (lambda completions, colour: [0.0], "the column 'colour'.*answer, weight"),
    ],
)
def test_a_wrong_reward_names_function_sample_and_value(
    function: Callable[..., Any], says: str
) -> None:
    with pytest.raises((RewardError, EpisodeError), match=says) as found:
        paid(world(function), "hello", place=4)
    assert found.type is (NotFinite if re.search("nan|inf", says) else RewardError)


def test_one_bad_value_in_a_batch_names_its_own_task(caplog: pytest.LogCaptureFixture) -> None:
    def bad(completions: list[str]) -> list[float]:
        return [float("nan") if said == "bad" else 1.0 for said in completions]

    template = world(bad)

    async def many() -> None:
        await asyncio.gather(*(one(template, p, "bad" if p == 2 else "good") for p in range(4)))

    with pytest.raises(NotFinite, match="'row-train-2'"):
        run_async(many())
    assert "bad" in caplog.text and caplog.text.count("row-train-2") == 1
    assert paid(template, "good").value == 1.0  # and the world is usable afterwards


def test_an_episode_that_gives_up_does_not_stop_the_others() -> None:
    async def slow(completions: list[str]) -> list[float]:
        await asyncio.sleep(0.05)
        return [float(len(completions))] * len(completions)

    template = world(slow)

    async def many() -> list[Any]:
        plays = [
            one(template, 0, "a"),
            asyncio.wait_for(one(template, 1, "b"), 0.01),
            one(template, 2, "c"),
        ]
        return await asyncio.gather(*plays, return_exceptions=True)

    first, gone, last = run_async(many())
    assert isinstance(gone, TimeoutError)
    assert first.rewards["agent"].value == last.rewards["agent"].value == 3.0


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"reward_func": None}, "reward_func is missing"),
        ({"dataset": None}, "dataset is missing"),
        ({"reward_func": []}, "empty list"),
        ({"reward_func": 3}, "reward_func: expected a function"),
        ({"reward_func": "no_such_module:f"}, "no_such_module"),
        ({"reward_func": lambda a: [0.0], "num_agents": 2}, "takes 1 lists for 2 agents"),
        ({"num_agents": 0}, "num_agents"),
        ({"num_agents": 3, "agents": ("a", "b")}, "environment has 3, but"),
        (
            {"formatters": [str], "num_agents": 2, "reward_func": lambda a, b: [0.0]},
            "formatters has 1 entries for 2",
        ),
        ({"formatters": {"x": str}}, "'x' does not match"),
        ({"formatters": "upper"}, "'upper'"),
        ({"dataset": [{"text": "no prompt"}]}, "column 'prompt': missing"),
    ],
)
def test_impossible_arguments_are_named(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        world(**({"reward_func": lambda a: [0.0]} | kwargs))


def test_formatters_make_every_agents_own_prompt() -> None:
    formatters = [
        lambda row: f"A: {row['prompt']}",
        lambda row: [{"role": "user", "content": row["answer"]}],
    ]
    template = world(lambda a, b: [0.0], num_agents=2, formatters=formatters)
    task = template.task(0)
    shown = template.reset(task).observations
    assert shown["agent_0"].messages[0].content == f"A: Say {task.answer}."
    assert shown["agent_1"].messages[0].content == task.answer
    assert task.prompt[0].content.startswith("A: ")
    with pytest.raises(
        DataError, match=r"formatter of agent 'agent', task 'row-train-0'.*KeyError"
    ):
        world(lambda a: [0.0], formatters=lambda row: row["nothing"]).task(0)


def test_a_missing_voice_is_an_error_of_the_workflow() -> None:
    template = world(lambda a, b: [0.0], num_agents=2)
    template.reset(template.task(0))
    with pytest.raises(EpisodeError, match="agent_1"):
        run_async(template.step({"agent_0": Message("hi")}))


def test_a_task_from_elsewhere_can_be_played() -> None:
    template = world(lambda completions, answer: [float(completions[0] == answer[0])])
    template.reset(Task("mine", "What?", answer="42"))
    result = run_async(template.step({"agent": Message("42")}))
    assert result.rewards["agent"].value == 1.0 and result.done


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_shared_held_out_and_travel_in_info(caplog: pytest.LogCaptureFixture) -> None:
    template = world(lambda a: [0.0])
    assert template.spawn()._table is template._table
    train, held = template.num_tasks("train"), template.num_tasks("eval")
    assert train and held and train + held == len(ROWS)
    prompts = [
        {template.task(i, s).prompt[0].content for i in range(n)}
        for s, n in (("train", train), ("eval", held))
    ]  # type: ignore[arg-type]
    assert not prompts[0] & prompts[1]
    assert set(template.task(0).info) == {"answer", "weight", "row_prompt"}
    own = world(lambda a: [0.0], eval_dataset=[{"prompt": "held", "answer": "1"}])
    assert (own.num_tasks("train"), own.num_tasks("eval")) == (20, 1)
    few = world(lambda a: [0.0], dataset=ROWS[:4])
    assert few.num_tasks("train") == few.num_tasks("eval") == 4
    assert sum("too few" in record.message for record in caplog.records) == 1


def test_a_hugging_face_dataset_will_do() -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"prompt": ["a"] * 3 + ["b"] * 9, "n": list(range(12))})
    template = world(lambda completions, n: [float(n[0])], dataset=made)
    assert paid(template, "x").value == template.task(0).info["n"]
    with pytest.raises(MRLMError):
        world(lambda a: [0.0], dataset=datasets.Dataset.from_dict({"text": ["a"]}))
