"""The config of an experiment: sections, YAML, overrides, aliases. No torch at import; the config
classes of algorithms (`PPOConfig`) are made when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mrlm.core.faces import faces
from mrlm.core.lazy import face

HOME = {
    "AgentConfig": "mrlm.config.play_sections",
    "AsynchronyConfig": "mrlm.config.sections",
    "DataConfig": "mrlm.config.sections",
    "DistributedConfig": "mrlm.config.sections",
    "EndpointConfig": "mrlm.config.policy_sections",
    "EngineConfig": "mrlm.config.play_sections",
    "EnvironmentConfig": "mrlm.config.play_sections",
    "EvaluationConfig": "mrlm.config.play_sections",
    "ExperimentConfig": "mrlm.config.experiment",
    "FlatWords": "mrlm.config.flat_words",
    "GenerationConfig": "mrlm.config.play_sections",
    "LoraConfig": "mrlm.config.policy_sections",
    "ModelConfig": "mrlm.config.policy_sections",
    "OpponentsConfig": "mrlm.config.play_sections",
    "PolicyConfig": "mrlm.config.policy_sections",
    "ScheduleConfig": "mrlm.config.sections",
    "StageConfig": "mrlm.config.sections",
    "TrainingConfig": "mrlm.config.sections",
    "WorkflowConfig": "mrlm.config.play_sections",
    "diff": "mrlm.config.experiment",
    "load_config": "mrlm.config.loading",
    "parse_config": "mrlm.config.loading",
    "split_config": "mrlm.config.flat_words",
}
"""Public name -> the module it lives in; imported at first use."""


def _derived() -> dict[str, Callable[[], Any]]:
    from mrlm.config.algorithm_configs import config_class

    return {
        name: partial(config_class, name) for name, each in faces().items() if each.kind == "config"
    }


__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, HOME, derived=_derived)
