"""Boards of episodes: recorded where they change, never part of play, and never its end."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrlm.build.run import build
from mrlm.config import ExperimentConfig
from mrlm.core.board import Html, board_tree
from mrlm.core.chat import Chat
from mrlm.core.environment import Environment, check_environment
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, SamplingParams, StepResult, Task
from mrlm.engines.scripted import ScriptedEngine
from mrlm.environments.games.tic_tac_toe import TicTacToeEnvironment
from mrlm.play.agent import AgentSettings
from mrlm.play.board_recorder import MOST_DRAWN, BoardRecorder
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import as_workflow
from mrlm.record.rows import episode_row
from mrlm.workflows.turns import Turns

MARK = "only for spectators"


class Counting(Environment):
    """An agent acts four times; the board changes with every second action."""

    agents = ("a",)

    def __init__(self, kind: str = "text") -> None:
        self.kind, self.count = kind, 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.count = 0
        return StepResult({"a": Observation([Message("go")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.count += 1
        seen = {"a": Observation([Message(f"seen {self.count}")])}
        over = self.count == 4
        return StepResult({} if over else seen, {"a": Reward(1.0)}, done=over)

    def render(self, agent: str | None = None) -> Any:
        if self.kind == "failing" and self.count == 2:
            raise KeyError("no picture")
        if self.kind == "number":
            return 7
        if self.kind == "long":
            return f"{self.count}" + "x" * 50_000
        if self.kind == "impure":
            self.count += 1
        text = f"{MARK} {self.count // 2}"
        return Html(f"<p><b>{text}</b></p>") if self.kind == "html" else text


def play_of(tokenizer: Any, environment: Environment, **how: Any) -> Play:
    chat, params = Chat(tokenizer), SamplingParams(max_new_tokens=8)
    settings = {
        name: AgentSettings(name, "policy", chat, params, 4096) for name in environment.agents
    }
    spec = EnvironmentSpec("game", environment, environment.spawn, as_workflow(Turns()))
    engine = {
        "policy": ScriptedEngine(
            lambda request: str(1 + sum(map(ord, str(request.key))) % 9), tokenizer
        )
    }
    return Play([spec], settings, engine, 2, seed=0, **how)


def episodes(tokenizer: Any, environment: Environment, boards: bool = True) -> list[Episode]:
    (group,) = run_async(play_of(tokenizer, environment, boards=boards).take(1))
    return group.episodes


@pytest.mark.parametrize("kind", ["text", "html"])
def test_boards_are_recorded_where_they_change(tokenizer: Any, kind: str) -> None:
    for episode in episodes(tokenizer, Counting(kind)):
        assert [step for step, _ in episode.boards] == [0, 2, 4]
        boards = episode_row(episode)["boards"]
        if kind == "text":
            assert boards[1] == {"step": 2, "text": f"{MARK} 1"}
        else:
            assert boards[1] == {"step": 2, "tree": board_tree(f"<p><b>{MARK} 1</b></p>")}
        assert "boards" not in episode_row(episode, tokens=False), "they come with the tokens"
        rest = {key: value for key, value in episode_row(episode).items() if key != "boards"}
        assert MARK not in str(rest)


def test_only_the_first_groups_of_a_step_are_drawn(tokenizer: Any) -> None:
    source = play_of(tokenizer, Counting(), boards=True, most_boards=2)
    groups = run_async(source.take(4))
    assert [all(each.boards for each in group) for group in groups] == [True, True, False, False]
    assert not any(each.boards for group in groups[2:] for each in group)
    assert all(each.boards for group in run_async(source.evaluate(3)) for each in group)
    _, group = source.begin()
    assert all(each.boards for each in run_async(group))


@pytest.mark.parametrize("environment", [Counting(), TicTacToeEnvironment(forgiven=3)])
def test_episodes_are_the_same_with_and_without_boards(
    tokenizer: Any, environment: Environment
) -> None:
    with_boards, without = (episodes(tokenizer, environment, boards) for boards in (True, False))
    assert all(each.boards for each in with_boards) and not any(each.boards for each in without)
    rows = [[episode_row(replace(each, boards=[])) for each in e] for e in (with_boards, without)]
    assert rows[0] == rows[1]


def test_an_error_of_a_drawing_is_logged_once_and_ends_nothing(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mrlm"):
        played = episodes(tokenizer, Counting("failing"))
    assert [episode.status for episode in played] == ["done", "done"]
    assert [[step for step, _ in episode.boards] for episode in played] == [[0, 3, 4]] * 2
    (found,) = [record.getMessage() for record in caplog.records if "render" in record.message]
    assert "environment 'game'" in found and "no picture" in found and "in render" in found
    caplog.clear()
    with caplog.at_level(logging.WARNING, "mrlm"):
        assert not any(episode.boards for episode in episodes(tokenizer, Counting("number")))
    assert "must return a str, an Html or None, not 7" in caplog.text


def test_the_boards_of_an_episode_are_bounded(tokenizer: Any) -> None:
    episode = episodes(tokenizer, Counting("long"))[0]
    assert all(len(board) < 4_100 for _, board in episode.boards)
    assert [step for step, _ in episode.boards] == [0, 1, 2, 3, 4]
    episode.boards[:] = [(0, "x" * MOST_DRAWN)]
    recorder = BoardRecorder()
    recorder.note(episode, "dropped", last=False)
    assert len(episode.boards) == 1
    recorder.note(episode, "kept", last=True)
    assert episode.boards[-1] == (4, "kept")


def test_the_check_of_an_environment_draws_it() -> None:
    check_environment(Counting())
    with pytest.raises(ConfigError, match="not in render"):
        check_environment(Counting("impure"))
    with pytest.raises(ConfigError, match=r"render raised KeyError(.|\n)*no picture"):
        check_environment(Counting("failing"))


@pytest.mark.parametrize("filtered", [False, True])
def test_of_demonstrations_the_recorded_ones_are_drawn(filtered: bool, tmp_path: Path) -> None:
    """Which ones these are is known in advance where none is left out."""
    settings = {"filter_low_reward": True, "min_reward_threshold": 0.5} if filtered else {}
    config = ExperimentConfig(
        environments=[{"env_type": "relay"}],
        policies={"base": {}},
        training={"algorithm": "sft", "batch_size": 4, "report_to": "none"},
        sft={"teacher": "expert", **settings},
        output_dir=str(tmp_path / "run"),
    )
    run = build(config)
    groups = run_async(run.source.take(4))
    run.log.close()
    drawn = [bool(group.episodes[0].boards) for group in groups]
    assert drawn == [True, True, filtered, filtered]
