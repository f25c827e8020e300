"""Environments behind OpenEnv servers, with the library itself (`make test-extras`)."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds import can_be_forked, keeps_the_contract, played, trains

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Message
from mrlm.environments.connectors.openenv import OpenEnvEnvironment
from places import free_port

pytest.importorskip("openenv", reason="needs the extra openenv: make test-extras")


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """Starts servers of a kind, in processes of their own, which end with the tests."""
    running: dict[tuple[str, int], tuple[str, Any]] = {}

    def url(kind: str, sessions: int = 64) -> str:
        if (kind, sessions) not in running:
            port = free_port()
            file = str(Path(__file__).with_name("guessing.py"))
            process = subprocess.Popen([sys.executable, file, kind, str(port), str(sessions)])
            address = f"http://127.0.0.1:{port}"
            running[kind, sessions] = address, process
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=1)
                    break
                except OSError:
                    assert process.poll() is None
                    time.sleep(0.1)
        return running[kind, sessions][0]

    yield url
    for _, process in running.values():
        process.kill()
        process.wait()


def halving(world: Any, seat: str, messages: Any) -> str:
    """Finds the number in four guesses: an honest player."""
    hint = messages[-1].content
    if "guess" in hint:
        world.low, world.high = 0, 9
    elif "higher" in hint:
        world.low = world.said + 1
    else:
        world.high = world.said - 1
    world.said = (world.low + world.high) // 2
    return str(world.said)


def test_contract(serve: Callable[..., str]) -> None:
    for kind in ("number", "sum", "word"):
        keeps_the_contract(lambda kind=kind: OpenEnvEnvironment(serve(kind), max_turns=6))
    can_be_forked(OpenEnvEnvironment(serve("number")), "0" if wrong(serve, 0) else "1", "9")


def wrong(serve: Callable[..., str], guess: int) -> bool:
    world = OpenEnvEnvironment(serve("number")).spawn()
    world.reset(world.task(1), 1)
    done = world.step({"agent": Message(str(guess))}).done
    world.close()
    return not done


def test_an_honest_player_finds_the_number_and_a_lazy_one_does_not(
    serve: Callable[..., str],
) -> None:
    world = OpenEnvEnvironment(serve("number"))
    lazy = 0.0
    for seed in range(12):
        _, total, end = played(world, seed, halving)
        assert total == {"agent": 1.0} and end.done and not end.truncated
        lazy += played(world, seed, lambda w, s, m: "5")[1]["agent"]
    assert lazy < 6


def test_what_is_no_action_costs_and_is_asked_for_again(serve: Callable[..., str]) -> None:
    world = OpenEnvEnvironment(serve("number"), malformed=0.25).spawn()
    opening = world.reset(world.task(0)).observations["agent"].messages[0].content
    assert "whole number: a number from 0 to 9" in opening and "left: 4" in opening
    for text in ("five", "", "1.5", "true", "[1]", "11", "-1", "{" * 3000):
        result = world.step({"agent": Message(text)})
        assert result.rewards["agent"].value == -0.25, text
        assert "That is no" in result.observations["agent"].messages[0].content
    result = world.step({"agent": Message("0")})  # the session goes on; no guess was used up
    assert result.done or "left: 3" in result.observations["agent"].messages[0].content
    world.close()


def test_several_fields_are_a_json_object(serve: Callable[..., str]) -> None:
    world = OpenEnvEnvironment(serve("sum"), max_turns=30).spawn()
    opening = world.reset(world.task(0), 0).observations["agent"].messages[0].content
    assert '"first": whole number, "second": whole number, "note": text' in opening
    for text in (
        "5",
        "{}",
        '{"first": 1}',
        '{"first": 1, "second": 1, "third": 1}',
        '{"first": "x"',
    ):
        assert world.step({"agent": Message(text)}).rewards["agent"].components["malformed"] == 1
    said = 'I say {"first": 30, "second": 30}.'
    result = world.step({"agent": Message(said)})
    assert result.rewards["agent"].value == 0.0
    assert "lower" in result.observations["agent"].messages[0].content
    world.close()


def test_text_is_an_action_as_it_is_and_a_limit_is_no_end(serve: Callable[..., str]) -> None:
    world = OpenEnvEnvironment(serve("word"), reset={"tries": 50}, max_turns=3)
    _, _, end = played(world, 0, lambda w, s, m: "hello " * 9)
    assert end.truncated and not end.done
    drawn = OpenEnvEnvironment(serve("word"), render=lambda seen: f"<{seen['hint']}>").spawn()
    assert "<guess>" in drawn.reset(drawn.task(0)).observations["agent"].messages[0].content
    drawn.close()


def test_a_server_that_fails_is_no_reward(serve: Callable[..., str]) -> None:
    world = OpenEnvEnvironment(serve("word")).spawn()
    world.reset(world.task(0))
    with pytest.raises(EpisodeError, match="the game is broken"):
        world.step({"agent": Message("crash")})
    world.close()
    full = OpenEnvEnvironment(serve("number", 1))
    first, second = full.spawn(), full.spawn()
    first.reset(full.task(0))
    with pytest.raises(EpisodeError, match="failed"):
        second.reset(full.task(1))
    first.close()


def test_seeds_reach_the_server(serve: Callable[..., str]) -> None:
    world = OpenEnvEnvironment(serve("number"))
    ends = {played(world, seed, lambda w, s, m: "4")[0][1] for seed in range(12)}
    assert len(ends) > 1


def test_what_cannot_be_played_says_so(serve: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="is the server running"):
        OpenEnvEnvironment("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="http"):
        OpenEnvEnvironment("file:///etc/passwd")
    with pytest.raises(ConfigError, match="no field 'numbr'"):
        OpenEnvEnvironment(serve("number"), field="numbr")


def test_two_steps_of_training_from_yaml(tmp_path: Path, serve: Callable[..., str]) -> None:
    world = {"env_type": "openenv", "url": serve("number"), "max_turns": 2}
    trains(tmp_path, world)
