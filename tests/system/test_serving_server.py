"""The environment server: one instance for every session, every call once, and nobody waits for a
world that is slow, hangs or crashes."""

import concurrent.futures
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hosted import Client, Hosted, Session, step
from mrlm.core.errors import ConfigError, MRLMError, PluginError
from mrlm.core.types import Message, Task
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.server import ServedEnvironment, Settings
from mrlm.serving.protocol import codec
from mrlm.serving.protocol.channels import PUSHBACK, failure_in
from served_worlds import WORLDS
from waiting import until

SCENE, BLOCKING, WAITING = (f"served_worlds:{name}" for name in ("Scene", "Blocking", "Waiting"))
Kind = pb.Failure


@pytest.fixture(scope="module")
def host() -> Iterator[Hosted]:
    """A server that tests share; none of them breaks it."""
    worlds = [
        *WORLDS,
        SCENE,
        BLOCKING,
        WAITING,
        "served_worlds:Guess",
        ServedEnvironment("fixed", SCENE, {"start": 5}),
    ]
    with Hosted(worlds, workers=2, metrics_port=0) as hosted:
        yield hosted


@pytest.fixture
def client(host: Hosted) -> Iterator[Client]:
    with host.client() as found:
        yield found


@pytest.fixture
def scene(client: Client) -> Session:
    """A session that was reset."""
    return client.begin(SCENE)


def failure(error: pytest.ExceptionInfo[grpc.RpcError]) -> pb.Failure:
    found = failure_in(error.value)
    assert found is not None, error.value
    return found


@contextmanager
def fails(kind: pb.Failure.Kind) -> Iterator[pytest.ExceptionInfo[grpc.RpcError]]:
    """What is called here ends with a failure of a kind."""
    with pytest.raises(grpc.RpcError) as caught:
        yield caught
    assert failure(caught).kind == kind


def count(result: pb.StepResult) -> int:
    return json.loads(result.info_json)["count"]


# -- every call once -------------------------------------------------------------------------------


def test_the_same_number_gets_the_same_answer_and_nothing_is_done_twice(scene: Session) -> None:
    first = scene.step()
    assert scene.step(seq=scene.seq) == first
    assert scene.step(seq=scene.seq) == first
    assert [count(scene.step()), count(scene.step())] == [2, 3]


def test_a_gap_and_an_old_number_are_refused_and_the_session_goes_on(scene: Session) -> None:
    scene.step()
    for number in (scene.seq + 2, scene.seq - 1, 0, 2**60):
        with fails(Kind.GAP) as caught:
            scene.client.call(pb.Request(session=scene.name, seq=number, step=step("on")))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert count(scene.step()) == 2


@pytest.mark.parametrize("world", [BLOCKING, WAITING])
def test_a_number_that_is_still_being_answered_waits_for_that_answer(
    client: Client, world: str
) -> None:
    session = client.begin(world)
    request = pb.Request(session=session.name, seq=2, step=step("sleep 0.5"))
    later = pb.Request(session=session.name, seq=3, step=step("on"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = [pool.submit(client.call, request) for _ in range(4)]
        time.sleep(0.1)
        after = pool.submit(client.call, later)
        assert {each.result().SerializeToString() for each in found} == {
            found[0].result().SerializeToString()
        }
        assert [count(found[0].result().result), count(after.result().result)] == [1, 2]


def test_a_caller_that_went_away_finds_its_answer_when_it_is_back(client: Client) -> None:
    session = client.begin(BLOCKING)
    request = pb.Request(session=session.name, seq=2, step=step("sleep 0.5"))
    with pytest.raises(grpc.RpcError) as caught:
        client.call(request, timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert failure_in(caught.value) is None  # its own deadline, not the server's
    assert count(client.call(request).result) == 1


def test_calls_and_streams_of_one_session_are_one_sequence(scene: Session) -> None:
    requests = [
        pb.Request(session=scene.name, seq=seq, step=step("on")) for seq in (2, 2, 3, 9, 3, 4)
    ]
    replies = list(scene.client.stub.Play(iter(requests)))
    assert [reply.WhichOneof("answer") for reply in replies] == ["result"] * 3 + [
        "failure",
        "result",
        "result",
    ]
    assert replies[0] == replies[1] and replies[2] == replies[4]
    assert [reply.seq for reply in replies] == [2, 2, 3, 9, 3, 4]
    assert replies[3].failure.kind == Kind.GAP
    scene.seq = 4
    assert count(scene.step()) == 4


def test_opened_again_with_its_key_a_session_is_the_same(client: Client) -> None:
    first, again = client.open(SCENE, key="mine"), client.open(SCENE, key="mine")
    other, unnamed = client.open(SCENE, key="yours"), client.open(SCENE)
    assert first.name == again.name
    assert len({first.name, other.name, unnamed.name}) == 3
    first.reset()
    first.step()
    assert client.open(SCENE, key="mine").name == first.name
    assert count(first.step()) == 2
    with fails(Kind.BAD):
        client.open(BLOCKING, key="mine")
    first.close()
    assert client.open(SCENE, key="mine").name == first.name  # late, and nothing is opened


def test_opened_twice_at_once_with_a_key_there_is_one_session(client: Client) -> None:
    before = client.info().sessions
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = {each.name for each in pool.map(lambda _: client.open(SCENE, "once"), range(8))}
    assert len(found) == 1
    assert client.info().sessions == before + 1


def test_the_number_of_open_is_counted_on_from(client: Client) -> None:
    request = pb.Request(seq=7, open=pb.Open(world=pb.World(environment=SCENE)))
    reply = client.call(request)
    assert (reply.seq, reply.session) == (7, reply.opened.session)
    with pytest.raises(grpc.RpcError):
        client.call(pb.Request(session=reply.session, seq=7, reset=pb.Reset()))
    assert client.call(pb.Request(session=reply.session, seq=8, reset=pb.Reset())).seq == 8


def test_close_frees_and_is_answered_again(scene: Session) -> None:
    before = scene.client.info().sessions
    assert scene.close().HasField("closed")
    assert scene.client.info().sessions == before - 1
    assert scene.ask(seq=scene.seq, close=pb.Close()).HasField("closed")
    with fails(Kind.LOST) as caught:
        scene.step()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


# -- what a session can do -------------------------------------------------------------------------


def test_a_fork_goes_its_own_way(scene: Session) -> None:
    scene.step()
    reply = scene.ask(fork=pb.Fork(key="twin"))
    twin = Session(scene.client, reply.opened.session)
    assert reply.session == scene.name != twin.name
    assert [count(twin.step()), count(twin.step()), count(scene.step())] == [2, 3, 2]
    again = scene.ask(fork=pb.Fork(key="twin"))
    assert again.opened.session == twin.name
    scene.close()
    assert count(twin.step()) == 4


def test_a_world_that_cannot_be_copied_cannot_be_forked(client: Client) -> None:
    session = client.begin(SCENE, arguments='{"copies": false}')
    session.step()
    before = client.info().sessions
    with fails(Kind.WORLD) as caught:
        session.ask(fork=pb.Fork())
    assert "TypeError" in failure(caught).message
    assert client.info().sessions == before - 1


def test_experts_and_states_are_told(client: Client) -> None:
    session = client.open(SCENE, with_state=True)
    assert session.reset().state == "0 steps"
    assert session.step().state == "1 steps"
    assert session.ask(state=pb.State()).said.text == "1 steps"
    heard = [codec.to_message(Message("x"))]
    assert session.ask(expert=pb.Expert(agent="a", messages=heard)).said.text == "a heard 1"
    assert not session.ask(expert=pb.Expert(agent="b")).said.HasField("text")
    assert not client.open(SCENE).reset().HasField("state")


def test_tasks_arrive_at_the_world(client: Client) -> None:
    task = Task("t-1", "Why?", answer=[1, {"x": None}], seed=3, info={"k": [1.5]})
    found = codec.result_of(client.open(SCENE).reset(task, 3))
    said = found.observations["a"].messages[0].content
    assert said == f"{task.id} {task.info} {task.answer} 3"


def test_a_world_of_one_agent_is_served_too(client: Client) -> None:
    name = "served_worlds:Guess"
    told = client.stub.Describe(pb.World(environment=name))
    assert (list(told.agents), told.reproducible, told.name) == (["agent"], False, "guess")
    session = client.begin(name)
    assert codec.result_of(session.step("7", "agent")).rewards["agent"].value == 1.0


# -- what is refused -------------------------------------------------------------------------------


def test_arguments_are_checked_against_the_constructor(client: Client) -> None:
    session = client.begin(SCENE, arguments='{"start": 41}')
    assert count(session.step()) == 42
    for arguments, words in [
        ('{"strat": 1}', "unknown argument 'strat'; did you mean 'start'"),
        ('{"start": "many"}', "start must be"),
        ("[1]", "arguments must be an object"),
        ("{", "not valid JSON"),
        ('{"start": NaN}', "not valid JSON"),
    ]:
        with fails(Kind.BAD) as caught:
            client.open(SCENE, arguments=arguments)
        assert words in failure(caught).message


def test_rows_are_proved_when_they_are_read(client: Client) -> None:
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(3)]
    rows[1]["answer"] = "$$"
    arguments = {"dataset": rows, "eval_dataset": rows}
    with pytest.raises(grpc.RpcError) as error:
        client.open("math", arguments=json.dumps(arguments))
    assert "cannot be solved by their own answers: train row 1" in failure(error).message
    client.open("math", arguments=json.dumps(arguments | {"on_bad_row": "skip"})).reset()


def test_arguments_of_the_server_stay(client: Client) -> None:
    session = client.begin("fixed", arguments='{"start": 5, "copies": true}')
    assert count(session.step()) == 6
    with pytest.raises(grpc.RpcError, match="'start' is set by the server"):
        client.open("fixed", arguments='{"start": 6}')


def test_a_world_that_there_is_not_is_refused_with_its_neighbour(client: Client) -> None:
    with pytest.raises(grpc.RpcError, match="did you mean 'fixed'"):
        client.open("fixe")
    with pytest.raises(grpc.RpcError, match="unknown split 'test'"):
        client.stub.GetTask(pb.TaskRequest(world=pb.World(environment=SCENE), split="test"))


@pytest.mark.parametrize(
    "call",
    [
        {"step": pb.Step()},
        {"step": step("on", "king")},
        {"step": pb.Step(actions=step("on").actions)},
        {"step": pb.Step(actions=step("on").actions, order=["a", "b"])},
        {"step": pb.Step(actions={"a": pb.Message(role="king")}, order=["a"])},
        {"reset": pb.Reset(task=pb.Task(info_json="{"))},
        {},
    ],
)
def test_a_request_without_sense_is_refused_and_harmless(
    scene: Session, call: dict[str, Any]
) -> None:
    with fails(Kind.BAD) as caught:
        scene.client.call(pb.Request(session=scene.name, seq=2, **call))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert count(scene.step()) == 1  # its number was still free


def test_a_world_is_reset_first(client: Client) -> None:
    session = client.open(SCENE)
    with pytest.raises(grpc.RpcError, match="reset it first"):
        client.call(pb.Request(session=session.name, seq=1, step=step("on")))
    session.reset()
    assert count(session.step()) == 1


# -- worlds that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        ("raise", Kind.WORLD, "failed with ValueError ("),
        ("regret", Kind.WORLD, "failed with EpisodeError: the corpus is not there ("),
        ("set", Kind.WORLD, "info of the step.odd is a set"),
        ("nan", Kind.REWARD, "agent 'a': the reward must be a finite number, not nan"),
        ("long 5000000", Kind.WORLD, "longer than a message may be"),
    ],
)
def test_a_world_that_fails_ends_its_session_and_says_so_again(
    scene: Session, order: str, kind: pb.Failure.Kind, words: str
) -> None:
    before = scene.client.info().sessions
    for _ in range(2):
        with fails(kind) as caught:
            scene.client.call(pb.Request(session=scene.name, seq=2, step=step(order)))
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert words in failure(caught).message
        assert "in the server's log" in failure(caught).message
        assert "secret" not in str(caught.value)
    assert scene.client.info().sessions == before - 1
    with fails(Kind.LOST):
        scene.client.call(pb.Request(session=scene.name, seq=3, step=step("on")))
    stream = scene.client.stub.Play(iter([pb.Request(session=scene.name, seq=2, step=step(order))]))
    assert next(stream).failure.kind == kind


def test_a_slow_world_does_not_keep_others_waiting(host: Hosted) -> None:
    with host.client() as client, concurrent.futures.ThreadPoolExecutor() as pool:
        sessions = [client.open(world) for world in [BLOCKING] * 3 + [WAITING] * 3 + [SCENE] * 2]
        for session in sessions:
            session.reset()
        done: list[str] = []
        slow = [pool.submit(each.step, "sleep 3") for each in sessions[:6:2]]
        for each in slow:
            each.add_done_callback(lambda _: done.append("slow"))
        time.sleep(0.1)
        for session in [*sessions[1:6:2], *sessions[6:]] * 3:
            session.step()
        done.append("quick")
        assert [count(each.result()) for each in slow] == [1, 1, 1]
    assert done == ["quick", "slow", "slow", "slow"]


def test_a_world_that_takes_too_long_ends_its_session_only(tmp_path: Path) -> None:
    with Hosted([BLOCKING, WAITING, SCENE], timeout=3.0) as host, host.client() as client:
        (first,) = host.pids
        neighbour = client.begin(SCENE)
        for world in (WAITING, BLOCKING):
            session = client.begin(world, arguments=json.dumps({"touch": str(tmp_path / "closed")}))
            with fails(Kind.SLOW) as caught:
                session.step("sleep 100")
            assert "3 s" in failure(caught).message
            assert count(neighbour.step()) > 0
        # the thread that hangs cannot be ended: its worker goes with its last session
        until(lambda: bool(host.pids) and first not in host.pids)
        assert (tmp_path / "closed").read_text() == "closed\n"  # the coroutine's
        fresh = client.begin(SCENE)
        assert alive(first) and count(neighbour.step()) == 3
        neighbour.close()
        until(lambda: not alive(first))
        assert count(fresh.step()) == 1


def test_a_world_that_takes_long_to_be_made_opens_nothing() -> None:
    with Hosted(["served_worlds:Slow", SCENE], timeout=3.0) as host, host.client() as client:
        with fails(Kind.SLOW):
            client.open("served_worlds:Slow", key="k")
        assert client.info().sessions == 0
        until(lambda: host.server.pool.restarts == 1 and bool(host.pids))
        client.open(SCENE, key="k").reset()  # the key opened nothing, and is free


def test_a_worker_that_hangs_is_killed_and_started_again() -> None:
    with Hosted([SCENE], timeout=3.0, stall=1.0) as host, host.client() as client:
        (first,) = host.pids
        session, neighbour = client.open(SCENE), client.open(SCENE)
        session.reset()
        with fails(Kind.LOST):
            session.step("sleep 100")  # on the worker's only thread
        with fails(Kind.LOST):
            neighbour.reset()
        until(lambda: bool(host.pids))
        assert host.pids != [first] and not alive(first)
        client.open(SCENE).reset()


def test_a_worker_that_is_killed_loses_its_sessions_only() -> None:
    with Hosted([SCENE], workers=2) as host, host.client() as client:
        sessions = [client.open(SCENE, key=f"k{number}") for number in range(6)]
        for session in sessions:
            session.reset()
        first, second = host.pids
        mine = [s for s in sessions if json.loads(s.step("environment").info_json)["pid"] == first]
        assert len(mine) == 3
        os.kill(first, signal.SIGKILL)
        until(lambda: len(host.pids) == 2 and first not in host.pids)
        assert second in host.pids
        lost = list(client.stub.Renew(pb.RenewRequest(sessions=[s.name for s in sessions])).lost)
        assert sorted(lost) == sorted(session.name for session in mine)
        for session in sessions:
            if session.name in lost:
                with fails(Kind.LOST):
                    session.step()
            else:
                assert count(session.step()) == 2
        assert client.info().sessions == 3
        assert client.open(SCENE, key=mine[0].name).name not in lost


def test_a_world_that_kills_its_worker_is_lost_and_others_can_be_opened() -> None:
    with Hosted([SCENE]) as host, host.client() as client:
        for _ in range(2):
            session = client.begin(SCENE)
            with fails(Kind.LOST):
                session.step("die")
            until(lambda: len(host.pids) == 1 and host.server.pool.workers[0].ready)
        assert host.server.pool.restarts == 2
        assert client.info().sessions == 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- room and time ---------------------------------------------------------------------------------


def test_sessions_whose_clients_vanished_are_freed(tmp_path: Path) -> None:
    touch = json.dumps({"touch": str(tmp_path / "closed")})
    with Hosted([BLOCKING], lease=1.0, metrics_port=0) as host, host.client() as client:
        with host.client() as gone:
            for _ in range(20):
                gone.open(BLOCKING, arguments=touch).reset()
        kept, busy = client.open(BLOCKING), client.open(BLOCKING)
        busy.reset()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            long = pool.submit(busy.step, "sleep 2.5")  # a call under way keeps its session
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                assert not client.stub.Renew(pb.RenewRequest(sessions=[kept.name])).lost
                time.sleep(0.05)
            until(lambda: client.info().sessions == 2)
            assert count(long.result()) == 1
        until(lambda: (tmp_path / "closed").read_text().count("closed") == 20)
        assert list(client.stub.Renew(pb.RenewRequest(sessions=["no", "00" * 16])).lost) == [
            "no",
            "00" * 16,
        ]
        text = metrics(host)
        assert "mrlm_leases_expired_total 20.0" in text


def test_a_full_server_says_when_to_come_again() -> None:
    with Hosted([BLOCKING], max_sessions=2, max_calls=2) as host, host.client() as client:
        first, second = client.open(BLOCKING), client.open(BLOCKING, key="two")
        for _ in range(2):
            with fails(Kind.BUSY) as caught:
                client.open(BLOCKING, key="three")
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert failure(caught).retry_after > 0
            assert dict(caught.value.trailing_metadata())[PUSHBACK] == "500"
        assert client.open(BLOCKING, key="two").name == second.name
        with fails(Kind.BUSY):
            first.reset()
            first.ask(fork=pb.Fork())
        second.reset()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            slow = [pool.submit(first.step, "sleep 1"), pool.submit(second.step, "sleep 1")]
            until(lambda: host.server.sessions.calls == 2)
            with pytest.raises(grpc.RpcError, match="2 calls are under way"):
                client.stub.GetTask(pb.TaskRequest(world=pb.World(environment=BLOCKING)))
            assert [count(each.result()) for each in slow] == [1, 1]
        first.close()
        client.open(BLOCKING, key="three").reset()


def test_draining_lets_open_sessions_finish_and_opens_none() -> None:
    with Hosted([SCENE]) as host, host.client() as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        question = health_pb2.HealthCheckRequest(service="mrlm.v1.Environments")
        assert health.Check(question).status == health_pb2.HealthCheckResponse.SERVING
        session = client.begin(SCENE, key="k")
        draining = threading.Thread(target=lambda: host.do(host.server.drain(60)))
        draining.start()
        until(lambda: client.info().draining)
        assert health.Check(question).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with fails(Kind.BUSY):
            client.open(SCENE)
        assert client.open(SCENE, key="k").name == session.name
        assert count(session.step()) == 1
        assert draining.is_alive()
        session.close()
        draining.join()
        assert not draining.is_alive()


# -- watching it, and setting it up ----------------------------------------------------------------


def metrics(host: Hosted) -> str:
    url = f"http://127.0.0.1:{host.server.metrics_port}/metrics"
    with urllib.request.urlopen(url) as reply:
        return reply.read().decode()


def test_metrics_tell_what_goes_on(host: Hosted, scene: Session) -> None:
    scene.step()
    with pytest.raises(grpc.RpcError):
        scene.step("raise")
    text = metrics(host)
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert float(values['mrlm_calls_total{call="step",result="ok"}']) >= 1
    assert float(values['mrlm_calls_total{call="step",result="world"}']) >= 1
    assert float(values['mrlm_call_seconds_bucket{call="step",le="+Inf"}']) >= 2
    assert float(values["mrlm_sessions"]) == scene.client.info().sessions
    assert (values["mrlm_workers"], values["mrlm_draining"]) == ("2.0", "0.0")
    assert float(values["mrlm_worker_restarts_total"]) == 0
    assert float(values["process_resident_memory_bytes"]) > 0


def test_info_says_what_there_is(client: Client, host: Hosted) -> None:
    info = client.info()
    assert {"math", "code", "debate", SCENE, "fixed"} <= set(info.environments)
    assert (info.epoch, info.workers, info.lease_seconds) == (host.server.epoch, 2, 60.0)
    assert info.max_message_bytes == 4 << 20 and not info.draining
    with Hosted([SCENE]) as other, other.client() as another:
        assert another.info().epoch != info.epoch


def test_a_server_that_takes_no_arguments_says_so() -> None:
    with Hosted([SCENE], arguments=False) as host, host.client() as client:
        client.open(SCENE).reset()
        with pytest.raises(grpc.RpcError, match="takes no arguments"):
            client.open(SCENE, arguments='{"start": 1}')


def test_what_cannot_be_served_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served_badly.py").write_text("1 / 0")
    (tmp_path / "served_deadly.py").write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="did you mean 'debate'"):
        Hosted(["debat"]).__enter__()
    with pytest.raises(ConfigError, match="two environments are called 'math'"):
        Hosted(["math", "math"]).__enter__()
    with pytest.raises(ConfigError, match="cannot import module 'nowhere'"):
        Hosted(["nowhere:World"]).__enter__()
    with pytest.raises(ConfigError, match="cannot be loaded: ZeroDivisionError"):
        Hosted(["served_badly:World"]).__enter__()
    with pytest.raises(MRLMError, match="the workers do not start"):
        Hosted(["served_deadly:World"]).__enter__()
    with pytest.raises(ConfigError, match="--lease must be above 0"):
        Settings(["math"], lease=0)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'mrlm\[serve\]'"):
        Hosted(["math"], metrics_port=0).__enter__()


def test_a_port_is_taken_once(host: Hosted) -> None:
    with pytest.raises(ConfigError, match="another program uses the port"):
        Hosted([SCENE], port=host.server.port).__enter__()
