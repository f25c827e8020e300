"""Play beside learning: what is played with which weights is counted, so the same numbers come out
however long anything takes, also of a run that was killed in between."""

import asyncio
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forking import Launcher
from logged_rows import Stop
from mrlm import Callback, run_experiment
from mrlm.build.run import build
from mrlm.config import ExperimentConfig
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Turn
from mrlm.experiment import dry_run
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.checkpoint import checkpoints
from mrlm.learn.data.batch import Outputs, Sample, pack
from mrlm.learn.policy.policy import Policy
from mrlm.play.sources.ahead import Ahead
from mrlm.play.sources.play import Play
from mrlm.runs import run_to_end
from places import HELPERS

pytestmark = pytest.mark.system

CLOCKED = ("time", "tokens_per_second")
HERE = str(Path(__file__).parent)
CONFIG: dict[str, Any] = {
    "experiment_name": "ahead",
    "environments": [{"env_type": "talking:Talk"}],
    "training": {
        "algorithm": "grpo", "num_iterations": 5, "batch_size": 2, "learning_rate": 1.0e-2,
        "save_steps": 1, "report_to": "none",
    },
    "grpo": {"group_size": 3},
    "generation": {"max_new_tokens": 4},
    "evaluation": {"episodes": 2, "every": 2},
}  # fmt: skip


@pytest.fixture(autouse=True)
def worlds_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def config_of(folder: Path, world: str = "Talk", **changes: Any) -> ExperimentConfig:
    """The experiment with dotted keys changed."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    environments = [{"env_type": f"talking:{world}", "name": "talk"}]
    whole = ExperimentConfig(**json.loads(json.dumps(CONFIG)))
    return whole.merged({"output_dir": str(folder), "environments": environments, **dotted})


def logged(folder: Path) -> list[dict[str, Any]]:
    """What a run logged, without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in CLOCKED and k[:8] != "seconds/"}
        for line in lines
    ]


Logs = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logs]:
    """max_lag -> what a run logs that is left alone."""

    @cache
    def logs(max_lag: int) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"lag{max_lag}") / "run"
        run_experiment(config_of(folder, training__max_lag=max_lag))
        return logged(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield logs


def test_without_lag_the_wrapper_changes_nothing(undisturbed: Logs, tmp_path: Path) -> None:
    run = build(config_of(tmp_path / "run"))
    assert isinstance(run.source, Play)
    run.source = Ahead(run.source, 0, batch_size=2)
    run_to_end(run)
    run.source.close()
    rows = [
        {k: v for k, v in row.items() if not k.startswith("lag/")}
        for row in logged(tmp_path / "run")
    ]
    assert rows == undisturbed(0)


@pytest.mark.parametrize("max_lag", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_numbers_do_not_depend_on_how_long_anything_takes(
    max_lag: int, undisturbed: Logs, tmp_path: Path
) -> None:
    run_experiment(config_of(tmp_path / "run", "Moody", training__max_lag=max_lag))
    assert logged(tmp_path / "run") == undisturbed(max_lag)
    assert all(thread.name != "mrlm-play" for thread in threading.enumerate())


def test_weights_are_as_old_as_planned(undisturbed: Logs) -> None:
    ages = [row["lag/mean"] for row in undisturbed(1)[1:]]
    assert ages == [0, 1, 1, 1, 1]
    rows = undisturbed(2)[1:]
    assert rows[0]["lag/max"] == 0
    assert max(row["lag/max"] for row in rows) == 2
    assert any(row["lag/partial"] > 0 for row in rows)
    for row in rows:
        shares = [row[f"lag/tokens/{lag}"] for lag in range(3)]
        assert sum(shares) == pytest.approx(1)
        assert row["lag/mean"] == pytest.approx(shares[1] + 2 * shares[2])
        assert row["lag/dropped"] == 0
        # what older weights sampled is scored anew, so the distance is known
        assert ("lag/kl" in row) == (row["lag/max"] > 0)
        assert ("mismatch_kl" in row) == (row["lag/tokens/0"] > 0), "at the weights that sampled"
        assert row.get("mismatch_kl", 0.0) < 1e-8


def loss_of(lag: int, **settings: Any) -> float:
    """The loss of two tokens with advantage 1, which the policy as it is gives log-probs of -0.5
    and -3, and the weights that sampled them gave -1 and -2."""
    turn = Turn("a", "p", [1, 2], [3, 4], logprobs=[-1.0, -2.0], lag=lag)
    turn.old_logprobs, turn.advantages = [-0.5, -3.0], 1.0
    batch = pack([Sample([1, 2, 3, 4], [turn], [2], 0, 0)])
    outputs = Outputs(batch.old_logprobs.clone(), torch.zeros(2), None)
    return float(PolicyGradient(**settings).loss(batch, outputs).total)


def test_older_samples_are_weighted_by_what_the_policy_thinks_of_them_now() -> None:
    up, down = np.exp(0.5), np.exp(-1.0)
    assert loss_of(1) == pytest.approx(-(up + down) / 2)
    assert loss_of(1, importance_cap=1.5) == pytest.approx(-(1.5 + down) / 2)
    assert loss_of(1, importance="icepop") == pytest.approx(-up / 2)
    assert loss_of(1, importance="none") == loss_of(0) == pytest.approx(-1.0)
    plain = {"loss_type": "reinforce", "aggregation": "token_mean"}
    assert loss_of(1, **plain) == pytest.approx((0.5 * up + 3.0 * down) / 2)
    assert loss_of(0, **plain) == pytest.approx(3.5 / 2)


@pytest.mark.parametrize("max_lag", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_goes_on_bit_by_bit(
    max_lag: int, undisturbed: Logs, tmp_path: Path
) -> None:
    """With groups under way: they are begun again and come to where they were."""
    config = config_of(tmp_path / "run", training__max_lag=max_lag)
    run_experiment(config, callbacks=[Stop(2)])
    state = json.loads((checkpoints(tmp_path / "run")[0] / "state.json").read_text())
    assert state["parts"]["source"]["jobs"]
    run_experiment(config, callbacks=[Stop(3)], resume=tmp_path / "run")
    run_experiment(config, resume=tmp_path / "run")
    assert logged(tmp_path / "run") == undisturbed(max_lag)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGKILL, signal.SIGTERM)])
def test_a_run_that_was_killed_goes_on_bit_by_bit(
    signals: tuple[int, ...], undisturbed: Logs, tmp_path: Path, launcher: Launcher
) -> None:
    folder = tmp_path / "run"
    config = config_of(folder, "Slow", training__max_lag=2)
    (tmp_path / "in.yaml").write_text(config.to_yaml())
    shutil.copy(HELPERS / "talking.py", tmp_path)
    words = ["mrlm", "train", "--config", str(tmp_path / "in.yaml"), "--output", str(folder)]
    for saved, number in enumerate(signals, 1):
        resume = ["--resume", str(folder)] if checkpoints(folder) else []
        process = launcher.start([*words, *resume], tmp_path)
        while process.runs and not (folder / f"checkpoint-{saved}").exists():
            time.sleep(0.01)
        assert process.runs, process.err.read_text()[-2000:]
        process.send(number)
        ended = process.wait()
        assert ended in (-number, 130), (ended, process.err.read_text()[-2000:])
    process = launcher.start([*words, "--resume", str(folder)], tmp_path)
    assert process.wait() == 0, process.err.read_text()[-2000:]
    assert logged(folder) == undisturbed(2)


def test_every_turn_has_the_log_probs_of_the_weights_that_sampled_it(tmp_path: Path) -> None:
    """An episode that went on across an exchange of weights was sampled by both."""
    config = config_of(tmp_path / "run", training__max_lag=2, training__save_total_limit=9)
    run = build(config)
    assert isinstance(run.source, Ahead)
    seen: list[Episode] = []
    take = run.source.take

    async def noted(count: int) -> list[Group]:
        groups = await take(count)
        seen.extend(episode for group in groups for episode in group)
        return groups

    run.source.take = noted
    run_to_end(run)
    mixed = [each for each in seen if len({turn.version for turn in each.turns}) > 1]
    assert mixed
    policy, apart = run.learners[0].weights_of, 0.0
    turns = [turn for episode in mixed for turn in episode.turns]
    for version in sorted({turn.version for turn in turns} - {0}):
        policy.load(checkpoint_of(run.folder, version) / "policies" / "policy")
        for turn in turns:
            (found,) = scored(policy, [turn])
            gap = float(np.abs(found - np.array(turn.logprobs)).max())
            if turn.version == version:
                assert gap < 1e-4
            else:
                apart = max(apart, gap)
    assert apart > 1e-2


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def scored(policy: Policy, turns: list[Turn]) -> list[np.ndarray]:
    """Log-probs of turns under the weights as they are."""
    with policy.scoring():
        return [
            policy.forward(
                pack([Sample([*t.prompt_ids, *t.completion_ids], [t], [len(t.prompt_ids)], 0, 0)])
            ).logprobs.numpy()
            for t in turns
        ]


@pytest.mark.slow
def test_evaluation_is_on_the_newest_weights(tmp_path: Path) -> None:
    evaluated: list[int] = []

    class Look(Callback):
        def on_evaluate(self, run: Any, metrics: Any) -> None:
            (learner,) = run.learners
            engine = run.engines[learner.policy]
            assert engine.policies[learner.policy] is not learner.weights_of
            mirror = engine.policies[learner.policy]
            assert mirror.fingerprint() == learner.weights_of.fingerprint()
            assert engine.versions[learner.policy] == learner.version == run.step
            evaluated.append(run.step)

    run_experiment(config_of(tmp_path / "run", training__max_lag=2), callbacks=[Look()])
    assert evaluated == [0, 2, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["lean", pytest.param("hf", marks=pytest.mark.slow)])
def test_adapters_share_the_base_with_what_engines_sample_from(engine: str, tmp_path: Path) -> None:
    policies = {"speaker": {"lora": {"r": 2}}}
    logs: list[Any] = []
    for world in ("Talk", "Moody"):
        folder = tmp_path / world
        changes = {"policies": policies, "engine.name": engine, "training.num_iterations": 3}
        config = config_of(folder, world, training__max_lag=1).merged(changes)
        run = build(config)
        (learner,) = run.learners
        assert learner.mirror is not None
        mine, theirs = (
            dict(each.model.named_parameters()) for each in (learner.weights_of, learner.mirror)
        )
        shared = {name for name in mine if mine[name] is theirs[name]}
        assert shared == {name for name in mine if "lora" not in name}
        run_to_end(run)
        logs.append(logged(folder))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("max_lag", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_error_beside_the_learning_ends_the_run(max_lag: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not set up"):
        run_experiment(config_of(tmp_path / "run", "Broken", training__max_lag=max_lag))
    assert all(thread.name != "mrlm-play" for thread in threading.enumerate())


def test_what_is_too_old_is_dropped_and_counted(tmp_path: Path) -> None:
    run = build(config_of(tmp_path / "run", training__max_lag=1))
    source, (learner,) = run.source, run.learners
    assert isinstance(source, Ahead)

    async def play() -> tuple[list[Group], list[Group]]:
        first = await source.take(2)
        await source.pause({learner.policy: 3})  # two updates more than planned
        await run.engines[learner.policy].load_weights(learner.policy, learner.weights(), 3)
        return first, await source.take(2)

    first, second = asyncio.run(play())
    assert [group.task_id for group in first] != [group.task_id for group in second]
    found = source.metrics()
    assert found["lag/dropped"] >= 2
    assert found["lag/max"] <= 1
    source.close()


def test_a_source_goes_back_in_the_middle_of_play(tmp_path: Path) -> None:
    """As a rollback asks it to: what is under way is broken off, and comes again."""
    run = build(config_of(tmp_path / "run", "Moody", training__max_lag=3))
    source = run.source
    assert isinstance(source, Ahead)

    def said(groups: list[Group]) -> list[list[int]]:
        turns = [turn for group in groups for episode in group for turn in episode.turns]
        return [turn.completion_ids for turn in turns]

    async def play() -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        await source.take(2)
        await source.pause({})
        state = json.loads(json.dumps(source.state_dict()))
        once = [said(await source.take(2)) for _ in range(3)]
        source.load_state_dict(state)
        again = [said(await source.take(2)) for _ in range(3)]
        return once, again

    once, again = asyncio.run(play())
    source.close()
    assert once == again


@pytest.mark.parametrize("max_lag", [0, 2])
def test_the_first_plays_to_be_complete_are_kept(max_lag: int, tmp_path: Path) -> None:
    """Fewest turns first, of equals the lowest numbers: the same ones with and without lag."""
    changes = {"asynchrony.oversample": 2.0, "training.max_lag": max_lag}
    first = build(config_of(tmp_path / "first", "Fickle").merged(changes))
    whole = build(config_of(tmp_path / "whole", "Fickle", grpo__group_size=6))
    kept = asyncio.run(first.source.take(4))
    everything = asyncio.run(whole.source.take(4))
    if isinstance(first.source, Ahead):
        first.source.close()
    spread = 0
    for chosen, group in zip(kept, everything, strict=True):
        length = {each.path[0]: len(each.turns) for each in group}
        order = sorted(length, key=lambda number: (length[number], number))[:3]
        assert [each.path[0] for each in chosen] == sorted(order)
        spread += len(set(length.values())) > 1
        for episode in chosen:
            twin = group.episodes[episode.path[0]]
            assert [t.completion_ids for t in episode.turns] == [
                t.completion_ids for t in twin.turns
            ]
    assert spread, "all plays were equally long, so nothing was chosen"


@pytest.mark.slow
def test_oversampling_goes_on_bit_by_bit(tmp_path: Path) -> None:
    changes = {"asynchrony.oversample": 1.5, "training.max_lag": 2}
    whole = config_of(tmp_path / "whole", "Fickle").merged(changes)
    parts = config_of(tmp_path / "parts", "FickleMoody").merged(changes)
    run_experiment(whole)
    run_experiment(parts, callbacks=[Stop(2)])
    run_experiment(parts, resume=tmp_path / "parts")
    assert logged(tmp_path / "whole") == logged(tmp_path / "parts")


def test_whole_episodes_have_one_version(tmp_path: Path) -> None:
    changes = {"asynchrony.partial": False, "training.max_lag": 2}
    run_experiment(config_of(tmp_path / "run").merged(changes))
    rows = logged(tmp_path / "run")[1:]
    assert [row["lag/mean"] for row in rows] == [0, 1, 2, 2, 2]
    assert not any(row["lag/partial"] for row in rows)


@pytest.mark.slow
def test_dynamic_sampling_takes_more_from_what_is_played_ahead(tmp_path: Path) -> None:
    logs = []
    for world in ("Fickle", "FickleMoody"):
        changes = {"grpo.dynamic_sampling": True, "training.max_lag": 2}
        run_experiment(config_of(tmp_path / world, world).merged(changes))
        logs.append(logged(tmp_path / world))
    assert logs[0] == logs[1]
    assert any(row["num_groups_played"] > 2 for row in logs[0][1:])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"opponents": {"every": 2}}, "opponents are sampled"),
        ({"training.schedule": {"order": "alternating"}}, "change with the iteration"),
        ({"training.algorithm": "vdn"}, "imitates"),
        ({"grpo.importance": "none", "grpo.loss_type": "reinforce"}, "has no correction"),
        ({"training.algorithm": "sft"}, "no rollouts"),
        (
            {"engine": {"name": "vllm", "base_url": "http://localhost:1", "sleep": True}},
            "sleep then",
        ),
        ({"distributed": {"enabled": True}}, "several processes train"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    base = {key: value for key, value in CONFIG.items() if key != "grpo"}
    base |= {"environments": [{"env_type": "relay"}], "training": {"max_lag": 1}}
    config = ExperimentConfig(**base).merged({"output_dir": str(tmp_path), **changes})
    with pytest.raises(ConfigError, match=words):
        build(config)


def test_a_dry_run_says_what_goes_on_beside_what(tmp_path: Path) -> None:
    config = config_of(tmp_path).merged({"max_async_level": 3, "asynchrony.oversample": 1.5})
    text, problems = dry_run(config)
    assert not problems
    assert "up to 3 batches are sampled" in text
    assert "5 episodes of each task are started, and the first 3" in text
    assert "asynchrony:" not in dry_run(config_of(tmp_path))[0].rpartition("schedule:")[2]


@pytest.mark.slow
def test_profile_tells_what_waits_for_what(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", "Moody", training__max_lag=1, training__profile=True)
    run = build(config)
    run_to_end(run)
    lines = (tmp_path / "run" / "profile.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    steps = [row for row in rows if row["step"]]
    beside = [row["beside"]["play"] for row in steps]
    # worlds and engine are at work beside the learner, which waits for them and not for worlds
    assert all("environment" in each and "sampling" in each for each in beside[:-1])
    assert sum(sum(each.get("waiting", {}).values()) for each in beside) > 0
    assert sum(sum(row["seconds"].get("waiting", {}).values()) for row in steps) > 0
    assert not any("environment" in row["seconds"] for row in steps)
    assert sum(row["tokens"].get("sampled", {}).get("speaker", 0) for row in steps) > 0
    for row in steps[:-1]:  # either clock counts every moment once
        mine, theirs = (
            sum(sum(by.values()) for by in table.values())
            for table in (row["seconds"], row["beside"]["play"])
        )
        assert theirs <= mine + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [1, 3])
def test_it_still_learns(max_lag: int, tmp_path: Path) -> None:
    changes = {
        "training.num_iterations": 60,
        "training.batch_size": 8,
        "grpo.group_size": 8,
        "training.max_lag": max_lag,
        "evaluation.episodes": 0,
    }
    run_experiment(config_of(tmp_path / "run").merged(changes))
    rewards = [row["reward/mean"] for row in logged(tmp_path / "run") if "reward/mean" in row]
    first, last = np.array(rewards[:15]), np.array(rewards[-15:])
    error = np.sqrt(first.var(ddof=1) / 15 + last.var(ddof=1) / 15)
    assert last.mean() - first.mean() > 2 * error
