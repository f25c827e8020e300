"""What a user expects first of all: it learns. A tiny model really improves, from the seed up, on
held-out tasks."""

import gc
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import psutil
import pytest
from benchmarks.learning.models import fresh

from logged_rows import gain, lower_bound
from mrlm import Callback, ExperimentConfig, Message, load_config, run_experiment
from mrlm.core.environment import Environment, SimulatedEnvironment
from mrlm.core.types import Observation, Reward, StepResult, Task
from places import ROOT

pytestmark = pytest.mark.system


class Bandit(SimulatedEnvironment):
    """One token, paid for being a letter."""

    blocking = False

    def reset(self, seed: int = 0) -> Observation:
        return Observation([Message("Say a letter.")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation(done=True), Reward(
            float(action.content[:1] in "abcdefghijklmnopqrstuvwxyz")
        )


RL = {
    "reinforce": {"baseline": "mean"},
    "rloo": {"group_size": 8},
    "grpo": {"group_size": 8},
    "magrpo": {"group_size": 8},
    "ppo": {"update_epochs": 1},
    "ippo": {"update_epochs": 1, "critic": "separate"},
    "c3": {"group_size": 2, "alternatives": 3},
    "ccpo": {"group_size": 8},
}


def improvement(tmp_path: Path, algorithm: str, seed: int) -> float:
    settings = ", ".join(f"{key}: {value}" for key, value in RL[algorithm].items())
    size = 4 if "group_size" in RL[algorithm] else 32
    (tmp_path / "c.yaml").write_text(
        f"""
environments: [{{env_type: "test_learns:Bandit"}}]
training: {{algorithm: {algorithm}, num_iterations: 12, batch_size: {size}, learning_rate: 3e-3,
  seed: {seed}, report_to: none}}
{algorithm}: {{{settings}}}
generation: {{max_new_tokens: 1}}
output_dir: {tmp_path / "run"}
"""
    )
    return gain(run_experiment(load_config(tmp_path / "c.yaml")).history)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(n, marks=[pytest.mark.slow] * (n != "ppo")) for n in RL]
)
def test_every_policy_gradient_learns_a_bandit(algorithm: str, tmp_path: Path) -> None:
    """Lower 95 % bound of the improvement over three seeds is above 0."""
    gains = [improvement(tmp_path, algorithm, seed) for seed in range(3)]
    assert lower_bound(gains) > 0, gains


class Duet(Environment):
    """Two speak in turn, a token each; both are paid at the end for each that is a letter."""

    agents = ("first", "second")
    blocking = False
    said = ""

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.said = ""
        return StepResult({"first": Observation([Message("Say a letter.")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        (message,) = actions.values()
        self.said += message.content[:1] or " "
        if len(self.said) == 1:
            return StepResult({"second": Observation([Message(f"After {self.said}:")])})
        paid = Reward(sum(letter in ascii_lowercase for letter in self.said) / 2)
        return StepResult(rewards=dict.fromkeys(self.agents, paid), done=True)


@pytest.mark.slow
def test_a_team_learns_from_its_critic(tmp_path: Path) -> None:
    """Lower 95 % bound of what two agents gain by MAPPO, over three seeds, is above 0."""
    (tmp_path / "c.yaml").write_text(
        f"""
environments: [{{env_type: "test_learns:Duet"}}]
training: {{algorithm: mappo, num_iterations: 14, batch_size: 32, learning_rate: 2e-3,
  critic_learning_rate: 2e-3, report_to: none}}
mappo: {{update_epochs: 1}}
generation: {{max_new_tokens: 1}}
output_dir: {tmp_path / "run"}
"""
    )
    runs = [load_config(tmp_path / "c.yaml", [f"training.seed={seed}"]) for seed in range(3)]
    assert lower_bound([gain(run_experiment(run).history) for run in runs]) > 0


@pytest.mark.slow  # as the quickstart does
def test_cloning_an_expert_and_then_two_agents_together(tmp_path: Path) -> None:
    """The quickstart's two stages, short and on small numbers: both the supervised stage and the
    joint one raise the reward on held-out tasks."""
    config = ROOT / "configs" / "quickstart.yaml"
    short = [
        f"output_dir={tmp_path / 'run'}",
        "training.report_to=none",
        "environments=[{env_type: relay, max_number: 3}]",
        "evaluation.episodes=12",
        "stages.0.training.num_iterations=60",
        "stages.1.training.num_iterations=3",
        "stages.0.evaluation.every=null",
        "stages.1.evaluation.every=null",
    ]
    result = run_experiment(load_config(config, short))
    warm = [r for r in result.history if r["stage"] == 0 and r.get("eval/reward/mean") is not None]
    joint = [r for r in result.history if r["stage"] == 1 and r.get("reward/mean") is not None]
    assert warm[-1]["eval/reward/mean"] > warm[0]["eval/reward/mean"] + 0.2
    assert all(math.isfinite(row["loss"]) for row in joint)


def test_preferences_are_learned(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": str(i + 2)} for i in range(8)
    ]
    config = ExperimentConfig(
        training={
            "algorithm": "dpo",
            "num_iterations": 15,
            "learning_rate": 1e-3,
            "report_to": "none",
        },
        output_dir=str(tmp_path / "run"),
        data={"dataset": rows},
    )
    history = run_experiment(config).history
    assert history[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-5)
    assert history[-1]["rewards/margins"] > 0.5 and history[-1]["rewards/accuracies"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("steps", [600, 1200])
def test_steps_do_not_grow(steps: int, tmp_path: Path) -> None:
    """Resident memory grows by less than 1 MB in 1,000 steps, after the first 200 have filled the
    caches. Taken is the middle one of the slopes between any two looks at it."""
    seen: list[int] = []

    class Watch(Callback):
        def on_step_end(self, run: Any, metrics: Any) -> None:
            if run.step > 200 and run.step % 20 == 0:
                gc.collect()
                seen.append(psutil.Process().memory_info().rss)

    model = fresh(tmp_path / "model", "matrix", 0)
    (tmp_path / "c.yaml").write_text(
        f"""
model: {{model_name_or_path: {model}}}
environments: [{{env_type: relay}}]
training: {{algorithm: magrpo, num_iterations: {steps}, batch_size: 1, report_to: none}}
generation: {{max_new_tokens: 2}}
output_dir: {tmp_path / "run"}
"""
    )
    run_experiment(load_config(tmp_path / "c.yaml"), callbacks=[Watch()])
    slope = np.median([(b - a) / (20 * (j - i)) for i, a, j, b in pairs(seen)]) * 1000
    assert len(seen) == (steps - 200) // 20
    assert slope < 1e6, f"{slope / 1e6:.2f} MB per 1,000 steps"


def pairs(seen: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Any two numbers with their places, the earlier one first."""
    return [(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(seen), 2)]
