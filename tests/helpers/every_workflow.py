"""A world that pays by what is said, and a config that plays it with any workflow."""

import json
from pathlib import Path

import pytest
from benchmarks.learning.models import fresh
from benchmarks.worlds import reward_of

from mrlm import ExperimentConfig
from mrlm.core import registry
from mrlm.core.environment import Environment
from mrlm.core.types import Message, Observation, Reward, StepResult, Task

WORKFLOWS = registry.names("workflows")


class Talk(Environment):
    """Two rounds, in which every answer has another reward."""

    max_turns: int | None = 2

    def __init__(self, agents: tuple[str, ...]) -> None:
        self.agents, self.round, self.seed = agents, 0, 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.round, self.seed = 0, seed or 0
        return StepResult({agent: Observation([Message(f"{seed}?")]) for agent in self.agents})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.round += 1
        rewards = {
            agent: Reward(reward_of(f"{self.seed}{agent}{message.content}"))
            for agent, message in actions.items()
        }
        if self.round == self.max_turns:
            return StepResult(rewards=rewards, done=True)
        again = {agent: Observation([Message("again")]) for agent in self.agents}
        return StepResult(again, rewards)


def config_of(workflow: str, model: str, folder: Path) -> ExperimentConfig:
    """A step and two evaluations; the second policy is frozen."""
    agents = registry.load("workflows", workflow)().agents or ("ann", "ben", "cid")
    place = WORKFLOWS.index(workflow)
    algorithm = ALGORITHMS[0] if workflow in FORKING else ALGORITHMS[place % 2]
    more = {"joint_mode": "cross"} if workflow == "cross" else {}
    more = more if algorithm == "magrpo" else {"update_epochs": 1}
    return ExperimentConfig(
        output_dir=str(folder),
        model={"model_name_or_path": model},
        workflow={"name": workflow},
        agents={name: {"policy": name} for name in agents},
        policies={name: {"trainable": name != agents[1]} for name in agents},
        generation={"max_new_tokens": 3},
        evaluation={"episodes": 1, "every": 1},
        record={"tokens": "all"},
        training={
            "algorithm": algorithm,
            "num_iterations": 1,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
            "threads": 1,
            "seed": place,
        },
        **{algorithm: {"group_size": 2, **more}},
    )


ALGORITHMS = ("magrpo", "mappo")
SPECS = {name: registry.load("workflows", name).spec for name in registry.names("workflows")}
FORKING = {name for name, spec in SPECS.items() if spec.forks or spec.combines}
"""Workflows with several answers from one state, which not every algorithm can credit."""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model of a few thousand weights that can read long prompts."""
    folder = fresh(tmp_path_factory.mktemp("small") / "model", "matrix", 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return str(folder)
