"""The config of an experiment: sections, YAML, overrides, aliases. No torch at import; the config
classes of algorithms (`PPOConfig`) are made when they are first used."""

from collections.abc import Callable
from functools import partial
from typing import Any

from mrlm.core.faces import faces
from mrlm.core.lazy import face

HOME = {
    name: f"mrlm.config.{module}"
    for module, names in {
        "aliases": "FlatWords",
        "engine_section": "EngineConfig",
        "experiment": "ExperimentConfig diff",
        "flat_words": "split_config",
        "loading": "load_config parse_config",
        "play_sections": "AgentConfig EnvironmentConfig EvaluationConfig GenerationConfig "
        "OpponentsConfig WorkflowConfig",
        "policy_sections": "EndpointConfig LoraConfig ModelConfig PolicyConfig",
        "sections": "AsynchronyConfig DataConfig DistributedConfig RecordConfig ScheduleConfig "
        "StageConfig TrainingConfig",
    }.items()
    for name in names.split()
}
"""Public name -> the module it lives in; imported at first use."""


def _derived() -> dict[str, Callable[[], Any]]:
    from mrlm.config.flat_words import config_class

    names = [name for name, face in faces().items() if face.kind == "config"]
    return {name: partial(config_class, name) for name in names}


__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, HOME, derived=_derived)
