"""Runs on a Ray cluster: the same numbers as in one process, also when workers are killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forking import Launcher
from logged_rows import Stop, logged
from mrlm import Callback
from mrlm.config import ExperimentConfig
from mrlm.config.ray_section import RayConfig
from mrlm.core.errors import ConfigError, EndpointError, WorkerLost
from mrlm.core.process_group import ALONE
from mrlm.core.types import Message, StepResult
from mrlm.distributed.on_ray.engine import RayEngine
from mrlm.distributed.on_ray.weight_transfer import packed, unpacked
from mrlm.distributed.on_ray.workers import RayWorker
from mrlm.experiment import run_experiment
from mrlm.learn.checkpoint import checkpoints
from mrlm.training.run import Run
from mrlm.training.weight_proof import Gap, gaps
from places import IMPORTS, free_port
from recorded import episodes as recorded
from recorded import played
from talking import Pair

TWO_CORES = 2
PLACES = ("here", "there")


class Letters(Pair):
    """Ends the process `doomed` after the first of its steps."""

    doomed: ClassVar[int | None] = None

    def step(self, actions: dict[str, Message]) -> StepResult:
        if Letters.doomed is not None:
            os.kill(Letters.doomed, signal.SIGKILL)
            Letters.doomed = None
        return super().step(actions)


CONFIG: dict[str, Any] = {
    "experiment_name": "elsewhere",
    "environments": [{"env_type": "test_ray:Letters"}],
    "training": {
        "algorithm": "ippo", "num_iterations": 4, "batch_size": 2, "learning_rate": 1.0e-3,
        "save_steps": 2, "report_to": "none",
    },
    "generation": {"max_new_tokens": 3},
    "evaluation": {"episodes": 2, "every": 2},
}  # fmt: skip

Go = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine with two processors, whatever it has."""
    ray = pytest.importorskip("ray")
    from mrlm.distributed.on_ray.cluster import connect

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_worker_niceness", "0")  # else its workers starve on a busy machine
        connect(RayConfig(num_cpus=TWO_CORES, num_gpus=0))
        yield
        ray.shutdown()


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Trains, and returns what was logged but for times."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def train(
        where: str, changes: dict[str, Any], ray: dict[str, Any] | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        config = ExperimentConfig(**CONFIG).merged(changes | {"output_dir": str(tmp_path / where)})
        if ray is not None:
            placed = {"enabled": True, "strategy": "ray", "ray": ray}
            config = config.merged({"distributed": placed})
        return logged(run_experiment(config, **more).run_folder)

    return train


def unlike(folder: Path, *policies: str) -> list[str]:
    """The policies to which the runs `here` and `there` gave different weights."""

    def weights(run: str, policy: str) -> bytes:
        return (folder / run / "final" / policy / "model.safetensors").read_bytes()

    return [each for each in policies if weights("here", each) != weights("there", each)]


class Kill(Callback):
    """Ends a worker, found by the beginning of its name: at the beginning of a step, or (`playing`)
    when the worlds of that step have been stepped once. Of a team it is the second one."""

    def __init__(self, name: str, step: int, playing: bool = False) -> None:
        self.name, self.step, self.playing = name, step, playing
        self.killed: list[int] = []

    def on_step_begin(self, run: Run) -> None:
        if run.step != self.step or self.killed:
            return
        from mrlm.build.ray import OnRay

        assert isinstance(run.placement, OnRay)
        (post,) = [post for post in run.placement.posts if post.name.startswith(self.name)]
        self.killed.append(post.members[-1].ask_now("ready"))
        if self.playing:
            Letters.doomed = self.killed[0]
        else:
            os.kill(self.killed[0], signal.SIGKILL)


# -- the same numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policies", [("both",), pytest.param(("first", "second"), marks=pytest.mark.slow)]
)
def test_policies_learn_as_in_one_process_though_a_worker_is_killed(
    cluster: None, go: Go, policies: tuple[str, ...], tmp_path: Path
) -> None:
    """In the fourth iteration, while it samples: the run goes back to its checkpoint of the second
    one, and then there is nothing to see of it."""
    changes = {"policies": {name: {} for name in policies}}
    expected = go("here", changes)
    kill = Kill(f"the learner of '{policies[-1]}'", step=3, playing=True)
    assert go("there", changes, {}, callbacks=[kill]) == expected
    assert len(kill.killed) == 1 and Letters.doomed is None
    assert [row["step"] for row in expected] == [0, 1, 2, 3, 4]
    loss = "loss" if len(policies) == 1 else "loss/second"
    assert all(row[loss] != 0 for row in expected[1:])
    here, there = ([played(row) for row in recorded(tmp_path / name)] for name in PLACES)
    assert here == there
    assert not unlike(tmp_path, *(policies if len(policies) > 1 else ("",)))


GRPO = {"training": {"algorithm": "grpo"}, "grpo": {"group_size": 2}}


@pytest.mark.slow
def test_replays_are_those_of_one_process(cluster: None, go: Go, tmp_path: Path) -> None:
    """Episodes are played again by the workers that played them, with alternatives to one turn."""
    c3 = {
        "training": {"algorithm": "c3", "num_iterations": 2},
        "c3": {"alternatives": 2, "decisions": 2},
    }
    expected = go("here", c3)
    assert go("there", c3, {}) == expected
    assert all(row["loss/first"] != 0 for row in expected[1:])
    here, there = ([played(row) for row in recorded(tmp_path / name)] for name in PLACES)
    assert here == there and sum("~" in row["id"] for row in here) == 2 * 2 * 2 * 2
    assert not unlike(tmp_path, "first", "second")


@pytest.mark.slow
@pytest.mark.parametrize("playing", [False, True])
def test_an_engine_that_is_killed_is_replaced_where_it_stood(
    cluster: None, go: Go, playing: bool, tmp_path: Path
) -> None:
    """With weights sent to it, and its prompts heard again: nothing goes back, nothing differs."""
    expected = go("here", GRPO)
    kill = Kill("the engine 1 of 'first'", step=3, playing=playing)
    assert go("there", GRPO, {"colocated": False}, callbacks=[kill]) == expected
    assert len(kill.killed) == 1
    assert any(row["loss/first"] != 0 for row in expected[1:])


@pytest.mark.slow
def test_several_engines_share_what_is_sampled(cluster: None, go: Go) -> None:
    """A batch that is cut otherwise rounds otherwise, in the last digits of float32."""
    several = {"colocated": False, "policies": {"first": {"engines": 2}}}
    for here, there in zip(go("here", GRPO), go("there", GRPO, several), strict=True):
        assert here == pytest.approx(there, rel=1e-4, abs=1e-6)


class Moved(Callback):
    """How far the engines of frozen policies are from these, before and after one worker of the
    first of them takes other weights."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.found: list[list[Gap]] = []

    def on_step_end(self, run: Run, metrics: Any) -> None:
        with ThreadPoolExecutor(1) as beside:
            self.found.append(beside.submit(self.measured, run).result())
            name = run.frozen[0].policy
            engine = run.engines[name]
            assert isinstance(engine, RayEngine)
            post = engine.groups[name].posts[self.worker]
            _, weights = post.ask_now("weights", name)
            moved = {key: tensor * 1.5 for key, tensor in unpacked(weights).items()}
            post.ask_now("take", name, packed(moved), 0)
            self.found.append(beside.submit(self.measured, run).result())

    @staticmethod
    def measured(run: Run) -> list[Gap]:
        return asyncio.run(gaps(run, run.frozen))


@pytest.mark.slow
def test_the_engines_of_a_frozen_policy_are_proven(cluster: None, go: Go) -> None:
    """Each of them: that of two whose weights are others is found, and the first one, which scores
    what they say, is not."""
    changes = {
        "policies": {"first": {}, "second": {"trainable": False}},
        "training": {"num_iterations": 1},
    }
    several = {"colocated": False, "policies": {"second": {"engines": 2}}}
    moved = Moved(worker=1)
    for here, there in zip(
        go("here", changes), go("there", changes, several, callbacks=[moved]), strict=True
    ):
        assert here == pytest.approx(there, rel=1e-4, abs=1e-6)
    (sound,), (other,) = moved.found
    assert sound.policy == other.policy == "second"
    assert sound.nats < 1e-5 and not sound.wrong and other.wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ippo", {"critic": "separate", "update_epochs": 2, "num_minibatches": 2}),
        ("mappo", {}),
        ("vdn", {}),
        ("happo", {}),
        ("ppo", {"kl_coef": 0.05, "kl_target": 0.1}),
    ],
)
def test_critics_references_and_orders_are_those_of_one_process(
    cluster: None, go: Go, algorithm: str, settings: dict[str, Any]
) -> None:
    """After a loss too, before there is any checkpoint: then it begins anew."""
    lora = {"policies": {"first": {}, "second": {"lora": {"r": 4, "dropout": 0.1}}}}
    changes = {"training": {"algorithm": algorithm, "save_steps": 3}, algorithm: settings}
    changes |= lora if algorithm in ("ippo", "ppo") else {}
    kill = Kill("the learner of 'second'", step=2)
    expected = go("here", changes)
    assert go("there", changes, {}, callbacks=[kill]) == expected
    assert len(kill.killed) == 1 and len(expected) == 5


TEAM = {"policies": {"first": {"learners": 2}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings", "ray", "killed"),
    [
        ("ippo", {"critic": "separate", "num_minibatches": 2}, {}, False),
        ("ippo", {"critic": "separate"}, {}, True),
        ("grpo", {"group_size": 4}, {"colocated": False}, True),
        ("ppo", {"kl_coef": 0.05}, {}, False),
        ("mappo", {}, {}, False),
    ],
)
def test_a_team_of_workers_trains_a_policy_as_one_does(
    cluster: None,
    go: Go,
    algorithm: str,
    settings: dict[str, Any],
    ray: dict[str, Any],
    killed: bool,
    tmp_path: Path,
) -> None:
    """With steps of SGD, which do not blow up the last digits; also when one of the team is killed
    (and the others with it) and the run goes back to its checkpoint."""
    training = {"algorithm": algorithm, "optimizer": "sgd", "learning_rate": 0.05, "batch_size": 4}
    if not killed:
        training["num_iterations"] = 2
    changes = {"training": training, algorithm: settings}
    kill = Kill("the learner of 'first'", step=2 if killed else -1)
    expected = go("here", changes)
    found = go("there", changes, {**TEAM, **ray}, callbacks=[kill])
    assert len(kill.killed) == killed and len(found) == len(expected) == (5 if killed else 3)
    for here, there in zip(expected, found, strict=True):
        assert here == pytest.approx(there, rel=1e-4, abs=1e-5)
    assert any(row["loss/first"] != 0 for row in expected[1:])


@pytest.mark.slow
def test_an_error_of_one_of_a_team_is_raised_and_nobody_waits_for_it(cluster: None) -> None:
    from mrlm.distributed.on_ray.actor_calls import WorkerSlot, begin
    from mrlm.distributed.on_ray.cluster import ActorPool, reserve
    from mrlm.distributed.on_ray.collective_calls import WorkerGroup

    class Waits(RayWorker):
        """Of two, the second one fails or ends where the first waits for it."""

        def __init__(self) -> None:
            self.peers = ALONE

        def update(self, how: int) -> tuple[int, float]:  # pyright: ignore
            if self.peers.rank == 1 and how:
                if how == 2:
                    os._exit(1)
                raise ConfigError("1 cannot")
            return self.peers.rank, self.peers.add_numbers([{"sum": self.peers.rank}])[0]["sum"]

    pool = ActorPool("both", {"CPU": 1})
    pool.members = 2
    posts = [WorkerSlot(f"worker {number}", Waits, (), pool, 1) for number in range(2)]
    reserve([pool], 60.0)
    team = WorkerGroup(posts[0], posts[1:], 60.0)
    try:
        begin([team])
        assert team.ask_now("update", 0) == (0, 1.0)
        with pytest.raises(ConfigError, match="1 cannot"):
            team.ask_now("update", 1)
        with pytest.raises(WorkerLost, match="is not running"):
            team.ask_now("update", 0)
        team.restart()
        assert team.alive and team.ask_now("update", 0) == (0, 1.0)
        with pytest.raises(WorkerLost):
            team.ask_now("update", 2)
        assert not team.alive
    finally:
        team.stop()
        pool.release()


@pytest.mark.slow
def test_adapters_of_one_base_are_together_and_worlds_elsewhere(cluster: None, go: Go) -> None:
    """An environment worker that is killed costs nobody an episode."""
    adapters = {name: {"lora": {"r": 4}} for name in ("first", "second")}
    patient = [{"env_type": "test_ray:Letters", "timeout": 600}]
    changes = {"policies": adapters, "training": {"num_iterations": 3}, "environments": patient}
    kill = Kill("the environment worker 2", step=1)
    ray = {"environment_workers": 2, "colocated": False}
    expected = go("here", changes)
    for here, there in zip(expected, go("there", changes, ray, callbacks=[kill]), strict=True):
        assert here == pytest.approx(there, rel=1e-4, abs=1e-6)
    assert len(kill.killed) == 1 and expected[-1]["episodes/failed"] == 0


@pytest.mark.slow
def test_a_run_moves_to_a_cluster_and_back(cluster: None, go: Go, tmp_path: Path) -> None:
    expected = go("whole", {})
    folder = tmp_path / "parts"
    go("parts", {}, callbacks=[Stop(1, 3)])
    go("parts", {}, {"colocated": False}, callbacks=[Stop(1, 3)], resume=folder)
    assert go("parts", {}, resume=folder) == expected
    assert checkpoints(folder)[0].name == "checkpoint-4"


@pytest.mark.slow
def test_a_cluster_that_exists_is_joined_by_its_address(go: Go, tmp_path: Path) -> None:
    """`mrlm train` in a process of its own; the cluster is still there afterwards."""
    pytest.importorskip("ray")
    port = free_port()
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": IMPORTS}
    quiet |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}
    given = [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--block"]
    start = [str(Path(sys.executable).with_name("ray")), "start", "--head", *given]
    with (tmp_path / "head").open("w") as said:
        head = subprocess.Popen(start, env=quiet, stdout=said, stderr=said)
    try:
        while "Ray runtime started" not in (tmp_path / "head").read_text():
            assert head.poll() is None, (tmp_path / "head").read_text()
            time.sleep(0.2)
        config = ExperimentConfig(**CONFIG).merged(
            {
                "output_dir": str(tmp_path / "there"),
                "distributed": {
                    "enabled": True,
                    "strategy": "ray",
                    "ray": {"address": f"127.0.0.1:{port}"},
                },
            }
        )
        config.save(tmp_path / "x.yaml")
        words = [sys.executable, "-m", "mrlm", "train", "--config", str(tmp_path / "x.yaml")]
        done = subprocess.run(words, env=quiet, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert head.poll() is None
    finally:
        head.terminate()
        head.wait()
    assert logged(tmp_path / "there") == go("here", {})


@pytest.mark.slow
def test_a_worker_that_is_lost_too_often_ends_the_run(cluster: None, go: Go) -> None:
    kill = Kill("the learner of 'first'", step=1)
    with pytest.raises(EndpointError, match=r"was lost 1 times.*max_restarts=0"):
        go("there", {}, {"max_restarts": 0}, callbacks=[kill])


@pytest.mark.slow
def test_rows_are_learned_from_elsewhere(cluster: None, go: Go) -> None:
    """Supervised learning, from rows that the process that was started reads."""
    data = [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(8)]
    changes = {"environments": [], "data": {"dataset": data}, "training": {"algorithm": "sft"}}
    changes["evaluation"] = {"episodes": 0}
    assert go("here", changes) == go("there", changes, {})


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ray", "said"),
    [
        (
            {"pools": {"big": {"CPU": 64}}, "policies": {"first": {"learner": "big"}}},
            r"pools.big requires \{CPU: 64\} on one node.*at most \{CPU: 2\}",
        ),
        (
            {"pools": {"fast": {"GPU": 1}}, "policies": {"first": {"learner": "fast"}}},
            r"pools.fast requires \{GPU: 1\}",
        ),
        (
            {"pools": {"big": {"CPU": 64}}, "environment_workers": 1, "environment_pool": "big"},
            r"pools.big requires \{CPU: 64\} on one node",
        ),
        (
            {
                "pools": {"big": {"CPU": 64}},
                "colocated": False,
                "policies": {"first": {"engine": "big"}},
            },
            r"pools.big requires \{CPU: 64\} on one node",
        ),
        ({"policies": {"third": {}}}, "policies.*'third'"),
        ({"policies": {"first": {"engines": 2}}}, "colocated=false"),
        ({"policies": {"first": {"learner": "fast"}}}, "pool 'fast' does not exist"),
        ({"address": "nowhere"}, "address"),
        ({"adress": "auto"}, "'address'"),
    ],
)
def test_what_cannot_be_placed_is_refused_at_once(
    cluster: None, go: Go, ray: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        go("there", {}, ray)
    assert not (tmp_path / "there").exists()


def test_what_only_one_process_does_is_refused(cluster: None, go: Go) -> None:
    with pytest.raises(ConfigError, match=r"training\.max_lag"):
        go("there", {"training": {"max_lag": 1}}, {})


def test_resources_that_others_hold_are_waited_for_but_not_without_end(
    cluster: None, go: Go
) -> None:
    from mrlm.distributed.on_ray.cluster import ActorPool, reserve

    other = ActorPool("another run", {"CPU": TWO_CORES})
    reserve([other], 60.0)
    try:
        with pytest.raises(ConfigError, match=r"is in use.*placement_timeout"):
            go("there", {}, {"placement_timeout": 0.2})
    finally:
        other.release()


# -- what travels ----------------------------------------------------------------------------------


def test_tensors_arrive_as_they_were_sent() -> None:
    import torch

    from mrlm.distributed.on_ray.weight_transfer import load_into, packed, unpacked

    sent = {
        "half": torch.tensor([[1.5, -0.0], [float("inf"), 3e-40]], dtype=torch.bfloat16),
        "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "none": torch.zeros(0, 4),
    }
    sent_tensors = packed(sent)
    for _, _, data in sent_tensors.values():
        data.flags.writeable = False  # as the object store lends it
    found = unpacked(sent_tensors)
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    own = {name: torch.ones_like(tensor) for name, tensor in sent.items()}
    load_into(own, sent_tensors)
    assert all(torch.equal(own[name], tensor) for name, tensor in sent.items())


def test_an_episode_stays_with_an_engine_and_episodes_are_spread() -> None:
    from mrlm.distributed.on_ray.engine import place_of

    keys = [
        (7, "train", "w", task, g, "first", turn)
        for task in range(4)
        for g in range(3)
        for turn in range(2)
    ]
    places = {key: place_of(key, 3) for key in keys}
    assert all(places[(*key[:6], 0)] == places[(*key[:6], 1)] for key in keys)
    counts = [list(places.values()).count(place) for place in range(3)]
    assert counts == [8, 8, 8]
    assert place_of((7, "opponent", 1, 2, "first"), 3) in range(3)


AWAY = """
import json, sys
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.experiment import run_experiment
sys.path += sys.argv[1].split(":")
from logged_rows import logged
from places import free_port
local = ExperimentConfig(**json.loads(sys.argv[2])).merged({"training.num_iterations": 1})
run_experiment(local.merged({"output_dir": "run"}))
assert "ray" not in sys.modules, "a run of one process imports Ray"
address = f"127.0.0.1:{free_port()}"
placed = {"enabled": True, "strategy": "ray", "ray": {"address": address}}
try:
    run_experiment(local.merged({"distributed": placed, "output_dir": "away"}))
except ConfigError as error:
    assert address in str(error) and "no answer" in str(error), error
else:
    raise AssertionError("nobody was there")
"""


def test_one_process_does_not_import_ray_and_a_wrong_address_is_said(
    launcher: Launcher, tmp_path: Path
) -> None:
    program = tmp_path / "away.py"
    program.write_text(AWAY)
    config = CONFIG | {"environments": [{"env_type": "talking:Pair"}]}
    started = launcher.start([str(program), IMPORTS, json.dumps(config)], tmp_path)
    assert started.wait() == 0, started.err.read_text()
    assert not (tmp_path / "away").exists()
