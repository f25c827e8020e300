"""Apps played with scripted agents."""

from collections.abc import Callable, Sequence
from typing import Any

from mrlm.core.episodes import Episode
from mrlm.core.sync_async import run_async
from mrlm.engines.scripted import ScriptedEngine
from mrlm.environments.app import AppEnvironment
from mrlm.play.engine import Request
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.serving.apps.workflow import AppWorkflow
from scripted_play import seats

ROWS = [{"question": f"What is {number}+3?"} for number in range(12)]


def app_play(
    tokenizer: Any,
    app: Any = None,
    reward: Any = None,
    agents: Sequence[str] = ("planner", "coder"),
    script: Callable[[Request], str] = lambda request: "yes",
    group_size: int = 1,
    timeout: float = 20.0,
    rows: Any = ROWS,
    max_new_tokens: int = 16,
    engine: Any = None,
    **settings: Any,
) -> Play:
    world = AppEnvironment(app, rows, reward, agents, **settings)
    spec = EnvironmentSpec("app", world, world.spawn, AppWorkflow(), timeout=timeout)
    settings_of = seats(tokenizer, *agents, max_new_tokens=max_new_tokens)
    engine = engine or ScriptedEngine(script, tokenizer)
    return Play([spec], settings_of, {"policy": engine}, group_size, 0)


def app_episodes(tokenizer: Any, app: Any = None, reward: Any = None, **more: Any) -> list[Episode]:
    """The episodes of the first task; failed ones too, if one succeeds."""
    (group,) = run_async(app_play(tokenizer, app, reward, **more).take(1))
    return group.episodes
