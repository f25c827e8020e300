"""Which episodes are played for an algorithm: a greedy one beside the others, trees of which the
best goes on, groups that teach something, and every combination of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrlm import Callback, ExperimentConfig
from mrlm.algorithms.remax import ReMax
from mrlm.build import plan_of
from mrlm.casting import Parts
from mrlm.core.errors import ConfigError
from mrlm.core.running import run_async
from mrlm.core.types import Episode, Group, Rollout, Task, Turn
from mrlm.learn.grouping import samples_of
from mrlm.metrics import episode_metrics
from mrlm.plan import arithmetic
from mrlm.play.rollout import Play
from mrlm.runs import run_experiment
from test_play import Echo, play

TIMES = ("time", "tokens_per_second", "seconds/play", "seconds/learn")


def played(rewards: list[float], **fields: Any) -> Group:
    """Episodes of one agent that said two tokens."""
    episodes = []
    for number, reward in enumerate(rewards):
        turn = Turn("a", "p", [1], [2, 3], [-0.5, -0.5], reward=reward)
        rollouts = {"a": Rollout("a", "p", "t", [turn])}
        episode = Episode(str(number), Task("t"), rollouts, reward, [reward], "done")
        episodes.append(episode)
    return Group(episodes, "t", **fields)


def greedy_of(group: Group) -> Episode:
    """The last episode of a group, made the greedy one."""
    last = group.episodes[-1]
    last.greedy = True
    for turn in last.turns:
        turn.trained = False
    return last


def experiment(folder: Path, algorithm: str, **more: Any) -> ExperimentConfig:
    config: dict[str, Any] = {
        "environments": [{"env_type": "matrix", "game": "climbing", "normalized": True}],
        "training": {
            "algorithm": algorithm,
            "num_iterations": 4,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "save_steps": 1,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 2},
        "output_dir": str(folder),
    }
    for name, section in more.items():
        known = config.get(name)
        config[name] = {**known, **section} if isinstance(known, dict) else section
    return ExperimentConfig(**config)


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def resumes_exactly(tmp_path: Path, algorithm: str, **more: Any) -> list[dict[str, Any]]:
    """A run that was stopped in the middle logs what an undisturbed one does."""

    class Stop(Callback):
        def on_step_end(self, run: Any, metrics: Any) -> None:
            if run.step == 2:
                run.stop()

    run_experiment(experiment(tmp_path / "whole", algorithm, **more))
    cut = experiment(tmp_path / "cut", algorithm, **more)
    run_experiment(cut, callbacks=[Stop()])
    assert len(logged(tmp_path / "cut")) < len(logged(tmp_path / "whole"))
    run_experiment(cut, resume=tmp_path / "cut")
    found = logged(tmp_path / "whole")
    assert logged(tmp_path / "cut") == found
    return found


# -- a greedy sibling ------------------------------------------------------------------------------


def test_remax_compares_with_the_greedy_episode() -> None:
    group = played([1.0, 0.0, 0.25])
    greedy = greedy_of(group)
    ReMax().credit([group])
    found = [np.broadcast_to(turn.advantages, 2) for e in group.valid for turn in e.turns]
    np.testing.assert_allclose(found, [[0.75, 0.75], [-0.25, -0.25]], atol=1e-6)
    assert all(turn.advantages is None for turn in greedy.turns)
    assert len(samples_of([group], "p")) == 2


def test_remax_takes_the_divergence_from_every_token() -> None:
    group = played([1.0, 0.25])
    greedy_of(group)
    (turn,) = group.episodes[0].turns
    turn.ref_logprobs = [-0.7, -0.4]
    ReMax(kl_coef=0.5).credit([group])
    np.testing.assert_allclose(turn.advantages, [1 - 0.05 - 0.25, 1 + 0.05 - 0.25], atol=1e-6)


def test_remax_counts_what_follows_a_turn() -> None:
    turns = [Turn("a", "p", [1], [2], reward=r, step=i) for i, r in enumerate((1.0, 2.0))]
    episode = Episode("0", Task("t"), {"a": Rollout("a", "p", "t", turns)}, 3, [1, 2], "done")
    group = Group([episode, *played([0.5])], "t")
    greedy_of(group)
    ReMax().credit([group])
    assert [float(turn.advantages[0]) for turn in turns] == [2.5, 1.5]


def test_remax_does_not_learn_where_the_greedy_episode_failed() -> None:
    lost, whole = played([1.0, 0.0]), played([1.0, 0.5])
    greedy_of(lost).status = "error"
    greedy_of(whole)
    algorithm = ReMax()
    algorithm.credit([lost, whole])
    assert all(turn.advantages is None for episode in lost for turn in episode.turns)
    assert algorithm.metrics == {"frac_without_greedy": 0.5, "greedy_reward/mean": 0.5}


def test_a_greedy_episode_is_played_beside_the_others_and_counts_nowhere(tokenizer: Any) -> None:
    def script(request: Any) -> str:
        return "long" if request.sampling.greedy else "x"

    source, engine = play(tokenizer, Echo(1), script, ("a", "b"))
    source = Play(source.worlds, source.seats, {"policy": engine}, 2, seed=0, greedy=True)
    groups = run_async(source.take(2))
    for group in groups:
        assert [episode.greedy for episode in group] == [False, False, True]
        assert [turn.trained for turn in group.episodes[2].turns] == [False, False]
        assert len({e.task.id for e in group}) == 1 and len({e.id for e in group}) == 3
        assert [len(turn.message.content) for turn in group.episodes[2].turns] == [4, 4]
        assert len(group.valid) == 2 and group.greedy is group.episodes[2]
    metrics = episode_metrics(groups)
    assert metrics["reward/mean"] == 1.0 and metrics["episodes/count"] == 4
    assert metrics["reward/a/mean"] == 1.0
    assert [len(group) for group in run_async(source.evaluate(1))] == [1]


def test_remax_trains_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    policies = {"row": {"lora": {"r": 2}}, "column": {}}
    rows = resumes_exactly(tmp_path, "remax", remax={"group_size": 2}, policies=policies)
    steps = [row for row in rows if "greedy_reward/mean" in row]
    assert len(steps) == 4 and all(row["episodes/count"] == 8 for row in steps)
    assert all(np.isfinite(row["loss"]) for row in steps)


def test_greedy_episodes_are_counted_and_refused_where_nothing_is_played(tmp_path: Path) -> None:
    config = experiment(tmp_path, "remax", remax={"group_size": 2})
    plan = arithmetic(config, num_agents=2, trained_agents=2, max_turns=3)
    assert (plan.episodes, plan.sequences, plan.model_calls) == (12, 16, 12 * 2 * 3)
    assert "4 greedy episodes" in str(plan)
    rows = [{"prompt": "a", "completion": "b"}]
    with pytest.raises(ConfigError, match=r"'remax' plays .* data\.dataset is not played; set env"):
        plan_of(experiment(tmp_path, "remax", data={"dataset": rows}), Parts())
    with pytest.raises(ConfigError, match=r"'tree' tries several answers .* workflow 'turns'"):
        plan_of(experiment(tmp_path, "remax", workflow={"name": "tree"}), Parts())
