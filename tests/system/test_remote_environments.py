"""A world on a server in the place of one in this process: how episodes begin, fork and end there,
what happens when servers come, go and refuse, and that which of them plays changes nothing."""

import asyncio
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority
from mrlm import RemoteEnvironment, ServerPool
from mrlm.core.board import Html
from mrlm.core.errors import ConfigError, EpisodeError, RewardError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role
from mrlm.environments.poker.kuhn_poker import KuhnPokerEnvironment
from mrlm.serving.client.calling import SessionLost
from mrlm.serving.client.environment import _settled
from remote_worlds import begun, said, step
from servers import InProcess, here
from waiting import until

COUNTING = "faults:Counting"


@pytest.fixture(autouse=True)
def all_is_closed(server: InProcess) -> Iterator[None]:
    """Every session of a test ends with it."""
    yield
    until(lambda: server.sessions == 0)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    worlds = [
        COUNTING,
        "math",
        "relay",
        "kuhn_poker",
        "remote_worlds:Dice",
        "remote_worlds:Failing",
    ]
    with here(environments=worlds, lease=6.0, timeout=5.0) as made:
        yield made


def world_on(*servers: InProcess, name: str = COUNTING, **settings: Any) -> RemoteEnvironment:
    """A world on one server or several."""
    words = {"deadline": 60.0, "patience": 10.0, **settings}
    return RemoteEnvironment(name, server=[each.address for each in servers], **words)


def test_boards_are_those_of_the_local_environment(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, local = world_on(server, name="kuhn_poker"), KuhnPokerEnvironment()
    assert world_on(server).render() is None, "that one draws none, and is not asked"
    calls: list[str] = []
    call = RemoteEnvironment._call
    monkeypatch.setattr(
        RemoteEnvironment,
        "_call",
        lambda self, kind, what: (calls.append(kind), call(self, kind, what))[1],
    )
    for game in range(2):
        env, task = remote.spawn(), local.task(3)
        run_async(env.reset(task, 3))
        local.reset(task, 3)
        for move in ("check", "bet", "fold", ""):
            assert env.render() == local.render() and isinstance(env.render(), Html)
            for agent in local.agents:
                assert env.render(agent) == local.render(agent) != local.render()
            if move:
                actions = {local.agents[local.mover or 0]: Message(move)}
                run_async(env.step(actions))
                local.step(actions)
        env.close()
        spectators = calls.count("render") - 2 * 4
        assert spectators == (8 if game == 0 else 0), "then every result has it"
        calls.clear()
    remote._shared.description.draws = False  # of a server without boards
    assert remote.spawn().render() is None and not calls


# -- one episode -----------------------------------------------------------------------------------


def test_a_copy_goes_its_own_way_from_where_the_original_was(server: InProcess) -> None:
    world = world_on(server).spawn()
    begun(world)
    first = step(world, "a")
    twin = copy.deepcopy(world)
    assert world.state() == twin.state() == first
    grandchild = copy.deepcopy(twin)  # of a copy that nobody used yet
    assert step(world, "b") == step(twin, "b") != step(grandchild, "c")
    assert step(world, "d") != step(grandchild, "d")
    assert server.sessions == 3
    for each in (world, twin, grandchild):
        each.close()
    until(lambda: server.sessions == 0)


def test_a_copy_is_of_the_moment_at_which_it_was_made(server: InProcess) -> None:
    world = world_on(server)

    async def both() -> tuple[str, str]:
        await world.reset()
        twin = copy.deepcopy(world)  # the steps are on their way before the copy is made
        message = {"player": Message("a", Role.ASSISTANT, agent="player")}
        first = asyncio.ensure_future(world.step(message))
        return said(await twin.step(message)), said(await first)

    one, two = run_async(both())  # both are forgotten, not closed, and then freed
    assert one == two and one.startswith("1 ")


def test_a_session_that_is_idle_lives_and_one_that_vanished_is_freed(server: InProcess) -> None:
    """The lease is six seconds."""
    idle, gone = world_on(server), world_on(server)
    begun(idle)
    begun(gone)
    assert server.sessions == 2
    run_async(_vanish(gone))
    until(lambda: server.sessions == 1)
    time.sleep(1.0)
    assert step(idle, "still here").startswith("1 ")
    idle.close()
    until(lambda: server.sessions == 0)


async def _vanish(world: RemoteEnvironment) -> None:
    """As a process does that is killed: no word, no renewal."""
    from mrlm.serving.client.calling import there

    session = world._session
    assert session is not None

    async def vanish() -> None:
        await (await _settled(session)).abandon()

    await there(vanish())


def test_what_a_world_raises_is_what_it_raises_here(server: InProcess) -> None:
    world = world_on(server, name="remote_worlds:Failing")
    begun(world)
    with pytest.raises(EpisodeError, match=r"remote_worlds:Failing.*on .*failed with ZeroDivision"):
        step(world, "raise")
    begun(world.spawn())
    for word, kind in (("nan", RewardError), ("slow", EpisodeError)):
        fresh = world.spawn()
        begun(fresh)
        with pytest.raises(kind):
            step(fresh, word)
        begun(fresh)  # and the same instance can begin anew
        assert step(fresh, "fine") == "fine"
        fresh.close()


def test_a_world_without_a_seed_is_reset_once_for_all_siblings(
    server: InProcess, tokenizer: Any
) -> None:
    from scripted_play import play

    world = world_on(server, name="remote_worlds:Dice")
    assert not world.seeded
    source, _ = play(tokenizer, world, ["hello"], ("agent",), group_size=3)
    groups = run_async(source.take(2))
    drawn = [
        {episode.rollouts["agent"].messages[0].content for episode in group} for group in groups
    ]
    assert [len(each) for each in drawn] == [1, 1] and drawn[0] != drawn[1]
    until(lambda: server.sessions == 0)


# -- several servers -------------------------------------------------------------------------------


@pytest.mark.slow
def test_episodes_spread_and_move_when_a_server_fails(server: InProcess) -> None:
    other = InProcess(environments=[COUNTING])
    template = world_on(server, other, patience=3.0)
    worlds = [template.spawn() for _ in range(6)]
    for world in worlds:
        begun(world)
    assert (server.sessions, other.sessions) == (3, 3)
    other.close()
    message = {"player": Message("a", Role.ASSISTANT, agent="player")}

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(
            *(world.step(message) for world in worlds), return_exceptions=True
        )

    failed = [each for each in run_async(all_of_them()) if isinstance(each, Exception)]
    assert len(failed) == 3 and all(isinstance(each, EpisodeError) for each in failed)
    assert all(other.address in str(each) for each in failed)
    for world in worlds:  # whoever failed begins anew, elsewhere
        begun(world)
        assert step(world, "b").startswith("1 ")
        world.close()
    until(lambda: server.sessions == 0)


def test_servers_are_replaced_while_episodes_go_on(server: InProcess) -> None:
    with here(environments=[COUNTING]) as other:
        pool = ServerPool(server.address)
        template = RemoteEnvironment(COUNTING, server=pool)
        first, second = template.spawn(), template.spawn()
        begun(first)
        pool.add(other.address)
        pool.remove(server.address)
        begun(second)
        assert (server.sessions, other.sessions) == (1, 1)
        assert step(first, "a") == step(second, "a")  # where it began, a session goes on
        first.close()
        until(lambda: server.sessions == 0)
        pool.replace([server.address])
        third = template.spawn()
        begun(third)
        assert server.sessions == 1
        for each in (second, third):
            each.close()


def test_a_full_server_is_asked_again_when_it_says_so(server: InProcess) -> None:
    with here(environments=[COUNTING], max_sessions=1) as small:
        template = world_on(small)
        first, second = template.spawn(), template.spawn()
        begun(first)

        async def wait() -> None:
            waiting = asyncio.ensure_future(second.reset())
            await asyncio.sleep(1.0)
            assert not waiting.done()
            first.close()
            assert said(await waiting) == "0 "

        run_async(wait())
        second.close()


def test_a_server_that_started_anew_loses_the_episode_and_takes_the_next(server: InProcess) -> None:
    old = InProcess(environments=[COUNTING])
    world = world_on(old)
    begun(world)
    port = old.server.port
    old.close()
    with here(environments=[COUNTING], port=port) as new:
        with pytest.raises(SessionLost, match="session does not exist"):
            step(world, "a")
        begun(world)
        assert step(world, "b").startswith("1 ")
        assert new.sessions == 1
        world.close()


def test_a_server_may_have_an_address_of_six_parts() -> None:
    with here(environments=[COUNTING], host="::1") as six:
        world = world_on(six)
        begun(world)
        assert step(world, "a").startswith("1 ")
        world.close()


# -- what will never work --------------------------------------------------------------------------


def test_what_will_never_work_ends_the_run_in_one_sentence(
    server: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.serving.client.environment.STARTING", 1.0)
    address = server.address
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("maths", {}, "did you mean 'math'"),
        ("math", {"difficulty": 3}, "unknown argument 'difficulty'"),
        ("math", {"difficulty_range": "x"}, "difficulty_range must be"),
        ("math", {"extractor": print}, r"argument.extractor is a \w*function"),
    ]
    for name, arguments, words in cases:
        with pytest.raises(ConfigError, match=words):
            RemoteEnvironment(name, server=address, **arguments)
    with pytest.raises(ConfigError, match=r"no environment server can be used \(localhost:1.*mrlm"):
        RemoteEnvironment("math", server="localhost:1")


def test_certificates_and_tokens_are_checked(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    ca, own, mine = str(authority.pair.cert), authority.certify("server"), authority.certify("me")
    token = "a-token-that-nobody-guesses"
    secrets = {"tls_cert": own.cert, "tls_key": own.key, "client_ca": ca, "token": token}
    with here(environments=[COUNTING], **secrets) as guarded:
        words: dict[str, Any] = {
            "server": f"localhost:{guarded.server.port}",
            "token": token,
            "tls_ca": ca,
            "tls_cert": str(mine.cert),
            "tls_key": str(mine.key),
        }
        world = RemoteEnvironment(COUNTING, **words)
        begun(world)
        world.close()
        with pytest.raises(ConfigError, match=r"refuses the token.*token_env"):
            RemoteEnvironment(COUNTING, **{**words, "token": "another-token"})
        with pytest.raises(ConfigError, match=r"is not trusted.*tls_ca"):
            RemoteEnvironment(COUNTING, **{**words, "tls_ca": str(stranger.pair.cert)})
    late = authority.certify("late", days=-1)
    with (
        here(environments=[COUNTING], tls_cert=late.cert, tls_key=late.key) as expired,
        pytest.raises(ConfigError, match="is not trusted"),
    ):
        address = f"localhost:{expired.server.port}"
        RemoteEnvironment(COUNTING, server=address, tls_ca=ca)
