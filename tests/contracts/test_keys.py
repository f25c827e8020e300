"""Every key of a config does something: a key that nothing reads is a promise nobody keeps.

For the sections the proof is a run: tiny experiments are trained, and what the library outside
`mrlm.config` and the plan of a dry run (which only describes) reads from a section is recorded.
(Settings of algorithms: `test_effects.py`.)
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mrlm as package
from hosted import Hosted
from mrlm import distributed
from mrlm.build.run import build
from mrlm.config import ExperimentConfig, engine_section, play_sections, policy_sections, sections
from mrlm.core.errors import ConfigError
from mrlm.core.types import EnvironmentMode
from mrlm.experiment import dry_run, run_experiment
from mrlm.runs import collect_trajectories, evaluate_model

SOURCES = Path(package.__file__).parent
CONFIG = str(SOURCES / "config") + os.sep
PLAN = str(SOURCES / "planning" / "plan.py")
SECTIONS: tuple[type[Any], ...] = (
    ExperimentConfig,
    sections.TrainingConfig,
    policy_sections.ModelConfig,
    policy_sections.PolicyConfig,
    policy_sections.EndpointConfig,
    policy_sections.PriceConfig,
    policy_sections.LoraConfig,
    sections.ScheduleConfig,
    play_sections.AgentConfig,
    play_sections.EnvironmentConfig,
    play_sections.WorkflowConfig,
    engine_section.EngineConfig,
    play_sections.GenerationConfig,
    play_sections.EvaluationConfig,
    play_sections.OpponentsConfig,
    sections.DataConfig,
    sections.DistributedConfig,
    sections.StageConfig,
)
ANSWERS = {
    "warmup",
    "sampling",
    "constructor_arguments",
    "parameters",
    "changes",
    "stage_configs",
    "algorithm_settings",
    "of_server",
    "lora_of",
}
"""Functions of sections that hand on what they read."""
CHECKED = {"EnvironmentConfig.mode"}
"""Keys with one legal value: writing it changes nothing, writing another is refused."""

BY_TRACKERS = {"TrainingConfig.wandb"}
"""Keys that a tracker reads in the resolved config it is given (`test_tracking.py`)."""
BY_TEAMS = {"AgentConfig.formatter", "AgentConfig.formatter_function"}
"""Keys that `Team.from_pretrained` reads in a `team.yaml` (`borders/test_published.py`)."""


class Handed(dict[str, Any]):
    """A section as a mapping, which notes what is looked up in it."""

    def __init__(self, data: dict[str, Any], note: Callable[[str], None]) -> None:
        super().__init__(data)
        self._note = note

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)


def reader() -> str | None:
    """The file outside `mrlm.config` that a read serves; `None` if it serves none: it comes from
    the tests, from pydantic, or from code that only checks or copies."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(CONFIG):
            if frame.f_code.co_name not in ANSWERS:
                return None
            frame = frame.f_back
            continue
        if frame.f_code.co_name == "getattribute":  # a property of a section was asked for
            frame = frame.f_back
            continue
        return name if name.startswith(str(SOURCES) + os.sep) and name != PLAN else None
    return None


def recording(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """From here on, `Section.field` of everything that is read."""
    read: set[str] = set()

    def watch(cls: type[Any]) -> None:
        fields = set(cls.model_fields)

        def getattribute(self: Any, name: str) -> Any:
            value = object.__getattribute__(self, name)
            if name in fields and f"{cls.__name__}.{name}" not in read and reader():
                read.add(f"{cls.__name__}.{name}")
            return value

        monkeypatch.setattr(cls, "__getattribute__", getattribute, raising=False)

    for cls in SECTIONS:
        watch(cls)
    dump = policy_sections.LoraConfig.model_dump

    def model_dump(self: Any, **options: Any) -> dict[str, Any]:
        return Handed(dump(self, **options), lambda key: read.add(f"LoraConfig.{key}"))

    monkeypatch.setattr(policy_sections.LoraConfig, "model_dump", model_dump)
    return read


def config(name: str, algorithm: str = "grpo", **changes: Any) -> ExperimentConfig:
    base: dict[str, Any] = {
        "experiment_name": name,
        "training": {
            "algorithm": algorithm,
            "num_iterations": 1,
            "batch_size": 2,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 2},
    }
    return ExperimentConfig(**base).merged(changes)


RELAY = {"env_type": "relay", "max_number": 5}


def played() -> None:
    """Two agents, one of them frozen, evaluated on the way; the end of a run by epochs."""
    run_experiment(
        config(
            "played",
            grpo={"group_size": 2},
            environments=[RELAY],
            policies={"first": {"lora": {"r": 2}}, "second": {"trainable": False}},
            agents={
                "first": {"generation": {"max_new_tokens": 3}, "system_prompt": "Add."},
                "second": {"policy": "second"},
            },
            evaluation={"episodes": 2, "every": 1},
            training={"num_iterations": None, "num_epochs": 2, "batch_size": 1},
        )
    )


def supervised() -> None:
    """Rows of a list."""
    rows = [{"prompt": "2+2=", "completion": str(answer)} for answer in range(4)]
    data = {"dataset": rows, "max_rows": 3, "streaming": True}
    run_experiment(config("supervised", "sft", data=data))


def valued() -> None:
    """One critic for the team, from a model of its own."""
    training = {"critic_model": "mrlm/tiny"}
    run_experiment(config("valued", "mappo", environments=[RELAY], training=training))


def staged() -> None:
    """Two stages, the first supervised by the world's expert."""
    sft = {"algorithm": "sft", "num_iterations": 1}
    run_experiment(
        config(
            "staged",
            environments=[RELAY],
            grpo={"group_size": 2},
            stages=[{"name": "form", "training": sft}, {"name": "play"}],
        )
    )


def against_the_past() -> None:
    """A game of two seats, a snapshot, an evaluation."""
    poker = {"env_type": "kuhn_poker", "style": "short"}
    run_experiment(
        config(
            "past",
            "spiral",
            environments=[poker],
            policies={"player": {}},
            opponents={"every": 1, "games": 1},
            evaluation={"episodes": 1},
        )
    )


def only_looked_at() -> None:
    """What trains nothing: a plan, an evaluation, a collection."""
    plain = config("looked-at", environments=[RELAY], grpo={"group_size": 2})
    dry_run(plain)
    evaluate_model(plain, 1, 1, True)
    collect_trajectories(plain, 1)


def refused() -> None:
    """A policy that is not there, of which something is said all the same."""
    nobody = {"enabled": True, "strategy": "ray", "ray": {"policies": {"nobody": {}}}}
    with pytest.raises(ConfigError, match="nobody"):
        run_experiment(config("elsewhere", environments=[RELAY], distributed=nobody))


def served() -> None:
    """One of two agents is behind an API; nobody is asked yet."""
    endpoint = {"base_url": "http://localhost:1", "model": "some-model"}
    policies = {"first": {"endpoint": endpoint}, "second": {}}
    build(config("served", environments=[RELAY], policies=policies))


def behind_servers() -> None:
    """A world and an engine that are servers; the engine is not asked yet."""
    with Hosted(["relay"]) as host:
        world = {**RELAY, "remote": True, "server_address": host.server.address}
        engine = {"name": "vllm", "base_url": "http://localhost:1"}
        policies = {"both": {}}
        build(config("behind", environments=[world], engine=engine, policies=policies))


def cut_up() -> None:
    """A policy that is sharded, though over one process."""
    os.environ["WORLD_SIZE"] = "1"  # as torchrun --nproc-per-node 1 does
    try:
        run_experiment(
            config("cut", environments=[RELAY], distributed={"enabled": True, "strategy": "fsdp"})
        )
    finally:
        del os.environ["WORLD_SIZE"]
        distributed.stop()


def eased() -> None:
    """A run as it is after it has gone back to a checkpoint."""
    build(config("eased", environments=[RELAY], training={"rollback": 1})).ease(1)


def test_every_key_of_every_section_is_read_by_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    read = recording(monkeypatch)
    for experiment in (
        played,
        supervised,
        valued,
        staged,
        against_the_past,
        only_looked_at,
        refused,
        served,
        behind_servers,
        cut_up,
        eased,
    ):
        experiment()
    every = {f"{cls.__name__}.{name}" for cls in SECTIONS for name in cls.model_fields}
    missing = sorted(every - read - CHECKED - BY_TRACKERS - BY_TEAMS)
    assert missing == [], " ".join(missing)
    assert sorted(CHECKED & read) == [], "these are read now"


def test_describing_and_copying_a_config_is_no_use_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = recording(monkeypatch)
    only_looked_at()
    plain = config("copied")
    assert plain.merged({"training.optimizer": "sgd"}).training.optimizer == "sgd"
    assert "optimizer: adamw" in plain.to_yaml()
    assert "GenerationConfig.top_p" in read and "EngineConfig.batch_size" in read
    assert not {"TrainingConfig.optimizer", "TrainingConfig.save_steps"} & read


def test_a_key_with_one_legal_value_refuses_every_other() -> None:
    for mode in EnvironmentMode:
        world = {**RELAY, "mode": mode.value}
        if mode is EnvironmentMode.CLIENT:
            config("client", environments=[world])
        else:
            with pytest.raises(ConfigError, match="mode"):
                config("server", environments=[world])
