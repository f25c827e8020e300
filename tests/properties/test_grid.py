"""Every world with the workflows that fit it, under a team algorithm with a critic and one without:
a step each, in which every policy learns; the slow ones take two. What is not in the table is tried
as its seats say."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.worlds import reward_of

from any_algorithm import Watch, weights
from every_environment import ALL, NEEDS, make
from every_workflow import ALGORITHMS, FORKING, SPECS
from every_workflow import small as small
from mrlm import ExperimentConfig
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core import registry
from mrlm.core.environment import Environment, as_environment
from mrlm.core.types import Message, Reward, Role, StepResult, Task
from mrlm.environments.wrappers.wrapped import Wrapped
from mrlm.runs import run_to_end

pytestmark = pytest.mark.system

FITS: dict[str, tuple[str, str]] = {
    "centralised": ("summarize", "chain"),
    "class_completion": ("turns", "single_turn"),
    "code": ("refine", "debate"),
    "code_collaboration": ("turns", "single_turn"),
    "connect_four": ("self_play", "turns"),
    "debate": ("turns", "self_play"),
    "difference": ("turns", "single_turn"),
    "hanabi": ("turns", "self_play"),
    "kuhn_poker": ("turns", "self_play"),
    "leduc": ("turns", "self_play"),
    "length": ("single_turn", "turns"),
    "math": ("majority_vote", "propose_solve"),
    "matrix": ("single_turn", "self_play"),
    "negotiation": ("self_play", "turns"),
    "plan_path": ("turns", "self_play"),
    "qa": ("router", "mixture"),
    "reference": ("summarize", "pioneer_observer"),
    "relay": ("turns", "self_play"),
    "rescored": ("manager", "pioneer_observer"),
    "reward": ("chain", "debate"),
    "search_qa": ("router", "chain"),
    "signalling": ("turns", "self_play"),
    "sokoban": ("turns", "self_play"),
    "sudoku": ("self_play", "turns"),
    "summarization": ("refine", "manager"),
    "tic_tac_toe": ("self_play", "turns"),
    "tools": ("manager", "refine"),
    "translation": ("majority_vote", "debate"),
    "twenty_questions": ("mixture", "chain"),
    "world_model": ("chain", "debate"),
    "writing": ("turns", "single_turn"),
}
"""World -> two workflows it can be played with. Where it has one seat they are those of teams."""

TRIED = {workflow for both in FITS.values() for workflow in both}
MORE = {
    name: ("majority_vote", "refine") if len(make(name).agents) == 1 else ("turns", "single_turn")
    for name in ALL
    if name not in FITS
}
"""The same for worlds that are new."""
NEW = sorted(SPECS.keys() - TRIED - FORKING)
"""Workflows that are new."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    **NEEDS,
    "code": {"max_attempts": 1, "test_timeout": 1.0},
    "class_completion": {"max_turns": 1},
    "code_collaboration": {"max_turns": 1},
    "search_qa": {"prompts": "short", "max_turns": 1},
    "tools": {"tasks": "arithmetic", "call_format": "short", "max_turns": 2},
    "twenty_questions": {"style": "short", "max_questions": 2},
    "tic_tac_toe": {"style": "short", "teaches": "any"},
    "negotiation": {"style": "short", "max_turns": 2},
    "kuhn_poker": {"style": "short", "teaches": "any"},
    "leduc": {"style": "short", "teaches": "any"},
    "connect_four": {"level": 1, "style": "short", "teaches": "any"},
    "hanabi": {"level": 1, "style": "short", "teaches": "any"},
    "writing": {"preset": "short", "instructions": ["short", "long"]},
    "debate": {"prompts": "short", "topics": "arithmetic"},
    "plan_path": {"style": "short"},
    "sokoban": {"style": "short"},
    "sudoku": {"style": "short"},
}
"""Settings that keep prompts and episodes short."""


GAMES = {"kuhn_poker", "tic_tac_toe", "leduc", "connect_four", "hanabi", "signalling"}
"""Worlds that an illegal answer ends before everybody has spoken."""


class Varied(Wrapped):
    """A world for models without any knowledge: its pay differs a little with every word that is
    said, so that siblings differ; and where it is a game, a legal move is made whatever is said."""

    def __init__(self, environment: Environment, legal: bool) -> None:
        super().__init__(environment)
        self.legal = legal
        self._seen: dict[str, list[Message]] = {}

    def spawn(self) -> Environment:
        return Varied(self.environment.spawn(), self.legal)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return self._noted(await self.reset_underneath(task, seed))

    async def step(self, actions: dict[str, Message]) -> StepResult:
        said = dict(actions)
        if self.legal:
            for agent in said:
                move = self.expert(agent, self._seen[agent]) or ""
                said[agent] = Message(move, Role.ASSISTANT, agent=agent)
        result = self._noted(await self.step_underneath(said))
        more = reward_of("/".join(message.content for message in actions.values()))
        for agent in actions:
            paid = result.rewards.get(agent, Reward(0.0))
            result.rewards[agent] = Reward(paid.value + more, paid.components)
        return result

    def _noted(self, result: StepResult) -> StepResult:
        self._seen |= {agent: seen.messages for agent, seen in result.observations.items()}
        return result


def grid() -> list[Any]:
    """Every combination. Those without the mark `slow` hold every world once, and as often with
    its first workflow or algorithm as with its second."""
    found = []
    for number, (world, workflows) in enumerate(sorted((FITS | MORE).items())):
        for place, workflow in enumerate(workflows):
            for index, algorithm in enumerate(ALGORITHMS):
                fast = (place, index) == (number % 2, number // 2 % 2)
                marks = [] if fast else [pytest.mark.slow]
                name = f"{world}-{workflow}-{algorithm}"
                found.append(pytest.param(world, workflow, algorithm, marks=marks, id=name))
    for workflow in NEW:
        world = "math" if SPECS[workflow].single_agent else "length"
        for algorithm in ALGORITHMS:
            name = f"{world}-{workflow}-{algorithm}"
            marks = [pytest.mark.slow] * (algorithm != ALGORITHMS[0])
            found.append(pytest.param(world, workflow, algorithm, marks=marks, id=name))
    return found


def config_of(
    world: Environment, workflow: str, algorithm: str, model: str, folder: Path, steps: int
) -> ExperimentConfig:
    """A policy for each agent."""
    seats = world.agents if len(world.agents) > 1 else ("ann", "ben")
    if len(world.agents) == 1 and workflow == "pioneer_observer":
        seats = registry.load("workflows", workflow)().agents
    return ExperimentConfig(
        output_dir=str(folder / "run"),
        model={"model_name_or_path": model},
        workflow={"name": workflow},
        agents={name: {"policy": name} for name in seats},
        policies={name: {} for name in seats},
        generation={"max_new_tokens": 3},
        training={
            "algorithm": algorithm,
            "num_iterations": steps,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
            "threads": 1,
        },
        **{algorithm: {"group_size": 2}},
    )


@pytest.mark.parametrize(("name", "workflow", "algorithm"), grid())
def test_a_world_trains_a_team(
    name: str,
    workflow: str,
    algorithm: str,
    small: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    steps = 1 if request.node.get_closest_marker("slow") is None else 2
    plugin: Callable[..., Any] = registry.load("environments", name)
    world = as_environment(plugin(**ARGUMENTS.get(name, {})))
    watch = Watch()
    parts = LiveObjects(environments=[Varied(world, name in GAMES)], callbacks=[watch])
    run = build(config_of(world, workflow, algorithm, small, tmp_path, steps), parts)
    history = run_to_end(run).history
    assert [row["step"] for row in history if row.get("loss") is not None] == [1, 2][:steps]
    for row in history:
        assert math.isfinite(row["loss"]) and row["episodes/failed"] == 0
    after = weights(run)
    moved = {policy for policy, before in watch.before.items() if (after[policy] != before).any()}
    assert moved == set(after), "every policy has learned"


def test_every_world_and_every_workflow_is_in_the_grid() -> None:
    tried = [parameter.values for parameter in grid()]
    assert {world for world, _, _ in tried} == set(ALL)
    assert {workflow for _, workflow, _ in tried} | FORKING == set(registry.names("workflows"))
    assert all(len(set(both)) == 2 for both in FITS.values())


def test_the_fast_part_of_the_grid_has_every_world_and_either_algorithm() -> None:
    fast = [each.values for each in grid() if not each.marks and each.values[1] not in NEW]
    assert [world for world, _, _ in fast] == sorted(FITS | MORE)
    taken = [
        ((FITS | MORE)[world].index(workflow), algorithm) for world, workflow, algorithm in fast
    ]
    assert min(taken.count((place, name)) for place in (0, 1) for name in ALGORITHMS) >= 5
