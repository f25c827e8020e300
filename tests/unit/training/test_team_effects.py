"""Effects of agents as metrics of an evaluation: one agent is read and rewarded, one is neither."""

from pathlib import Path
from typing import Any

import pytest

from mrlm import MAGRPOTrainer, SimulatedEnvironment, run_experiment
from mrlm.build.policies import LiveObjects
from mrlm.config import EvaluationConfig, parse_config
from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task

pytestmark = pytest.mark.system


class Ignoring(Environment):
    """The last of three agents reads the first and not the second; the reward is the share of
    different characters that the first wrote."""

    agents = ("heard", "ignored", "last")
    blocking = False
    reward_range = (0.0, 1.0)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.said: list[str] = []
        self.number = seed
        return self.asked(f"go {seed}")

    def step(self, actions: dict[str, Message]) -> StepResult:
        ((_, message),) = actions.items()
        self.said.append(message.content)
        if len(self.said) < 3:
            return self.asked("go" if len(self.said) == 1 else f"{self.said[0]}?")
        paid = Reward(len(set(self.said[0])) / 6)
        return StepResult(rewards=dict.fromkeys(self.agents, paid), done=True)

    def asked(self, text: str) -> StepResult:
        return StepResult({self.agents[len(self.said)]: Observation([Message(text)])})


class Seedless(SimulatedEnvironment):
    agents = ("a", "b")

    def reset(self) -> Any:  # type: ignore[override]
        return {agent: Observation([Message("go")]) for agent in self.agents}

    def step(self, action: Any) -> Any:
        return Observation(done=True), Reward(0.0)


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "environments": [{"env_type": f"{__name__}:Ignoring"}],
        "training": {
            "algorithm": "magrpo",
            "num_iterations": 1,
            "batch_size": 2,
            "learning_rate": 1e-2,
            "report_to": "none",
            "checks": "off",
        },
        "magrpo": {"group_size": 4},
        "generation": {"max_new_tokens": 6},
        "evaluation": {"episodes": 4, "greedy": False, "effects": 4},
        **changes,
    }


def effects(row: dict[str, Any]) -> dict[str, float]:
    names = ("eval/marginal/", "eval/influence/", "eval/changed/")
    return {name: value for name, value in row.items() if name.startswith(names)}


def test_an_ignored_agent_has_no_effect_and_one_that_matters_has(tmp_path: Path) -> None:
    data = settings(output_dir=str(tmp_path / "run"))
    first, *_, last = run_experiment(parse_config(data, [], "the test")).history
    for row in (first, last):
        found = effects(row)
        assert set(found) == {
            "eval/marginal/heard", "eval/marginal/ignored", "eval/marginal/last",
            "eval/influence/heard/ignored", "eval/influence/heard/last",
            "eval/influence/ignored/last", "eval/changed/heard/ignored", "eval/changed/heard/last",
            "eval/changed/ignored/last",
        }  # fmt: skip
        assert found["eval/marginal/heard"] == pytest.approx(row["eval/reward/mean"])
        assert row["eval/reward/mean"] > 0.1
        assert found["eval/marginal/ignored"] == found["eval/marginal/last"] == 0.0
        assert found["eval/influence/heard/last"] > 1e-4
        assert found["eval/changed/heard/ignored"] == found["eval/changed/ignored/last"] == 0.0
        assert found["eval/influence/heard/ignored"] == found["eval/influence/ignored/last"] == 0.0
    # measured with the current weights
    changed = "eval/influence/heard/last"
    assert effects(first)[changed] != effects(last)[changed]


def test_they_are_the_same_through_the_trainer_and_change_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {}
    few = EvaluationConfig(episodes=4).replays(1, 8), EvaluationConfig(episodes=16).replays(9, 8)
    assert few == (0, 2)  # of 8 + 4 and of 72 + 16 episodes
    monkeypatch.setattr(EvaluationConfig, "replays", lambda *_: 14)  # two of five each, and more
    for count in (0, 4, None):
        data = settings(output_dir=str(tmp_path / f"run{count}"))
        data["evaluation"] = {**data["evaluation"], "effects": count}
        rows[count] = run_experiment(parse_config(data, [], "the test")).history
    made = MAGRPOTrainer(
        environment=Ignoring,
        num_iterations=1,
        batch_size=2,
        learning_rate=1e-2,
        report_to="none",
        group_size=4,
        max_new_tokens=6,
        output_dir=str(tmp_path / "trainer"),
        evaluation={"episodes": 4, "greedy": False, "effects": 4},
    )
    for one, other, trained, few in zip(
        rows[0], rows[4], made.train().history, rows[None], strict=True
    ):
        assert {*effects(few)} == {*effects(other)} and effects(few) != effects(other)
        assert few["eval/marginal/heard"] > 0.1
        assert effects(one) == {} and effects(other) == effects(trained) != {}
        timed = {name for name in other if "second" in name} | {"time"}
        for more in (other, few):
            assert {k: v for k, v in more.items() if k not in timed | effects(other).keys()} == {
                k: v for k, v in one.items() if k not in timed
            }


@pytest.mark.parametrize(
    ("changes", "environment", "reason"),
    [
        ({"environments": [{"env_type": "math"}]}, None, "the team has one agent"),
        ({}, Seedless, "its reset takes neither seed nor task"),
        (
            {
                "environments": [{"env_type": "relay"}],
                "agents": {"first": {}, "second": {"policy": "far"}},
                "policies": {
                    "near": {},
                    "far": {"endpoint": {"base_url": "http://localhost:1", "model": "m"}},
                },
            },
            None,
            "policy 'far' behind an API",
        ),
        (
            {"environments": [{"env_type": "relay"}], "distributed": {"enabled": True}},
            None,
            "in one process",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    changes: dict[str, Any], environment: Any, reason: str, tmp_path: Path
) -> None:
    from mrlm.build.run import plan_of

    data = settings(output_dir=str(tmp_path / "run"), **changes)
    parts = LiveObjects()
    if environment is not None:
        data.pop("environments")
        parts = LiveObjects(environments=[environment])
    with pytest.raises(ConfigError, match=reason):
        plan_of(parse_config(data, [], "the test"), parts)
