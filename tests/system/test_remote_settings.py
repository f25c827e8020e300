"""Which servers a config, or a pool, may name: what cannot work is refused before a run begins."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from mrlm.config import EnvironmentConfig, ExperimentConfig
from mrlm.config.comparison import differences, plain
from mrlm.core.errors import ConfigError
from mrlm.serving.client.calling import Access, Pauses, access_of, address_of
from mrlm.serving.client.pool import ServerPool

HERE = {"remote": True, "server_address": "localhost:50051"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"server_address": "localhost:50051"}, "remote: true"),
        ({"token_env": "TOKEN"}, "remote: true"),
        ({"remote": True}, "server_address"),
        ({"remote": True, "server_address": []}, "server_address"),
        ({**HERE, "tls_cert": "own.pem"}, "need each other"),
        ({**HERE, "server_address": 50051}, "server_address"),
        ({**HERE, "server_address": "50051"}, "host:port"),
        ({**HERE, "server_address": "localhost"}, "host:port"),
        ({**HERE, "server_address": ["localhost:1", "ftp://localhost:2"]}, "host:port"),
    ],
)
def test_what_cannot_name_a_server_is_refused_when_the_config_is_read(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        EnvironmentConfig(env_type="math", **given)


def test_a_section_takes_one_server_or_several() -> None:
    one = EnvironmentConfig(env_type="math", **HERE, difficulty_range=[1, 1])
    assert one.server_address == ["localhost:50051"]
    assert one.parameters == {"difficulty_range": [1, 1]}
    two = EnvironmentConfig(env_type="math", remote=True, server_address=["[::1]:1", "b:2"])
    assert two.server_address == ["[::1]:1", "b:2"]


@pytest.mark.parametrize(
    ("text", "target", "here", "tls"),
    [
        ("localhost:50051", "localhost:50051", True, None),
        ("127.0.0.1:1", "127.0.0.1:1", True, None),
        ("[::1]:50051", "[::1]:50051", True, None),
        ("https://worlds.example:443", "worlds.example:443", False, True),
        ("http://10.0.0.5:50051/", "10.0.0.5:50051", False, False),
    ],
)
def test_an_address_is_read(text: str, target: str, here: bool, tls: bool | None) -> None:
    found = address_of(text)
    assert (found.target, found.is_here, found.tls) == (target, here, tls)


@pytest.mark.parametrize(
    "text", ["", ":1", "host", "host:", "host:x", "host:99999", "::1:5", "a b:1", "host:1/path"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        address_of(text)


def test_a_token_comes_from_the_environment_and_is_never_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLDS_TOKEN", "a-token-that-is-long\n")
    access = access_of(token_env="WORLDS_TOKEN")
    assert access.metadata() == (("authorization", "Bearer a-token-that-is-long"),)
    assert "that-is-long" not in repr(access)
    with pytest.raises(ConfigError, match="NOT_THERE is not set"):
        access_of(token_env="NOT_THERE")
    assert access_of().token is None
    monkeypatch.setenv("MRLM_TOKEN", "another-long-token")
    assert access_of().token == "another-long-token"
    with pytest.raises(ConfigError, match="not both"):
        access_of("a-token", "WORLDS_TOKEN")


def test_a_token_does_not_travel_in_the_clear() -> None:
    with pytest.raises(ConfigError, match="unencrypted"):
        Access("a-token").channel(address_of("10.0.0.5:50051"))
    with pytest.raises(ConfigError, match="does not exist"):
        Access(tls_ca="missing.pem")
    ca = Path("ca.pem")
    ca.write_text("")
    with pytest.raises(ConfigError, match="not encrypted"):
        Access("a-token", tls_ca=str(ca)).channel(address_of("http://10.0.0.5:50051"))


def test_servers_come_and_go() -> None:
    pool = ServerPool(["a:1", "b:2"])
    pool.add("c:3")
    pool.add("c:3")
    assert pool.addresses == ["a:1", "b:2", "c:3"]
    pool.remove("a:1")
    assert pool.addresses == ["b:2", "c:3"]
    with pytest.raises(ConfigError, match=r"server 'a:1' is not in the pool"):
        pool.remove("a:1")
    pool.replace(["d:4"])
    assert pool.addresses == ["d:4"]
    assert pickle.loads(pickle.dumps(pool)).addresses == ["d:4"]
    with pytest.raises(ConfigError, match="at least one"):
        ServerPool()


def test_a_file_of_servers_is_read_again_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrlm.serving.client.pool.READING", 0.0)
    file = Path("servers.txt")
    file.write_text("# the lab\na:1\n\nb:2  # the big one\n")
    pool = ServerPool(servers_file=file)
    assert pool.addresses == ["a:1", "b:2"]
    file.write_text("b:2\nc:3\nd:4\n")
    pool.look_at_file()
    assert pool.addresses == ["b:2", "c:3", "d:4"]
    file.write_text("no address\n")  # a mistake in the middle of a run changes nothing
    pool.look_at_file()
    assert pool.addresses == ["b:2", "c:3", "d:4"]
    with pytest.raises(ConfigError, match=r"servers.txt, line 1"):
        ServerPool(servers_file=file)
    with pytest.raises(ConfigError, match="cannot be read"):
        ServerPool(servers_file="missing.txt")


def test_pauses_grow_and_do_not_touch_the_randomness_of_a_run() -> None:
    import random

    state = random.getstate()
    pauses = Pauses(first=0.1, most=1.0)
    taken = [pauses.take() for _ in range(20)]
    assert random.getstate() == state
    assert 0.05 <= taken[0] <= 0.15 and all(0.5 <= each <= 1.5 for each in taken[5:])
    assert len(set(taken)) == 20


def test_where_worlds_live_may_change_when_a_run_is_resumed() -> None:
    sections = [{}, HERE, {**HERE, "server_address": ["a:1", "b:2"], "token_env": "TOKEN"}]
    first, *others = (
        ExperimentConfig(environments=[EnvironmentConfig(env_type="math", **given)])
        for given in sections
    )
    for other in others:
        assert not differences(plain(first), plain(other))
    other = ExperimentConfig(environments=[EnvironmentConfig(env_type="qa", **HERE)])
    assert differences(plain(first), plain(other)) == ["environments.0.env_type: 'math' -> 'qa'"]
