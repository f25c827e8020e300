"""Numbers by agent: weighted by tokens they are the policy's own, for every algorithm, and they
stay where nothing is trained."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mrlm.learn.update_meter
from grids import quick
from mrlm import load_config, run_experiment
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.owners import agent_label, owners_of
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.agent_numbers import PEAKS, agent_means, agent_metrics
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.learner import Learner
from mrlm.learn.meter import Max, Mean, Measured, Sum
from mrlm.learn.mismatch import MISMATCH
from mrlm.training.metrics import credit_metrics, distinct_metrics
from tiny_runs import KINDS, ROWS, Letters, config_of, some

pytestmark = pytest.mark.system


def run_of(name: str, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The rows of metrics of a small run with changed settings of the section `training`, or
    others."""
    path = config_of(name, folder, "run")
    config = json.loads(path.read_text())
    for key, value in changes.items():
        here = config.setdefault(key, {})
        config[key] = {**here, **value} if isinstance(here, dict) else value
    path.write_text(json.dumps(config))
    run_experiment(load_config(path))
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("name", some(KINDS))
def test_weighted_by_tokens_they_are_the_policys_own(
    name: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In micro-batches and, where an algorithm has them, epochs of mini-batches."""
    Sums = tuple[dict[Any, Any], Measured, int]
    latest: list[Sums] = []
    updates: list[tuple[dict[str, float], Sums]] = []
    update = Learner.steps

    def noted(table: dict[Any, Any], steps: int) -> Measured:
        latest[:] = [(table, agent_means(table, steps), steps)]
        return latest[0][1]

    def steps(self: Learner, *args: Any) -> Any:
        metrics = yield from update(self, *args)
        if metrics:
            updates.append((dict(metrics), latest[0]))
        return metrics

    monkeypatch.setattr(mrlm.learn.update_meter, "agent_means", noted)
    monkeypatch.setattr(Learner, "steps", steps)
    changes: dict[str, Any] = {"training": {"max_tokens_per_microbatch": 100, "num_iterations": 1}}
    if name not in ROWS and shared:
        changes |= {"policies": {"both": {}}}
        changes |= {"happo": {"on_shared": "simultaneous"}} if name == "happo" else {}
    rows = run_of(name, tmp_path, **changes)
    agents: set[str] = set()
    for metrics, (table, found, count) in updates:
        if not table:  # all advantages of the policy are 0
            continue
        totals: dict[str, float] = {}
        weights: dict[str, float] = {}
        for (column, agent), number in table.items():
            agents |= {agent} if column == "entropy" else set()
            if isinstance(number, Sum):
                totals[column] = totals.get(column, 0.0) + number.value
            elif isinstance(number, Mean) and column != MISMATCH:
                totals[column] = totals.get(column, 0.0) + number.total
                weights[column] = weights.get(column, 0.0) + number.weight
                assert found.agents[column, agent].value * number.weight == pytest.approx(
                    number.total
                )
        assert totals.pop("loss") / count == pytest.approx(metrics["loss"], rel=1e-4, abs=1e-6)
        assert totals or name == "reward_model"
        for column, value in totals.items():
            read = weights[column]  # shares of a step are 1
            assert read == pytest.approx(round(read)) and read <= count + 1e-9
            assert value / read == pytest.approx(metrics[column], rel=1e-4, abs=1e-6), column
        for peak in PEAKS.values():
            own = [x.value for (column, _), x in found.agents.items() if column == peak]
            assert not own or max(own) == metrics[peak]
    if len(agents) > 1:
        assert {f"entropy/{agent}" for agent in agents} <= rows[-1].keys()
    assert updates or name in ("madpo", "online_dpo"), "of these no pair may have come"


@pytest.mark.parametrize("name", quick(["grpo", "ppo", "mappo", "magrpo"], ["mappo"]))
def test_none_vanishes_where_all_rewards_are_equal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a number by policy: nothing is trained, and what was sampled is still read."""
    step = Letters.step
    played = 0

    def flat(self: Any, actions: Any) -> Any:
        nonlocal played
        played += 1
        result = step(self, actions)
        for agent in result.rewards if played > limit else ():
            result.rewards[agent] = 0.0
        return result

    limit = 10**9
    monkeypatch.setattr(Letters, "step", flat)
    changes = {"policies": {"both": {}}, "training": {"num_iterations": 1, "gradient_shares": 1}}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (before,) = run_of(name, tmp_path / "one", **changes)
    limit = 0
    (after,) = run_of(name, tmp_path / "two", **changes)
    assert before.keys() - after.keys() == set()
    numbers = [k for k in before if k.split("/")[0] in ("entropy", "ratio_mean", "mismatch_kl")]
    assert {"entropy/a", "entropy/b", "ratio_mean/a", "mismatch_kl/b"} <= set(numbers)
    assert all(after[number] is not None for number in numbers)
    assert after["entropy/a"] > 1.0 and after["ratio_mean/a"] == pytest.approx(1.0, abs=1e-3)


# -- by hand ---------------------------------------------------------------------------------------


def turn(agent: str, policy: str, ids: list[int], **fields: Any) -> Turn:
    return Turn(agent, policy, [5, 6], ids, [-3.0] * len(ids), **fields)


def episode(*turns: Turn, **fields: Any) -> Episode:
    rollouts = {each.agent: Rollout(each.agent, each.policy, turns=[each]) for each in turns}
    return Episode.recorded("e", Task("t"), rollouts, **({"status": "done"} | fields))


def test_labels_of_agents_with_a_policys_name() -> None:
    assert owners_of({"a": "one"}) == {}
    assert owners_of({"a": "a", "b": "a"}) == {"/a": {"a"}, "/b": {"b"}}
    assert owners_of({"a": "a", "b": "b"}) == {"/a": {"a"}, "/b": {"b"}}
    # agents that exchanged their policies: the plain name is the policy's
    swapped = {"/a": {"b"}, "/b": {"a"}, "/b/a": {"a"}, "/a/b": {"b"}}
    assert owners_of({"a": "b", "b": "a"}) == swapped
    mixed = owners_of({"a": "a", "b": "a", "c": "other"})
    assert mixed == {"/a": {"a", "b"}, "/other": {"c"}, "/a/a": {"a"}, "/b": {"b"}, "/c": {"c"}}
    assert agent_label("a", "one", {"one": {"a"}}) == "a"


def test_an_agent_of_two_policies_has_their_mean() -> None:
    def update(tokens: int, **means: float) -> Measured:
        numbers = {(name, "x"): Mean(value, 1.0) for name, value in means.items()}
        return Measured({"entropy": 9.0}, numbers, {"x": tokens})

    updates = {"p": update(30, entropy=1.0), "q": update(10, entropy=2.0)}
    updates["p"].agents |= {("loss", "x"): Sum(0.5), ("ratio_max", "x"): Max(3.0)}
    updates["q"].agents |= {("loss", "x"): Sum(0.25), ("ratio_max", "x"): Max(2.0)}
    updates["q"].agents["entropy", "y"] = Mean(4.0, 1.0)
    updates["q"].tokens["y"] = 5
    expected = {"entropy/x": 1.25, "loss/x": 0.75, "ratio_max/x": 3.0, "entropy/y": 4.0}
    assert agent_metrics(updates) == expected
    assert agent_metrics({"p": update(1, entropy=1.0)}) == {}, "one agent is the policy"


def test_ratios_by_hand(model: Any, tokenizer: Any) -> None:
    """The second step of an update, with the weights that the first one left."""
    learner = Learner(model, tokenizer, GRPO(group_size=2, update_epochs=2))
    learner.settings.learning_rate = 0.01
    rows = [
        [turn("a", "policy", [20, 21], reward=1.0), turn("b", "policy", [22], reward=0.0)],
        [turn("a", "policy", [23], reward=0.0), turn("b", "policy", [24, 25, 26], reward=1.0)],
    ]
    groups = [Group([episode(*row) for row in rows], "t")]
    for each in (t for row in rows for t in row):  # as if the policy had sampled them
        each.logprobs = None
    asyncio.run(learner.annotate(groups, {"old_logprobs"}))
    learner.algorithm.credit(groups)
    samples = learner.algorithm.samples(groups, "policy")
    ratios: dict[str, list[float]] = {"a": [], "b": []}
    calls: list[Any] = []
    loss = learner.algorithm.loss

    def noted(batch: Any, outputs: Any) -> Any:
        found = (outputs.logprobs.detach() - batch.old_logprobs).exp()
        calls.append(found)
        pairs = zip(batch.agent.tolist(), found.tolist(), strict=True)
        for number, ratio in pairs if len(calls) <= 2 else ():  # a third one asks for the slope
            ratios[batch.agents[number]].append(ratio)
        return loss(batch, outputs)

    learner.algorithm.loss = noted  # type: ignore[method-assign]
    metrics = asyncio.run(learner.update(samples, learner.algorithm, 0, 0))
    everything = [*ratios["a"], *ratios["b"]]
    assert len(everything) == 14 and max(everything) > 1.01
    assert metrics["ratio_mean"] == pytest.approx(np.mean(everything))
    assert metrics["ratio_max"] == pytest.approx(max(everything))
    found = agent_metrics({"policy": metrics})
    for agent, own in ratios.items():
        assert found[f"ratio_mean/{agent}"] == pytest.approx(np.mean(own))
        assert found[f"ratio_max/{agent}"] == pytest.approx(max(own))


def test_advantages_by_policy() -> None:
    one = episode(
        turn("a", "p", [1, 2], advantages=1.0),
        turn("b", "p", [3], advantages=-2.0),
        turn("c", "q", [4], advantages=0.0),
    )
    agents = {f"advantage/{agent}/{of}" for agent in "abc" for of in ("mean", "std", "zero")}
    agents |= {"tokens/trained", *(f"tokens/{agent}/share" for agent in "abc")}
    found = credit_metrics([Group([one])])
    assert agents <= found.keys()
    assert {name: found[name] for name in found.keys() - agents} == pytest.approx(
        {
            "advantage/mean": 0.0,
            "advantage/std": math.sqrt(6 / 4),
            "advantage/zero": 1 / 3,
            "advantage/p/mean": 0.0,
            "advantage/p/std": math.sqrt(2),
            "advantage/p/zero": 0.0,
            "advantage/q/mean": 0.0,
            "advantage/q/std": 0.0,
            "advantage/q/zero": 1.0,
        }
    )
    alone = episode(turn("a", "p", [1, 2], advantages=1.0))
    assert "advantage/mean" not in credit_metrics([Group([alone])]), "the agent's are these"


def test_distinct_completions_by_agent() -> None:
    group = Group(
        [
            episode(turn("a", "p", [1]), turn("b", "p", [1])),
            episode(turn("a", "p", [1]), turn("b", "p", [2])),
            episode(turn("a", "p", [3]), turn("b", "p", [3])),
            episode(turn("a", "p", [9]), status="error"),
            episode(turn("a", "p", [8]), greedy=True),
        ]
    )
    found = distinct_metrics([group, Group([episode(turn("a", "p", [1]))])])
    expected = {"": (2 / 3 + 1) / 2, "/a": 2 / 3, "/b": 1.0}
    assert found == pytest.approx({f"distinct_completions{k}": v for k, v in expected.items()})
    assert distinct_metrics([Group([episode(turn("a", "p", [1]))])]) == {}


class Known(PPO):
    """PPO without a model: values are given."""


def test_value_errors_by_agent() -> None:
    """Values are 0, and an agent's returns its rewards."""
    algorithm: Algorithm = Known(gae_lambda=1.0)
    rewards = {"a": [1.0, 3.0], "b": [2.0, 2.0]}
    episodes = [
        episode(*(turn(a, "p", [1], reward=x[k], values=0.0) for a, x in rewards.items()))
        for k in range(2)
    ]
    for each in episodes:
        each.reward = 1.0
    algorithm.credit([Group(episodes)])
    found = {
        k: v for k, v in algorithm.metrics.items() if k.startswith(("value", "expl", "return"))
    }
    assert found == pytest.approx(
        {
            "value_error": (1 + 9 + 4 + 4) / 4,
            "value_error/a": 5.0,
            "value_error/b": 4.0,
            "return_variance": 2 / 3,
            "return_variance/a": 2.0,
            "return_variance/b": 0.0,
            "explained_variance": 0.0,
            "explained_variance/a": 0.0,
            "explained_variance/b": 0.0,
        }
    )
    assert torch.is_grad_enabled()
