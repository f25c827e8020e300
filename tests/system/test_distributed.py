"""Several processes that train one run: they come to what one process comes to, speak as one, and
end together."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ranks
from alike import CASES, written
from forking import Launcher
from mrlm import distributed, load_config, run_experiment
from mrlm.core import registry
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers, shares
from mrlm.core.types import Message, Role, Rollout, Task, Turn
from mrlm.distributed.serialization import dumps, loads
from mrlm.learn import ops
from mrlm.learn.checkpoint import checkpoints, step_of, verify
from mrlm.learn.data.batch import Sample
from mrlm.learn.data.samples import parts
from mrlm.learn.joint_update import StepSums, Updating, Work, run_together
from places import IMPORTS, ROOT, free_port
from tiny_runs import Letters
from waiting import until

PAGE = ROOT / "docs" / "distributed.md"


def check_alike(launcher: Launcher, size: int, names: list[str], folder: Path) -> None:
    """What a world comes to is what this process comes to."""
    paths = [written(folder, name, f"{size}") for name in names]
    ranks.run_all(launcher, size, paths, folder / "world")
    for name in names:
        run_experiment(load_config(written(folder, name, "alone")))
        found = ranks.differences(folder / f"{name}-alone", folder / f"{name}-{size}")
        for metric in [each for each in found if each.startswith("rewards/accuracies")]:
            del found[metric]  # the signs of numbers that are 0 at first
        assert max(found.values()) < 2e-5, (name, {k: v for k, v in found.items() if v > 1e-6})


def test_two_processes_come_to_what_one_does(tmp_path: Path, launcher: Launcher) -> None:
    check_alike(launcher, 2, ["ippo-lora", "mappo", "dpo", "distill"], tmp_path)


@pytest.mark.slow
def test_four_processes_do_so_with_every_algorithm(tmp_path: Path, launcher: Launcher) -> None:
    check_alike(launcher, 4, [*CASES, *registry.names("algorithms")], tmp_path)


@pytest.mark.slow
def test_two_machines_train_together_as_the_page_says(tmp_path: Path) -> None:
    """Two torchruns of two processes each, which meet as those of two machines do."""
    (text,) = re.findall(r"^(torchrun --nnodes=2 .*?) -m mrlm", PAGE.read_text(), re.M | re.S)
    text = text.replace("first-machine:29500", f"127.0.0.1:{free_port()}")
    path = written(tmp_path, "ippo-lora", "apart")
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": IMPORTS}
    machines: list[subprocess.Popen[str]] = []
    for number in range(2):
        here = text.replace("\\\n", "").replace("--node_rank=0", f"--node_rank={number}")
        words = shlex.split(here.replace("--nproc_per_node=8", "--nproc_per_node=2"))[1:]
        start = [sys.executable, "-m", "torch.distributed.run", *words, "-m"]
        machines.append(
            subprocess.Popen(
                [*start, *train(path)],
                env={**os.environ, **alone},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [machine.communicate()[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    run_experiment(load_config(written(tmp_path, "ippo-lora", "alone")))
    found = ranks.differences(tmp_path / "ippo-lora-alone", tmp_path / "ippo-lora-apart")
    assert max(found.values()) < 1e-5, found
    assert sum(each.count("step 1/") for each in said) == 1, "one process speaks for all"


# -- who does what ---------------------------------------------------------------------------------


class Played(Peers):
    """One of several processes, of whom the others bring what they are said to."""

    def __init__(self, rank: int, size: int, others: list[Any] | None = None) -> None:
        self.rank, self.size, self.others = rank, size, others or []
        self.added: list[list[Any]] = []

    def from_all(self, value: Any) -> list[Any]:
        return [value if rank == self.rank else self.others[rank] for rank in range(self.size)]

    def add_gradients(self, parameters: Any) -> None:
        self.added.append(list(parameters))


def samples_of(rng: random.Random, count: int, unit: int = 1) -> list[Sample]:
    """Samples of which every fourth begins like the one before it."""
    found: list[Sample] = []
    for number in range(count):
        prompt = found[-1].ids[:30] if number % 4 else [rng.randrange(50) for _ in range(30)]
        said = [rng.randrange(50) for _ in range(rng.randint(1, 40))]
        turn = Turn("a", "p", prompt, said)
        found.append(Sample([*prompt, *said], [turn], [30], number // unit, number))
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_shares_are_whole_units_of_about_the_same_cost(packed: bool) -> None:
    samples = samples_of(random.Random(5), 64, unit=2)
    shared = parts(samples, 4, packed)
    assert len(shared) == 4
    assert sorted(s.rollout for part in shared for s in part) == list(range(64))
    units = [{sample.unit for sample in part} for part in shared]
    assert all(not a & b for i, a in enumerate(units) for b in units[i + 1 :])
    costs = [sum(len(sample.ids) for sample in part) for part in shared]
    assert max(costs) < 1.6 * min(costs)
    together = sum(len({tuple(sample.ids[:30]) for sample in part}) for part in shared)
    assert together <= 16 + 3 if packed else together >= 16
    assert sum(map(bool, parts(samples[:2], 4, packed))) == 1


def test_shares_of_loads_are_balanced() -> None:
    rng = random.Random(2)
    loads = [rng.expovariate(1.0) for _ in range(200)]
    shared = shares(loads, 7)
    held = [sum(loads[place] for place in places) for places in shared]
    assert max(held) - min(held) < max(loads)
    assert sorted(place for places in shared for place in places) == list(range(200))
    assert shares([], 2) == [[], []]


def test_a_group_is_the_same_when_it_comes_from_another_process() -> None:
    turn = Turn("a", "p", [1, 70_000, 3], [5], logprobs=[-0.1, float(np.float32(-0.3))][:1])
    turn.message = Message("five", Role.ASSISTANT, agent="a", turn=turn)
    other = Turn("b", "p", [], [], logprobs=None, read="what", values=np.array([1.5]))
    rollouts = {
        "a": Rollout("a", "p", "t", [turn], [turn.message]),
        "b": Rollout("b", turns=[other]),
    }
    group = Group([Episode("e", Task("t", info={"x": (1, "y")}), rollouts, 0.3)], "t")
    (again,) = loads(dumps([group]))
    (episode,) = again.episodes
    first = episode.rollouts["a"].turns[0]
    assert first.prompt_ids == [1, 70_000, 3] and first.logprobs == [-0.1]
    assert first.message.turn is first and episode.rollouts["a"].messages[0] is first.message
    assert episode.task == group.episodes[0].task and again.task_id == "t"
    second = episode.rollouts["b"].turns[0]
    assert second.values.tolist() == [1.5] and second.logprobs is None and second.read == "what"


def test_what_everybody_has_is_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop of one's own every process has rollouts of its own, and in the library's all."""
    monkeypatch.setattr(ops.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(ops.torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(ops.torch.distributed, "get_rank", lambda: 1)

    def twice(found: list[Any], value: Any) -> None:
        found[:] = [value, value]

    monkeypatch.setattr(ops.torch.distributed, "all_gather_object", twice)
    assert ops.global_sum({"x": [2.0]}) == {"x": [4.0]} and ops.global_rank() == 1
    with ops.complete():
        assert ops.global_sum({"x": [2.0]}) == {"x": [2.0]} and ops.global_rank() == 0
    assert ops.global_moments({"x": np.array([1.0, 3.0])})["x"].count == 4


def test_learners_add_up_in_one_order_however_much_each_has_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One learner has three micro-batches on this process, the other none: both add up once, at the
    same time, by name; and one that leaves is not waited for."""
    monkeypatch.setattr("mrlm.learn.joint_update.accumulate", lambda works: [None] * len(works))
    peers = Played(0, 2)
    peers.add_numbers = lambda tables: [dict(table) for table in tables]  # type: ignore[method-assign]
    work = Work(*[None] * 4)  # type: ignore[arg-type]

    def learner(name: str, works: int, steps: int) -> Updating:
        for _ in range(steps):
            for _ in range(works):
                yield work
            assert (yield StepSums(name, [name], {"loss": 1.0})) == {"loss": 1.0}  # type: ignore[list-item]
        return {}

    assert run_together([learner("b", 3, 1), learner("a", 0, 2)], peers) == [{}, {}]
    assert peers.added == [["a", "b"], ["a"]]


def test_one_process_needs_nothing() -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.local_rank()) == (0, 1, 0)
    assert distributed.is_main() and not distributed.is_initialized()
    distributed.barrier()
    assert distributed.gather("x") == ["x"]
    assert distributed.all_reduce(3.0, "mean") == 3.0 == distributed.all_reduce(3.0, "max")
    assert ALONE.add_numbers([{"x": 1.0}]) == [{"x": 1.0}]


# -- how it begins and ends ------------------------------------------------------------------------

TOGETHER = """
import numpy as np, torch
from mrlm import GRPOTrainer, distributed
distributed.start()
rank = distributed.rank()
assert distributed.all_reduce(float(rank), "mean") == 0.5 and distributed.gather(rank) == [0, 1]
assert distributed.all_reduce(np.array([rank, -rank]), "max").tolist() == [1, 0]
assert distributed.all_reduce(torch.tensor([rank, -rank]), "min").tolist() == [0, -1]
rows = [{"prompt": f"{i}?"} for i in range(8)]
def paid(prompts, completions):
    return [sum(map(str.isalpha, each)) / 8 for each in completions]
trainer = GRPOTrainer(model="mrlm/tiny", reward_func=paid, train_dataset=rows,
    args={"num_iterations": 1, "batch_size": 2, "group_size": 4, "max_new_tokens": 4,
          "output_dir": "ours", "report_to": "none", "seed": 3})
result = trainer.train()
assert len(result.history) == 1
sums = [float(w.sum()) for w in trainer.run.learners[0].parameters()]
print(rank, result.metrics["loss"], sums)
"""


@pytest.mark.slow
def test_a_program_runs_unchanged(tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "ours.py").write_text(TOGETHER)
    world = ranks.World(launcher, 2, [str(tmp_path / "ours.py")], tmp_path / "world")
    assert world.wait() == [0, 0], world.said(0) + world.said(1)
    said = [(tmp_path / "world" / f"out-{rank}").read_text().splitlines()[-1] for rank in (0, 1)]
    assert said[0].split()[1:] == said[1].split()[1:]
    assert len(list(tmp_path.rglob("metrics.jsonl"))) == 1


ENDING = """
from pathlib import Path
from mrlm import distributed
group = distributed.start(device="cpu")
channel = group.channel()
import torch.distributed.nn, torch.distributed.fsdp
distributed.stop()
print([n for t in Path("/proc/self/task").iterdir() if "gloo" in (n := (t / "comm").read_text())])
raise ValueError("after the end")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_thread_of_a_group_lives_after_its_end() -> None:
    """A thread that lets a tensor go while Python ends aborts the process (exit code -6). In an
    interpreter of its own: modules imported before the group hold no reference to it."""
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert ended.stdout.split() == ["[]"], ended.stderr
    assert ended.stderr.rstrip().endswith("ValueError: after the end")
    assert "excepthook" not in ended.stderr


class Unfair(Letters):
    """Works in the first process, and cannot be configured in the second."""

    def reset(self, task: Any = None, seed: int | None = None) -> Any:
        if distributed.rank() == 1:
            raise ConfigError("the second process has no letters")
        return super().reset(task, seed)


def train(config: Path) -> list[str]:
    return ["mrlm", "train", "--config", str(config)]


def long_run(folder: Path, name: str, **changes: Any) -> Path:
    """A config of many iterations, each saved."""
    training = {"num_iterations": 400, "save_steps": 1, "lr_scheduler_type": "constant"}
    return written(folder, "grpo", name, {"training": training}, changes)


def begun(folder: Path, steps: int) -> None:
    """Return when a run has saved that many steps."""
    until(lambda: any(step_of(path) >= steps for path in checkpoints(folder)))


def test_a_failing_process_ends_all_with_its_message(tmp_path: Path, launcher: Launcher) -> None:
    unfair = {"environments": [{"env_type": "test_distributed:Unfair"}]}
    world = ranks.World(launcher, 2, train(long_run(tmp_path, "unfair", **unfair)), tmp_path / "w")
    codes = world.wait()
    assert codes[1] == 2 and codes[0] != 0
    assert "the second process has no letters" in world.said(1)
    assert "lost the others" not in world.said(0)
    assert "2 processes train together (ddp)" in world.said(0)


def test_a_killed_process_ends_the_others(tmp_path: Path, launcher: Launcher) -> None:
    world = ranks.World(launcher, 2, train(long_run(tmp_path, "killed")), tmp_path / "w")
    begun(tmp_path / "grpo-killed", 1)
    os.kill(world.pid(1), signal.SIGKILL)
    assert world.wait() == [1, -signal.SIGKILL]
    assert "process 0 of 2 lost the others" in world.said(0)
    assert verify(checkpoints(tmp_path / "grpo-killed")[0]) is None


def test_a_worker_whose_torchrun_is_gone_does_not_wait_for_it(
    tmp_path: Path, launcher: Launcher
) -> None:
    port = str(free_port())
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    path = long_run(tmp_path, "late")
    started = launcher.start(train(path), tmp_path, TORCHELASTIC_USE_AGENT_STORE="True", **alone)
    assert started.wait() == 1
    assert f"is gone: no answer at 127.0.0.1:{port}" in started.err.read_text()


@pytest.mark.slow
def test_workers_of_a_torchrun_that_is_killed_end_with_it(tmp_path: Path) -> None:
    path = long_run(tmp_path, "orphans")
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    torchrun = psutil.Popen(
        [sys.executable, *start, *train(path)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": IMPORTS,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    begun(tmp_path / "grpo-orphans", 2)
    workers = torchrun.children(recursive=True)
    assert len(workers) >= 2
    torchrun.kill()
    torchrun.wait()
    _, alive = psutil.wait_procs(workers)
    assert not alive


@pytest.mark.slow  # `test_sharded.py` has the same with weights that are cut
def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path, launcher: Launcher) -> None:
    """One of two is told to stop: both stop after the same step, saved; one goes on alone."""
    config = long_run(tmp_path, "stopped")
    world = ranks.World(launcher, 2, train(config), tmp_path / "w")
    folder = tmp_path / "grpo-stopped"
    begun(folder, 1)
    os.kill(world.pid(1), signal.SIGTERM)
    assert world.wait() == [130, 130], world.said(0) + world.said(1)
    assert [world.said(rank).count("the run is saved") for rank in (0, 1)] == [1, 0]
    done = step_of(checkpoints(folder)[0])
    more = [f"training.num_iterations={done + 1}"]
    run_experiment(load_config(config, more), resume=folder)
    again = written(tmp_path, "grpo", "whole")
    whole = load_config(again, [*more, "training.lr_scheduler_type=constant"])
    run_experiment(whole)
    found = ranks.differences(tmp_path / "grpo-whole", folder)
    assert max(found.values()) < 1e-4, {k: v for k, v in found.items() if v > 1e-6}
