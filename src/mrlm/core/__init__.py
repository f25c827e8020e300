"""The shared types: messages, tasks, episodes, environments, errors. No torch, no I/O. Names are
loaded on first use."""

from collections.abc import Callable
from typing import Any

from mrlm.core.lazy import face

_NAMES = {
    "environment": "BaseEnvironment Environment SimulatedEnvironment as_environment "
    "check_environment",
    "episodes": "Episode Group",
    "language_model": "LLMEnvironment",
    "types": "Completion EnvironmentMode Message MessageRole MessageType Observation Reward Role "
    "Rollout SamplingParams StepResult Task Turn",
}
HOME = {name: f"mrlm.core.{module}" for module, names in _NAMES.items() for name in names.split()}
"""Public name -> its module."""

__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, HOME)
