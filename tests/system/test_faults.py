"""What networks and servers do at their worst: messages lost, doubled and out of order, connections
torn and dead, servers killed, stopped and started anew. (Short forms; the long ones are those of
`python tests/helpers/soak_servers.py`.)"""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Mrlm
from counting import campaign, step_twice, vanishing
from faults import Faults, Network
from forking import Launcher
from logged_rows import logged
from mrlm import RemoteEnvironment
from mrlm.core.errors import EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role
from remote_worlds import begun, step
from servers import InProcess, Process, here
from waiting import until

COUNTING = "faults:Counting"
ROUGH = Faults(drop=0.02, double=0.05, hold=0.03, late=0.05, reset=0.005, swallow=0.002, slow=0.03)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    with here(environments=[COUNTING]) as made:
        yield made


def test_a_step_happens_once_whatever_the_network_does(server: InProcess) -> None:
    network = Network(server.server.port, ROUGH, seed=3)
    world = RemoteEnvironment(
        COUNTING, server=f"127.0.0.1:{network.port}", patience=1.0, deadline=180.0
    )
    found = campaign(world, steps=300, at_once=10, length=15)
    happened = network.close()
    assert (found.steps, found.wrong, found.failed) == (300, 0, 0), found
    assert all(happened[kind] for kind in ("drop", "double", "hold", "late")), happened


def test_a_step_that_happened_twice_would_be_seen(server: InProcess) -> None:
    world = RemoteEnvironment(COUNTING, server=server.address)
    assert step_twice(world).wrong == 1


@pytest.mark.slow  # `test_remote_environments.py` has the same with two sessions
def test_sessions_of_those_who_vanish_are_freed_and_no_others() -> None:
    lease = 5.0
    with here(environments=[COUNTING], lease=lease) as short:
        world = RemoteEnvironment(COUNTING, server=short.address)
        found = vanishing(world, 60, lambda: short.sessions, lease)
        assert (found.opened, found.left, found.lost) == (60, 30, 0), found
        until(lambda: short.sessions == 0)


def test_a_stream_that_is_quiet_ends_and_the_session_goes_on() -> None:
    with here(environments=[COUNTING], lease=0.5) as short:
        world = RemoteEnvironment(COUNTING, server=short.address)
        message = {"player": Message("one", Role.ASSISTANT, agent="player")}
        run_async(world.reset())
        assert streams(short) == 1
        until(lambda: streams(short) == 0)
        assert short.sessions == 1, "its lease is renewed"
        for heard in ("1 ", "2 "):
            said = run_async(world.step(message)).observations["player"].messages[-1]
            assert said.content.startswith(heard) and streams(short) == 1
        world.close()
        until(lambda: short.sessions == 0)


def streams(server: InProcess) -> int:
    """That are open now: each has a task of gRPC's."""
    jobs = [task.get_coro() for task in asyncio.all_tasks(server.loop)]
    return [getattr(job, "__qualname__", "") for job in jobs].count("_handle_exceptions")


@pytest.mark.slow  # `test_remote_environments.py` has the same with one episode
def test_a_run_goes_on_when_its_server_is_killed_and_started_anew(
    tmp_path: Path, launcher: Launcher, run: Mrlm
) -> None:
    """And it is the run it would have been: episodes that were cut off are played again as they
    were."""
    name = "remote_worlds:Slow"
    config: dict[str, Any] = {
        "experiment_name": "served",
        "environments": [{"env_type": name, "retries": 5}],
        "training": {
            "algorithm": "reinforce",
            "num_iterations": 6,
            "batch_size": 2,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 4},
    }
    Path("local.yaml").write_text(yaml.safe_dump(config))
    done = run("train", "--config", "local.yaml", "--output", "local")
    assert done.code == 0, done.err
    old = Process(name)
    config["environments"][0] |= {"remote": True, "server_address": old.address}
    Path("remote.yaml").write_text(yaml.safe_dump(config))
    words = ["mrlm", "train", "--config", "remote.yaml", "--output", "remote"]
    process = launcher.start(words, tmp_path)
    try:
        rows = tmp_path / "remote" / "metrics.jsonl"
        until(lambda: rows.is_file() and len(rows.read_text().splitlines()) >= 2)
        time.sleep(0.2)  # in the middle of a step
    finally:
        old.kill()
    new = Process(name, port=old.port)
    try:
        assert process.wait() == 0, process.err.read_text()[-3000:]
    finally:
        new.kill()
    # what is played again is sampled in smaller batches: log-probs differ in the last bit
    one, two = logged(tmp_path / "remote"), logged(tmp_path / "local")
    rounding = [
        [row.pop("mismatch_kl") for row in rows if "mismatch_kl" in row] for rows in (one, two)
    ]
    assert one == two
    assert rounding[0] == pytest.approx(rounding[1], abs=1e-12)
    said = process.out.read_text() + process.err.read_text()
    assert "session does not exist" in said or "failed" in said, said[-3000:]
    assert json.loads(rows.read_text().splitlines()[-1])


def test_a_server_that_is_stopped_is_left_and_one_that_goes_on_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with here(environments=[COUNTING]) as other:
        stopped = Process(COUNTING)
        try:
            template = RemoteEnvironment(
                COUNTING, server=[stopped.address, other.address], patience=4.0, deadline=10.0
            )
            worlds = [template.spawn(), template.spawn()]
            for world in worlds:
                begun(world)
            assert other.sessions == 1
            stopped.send(signal.SIGSTOP)
            ended = [tried(world) for world in worlds]
            assert sorted(ended)[0].startswith("1 ") and "no answer" in sorted(ended)[1], ended
            worlds.append(template.spawn())
            begun(worlds[-1])  # an episode that begins, begins on the other one
            assert other.sessions == 2
            monkeypatch.setattr("mrlm.serving.client.link.PROBING", 1.0)
            stopped.send(signal.SIGCONT)
            link = template.pool.link(stopped.address)
            until(lambda: run_async(looked(template, link)))
            fresh = template.spawn()
            begun(fresh)
            assert link.sessions
            for world in (*worlds, fresh):
                world.close()
        finally:
            stopped.send(signal.SIGCONT)
            stopped.kill()


def tried(world: RemoteEnvironment) -> str:
    """What a step says, or why there was none."""
    try:
        return step(world, "a")
    except EpisodeError as error:
        return str(error)


async def looked(template: RemoteEnvironment, link: Any) -> bool:
    """Whether the server is one of those that are used, after another look."""
    from mrlm.serving.client.calling import there

    async def look() -> bool:
        link.look()
        return link.ready

    return await there(look())
