"""The shared types: messages, tasks, episodes, environments, errors. No torch, no I/O. Names are
loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mrlm.core.lazy import face

if TYPE_CHECKING:
    from mrlm.core.environment import BaseEnvironment as BaseEnvironment
    from mrlm.core.environment import Environment as Environment
    from mrlm.core.environment import SimulatedEnvironment as SimulatedEnvironment
    from mrlm.core.environment import as_environment as as_environment
    from mrlm.core.environment import check_environment as check_environment
    from mrlm.core.episodes import Episode as Episode
    from mrlm.core.episodes import Group as Group
    from mrlm.core.language_model import LLMEnvironment as LLMEnvironment
    from mrlm.core.types import Completion as Completion
    from mrlm.core.types import EnvironmentMode as EnvironmentMode
    from mrlm.core.types import Message as Message
    from mrlm.core.types import MessageRole as MessageRole
    from mrlm.core.types import MessageType as MessageType
    from mrlm.core.types import Observation as Observation
    from mrlm.core.types import Reward as Reward
    from mrlm.core.types import Role as Role
    from mrlm.core.types import Rollout as Rollout
    from mrlm.core.types import SamplingParams as SamplingParams
    from mrlm.core.types import StepResult as StepResult
    from mrlm.core.types import Task as Task
    from mrlm.core.types import Turn as Turn

_HOME = {
    "BaseEnvironment": "mrlm.core.environment",
    "Completion": "mrlm.core.types",
    "Environment": "mrlm.core.environment",
    "EnvironmentMode": "mrlm.core.types",
    "Episode": "mrlm.core.episodes",
    "Group": "mrlm.core.episodes",
    "LLMEnvironment": "mrlm.core.language_model",
    "Message": "mrlm.core.types",
    "MessageRole": "mrlm.core.types",
    "MessageType": "mrlm.core.types",
    "Observation": "mrlm.core.types",
    "Reward": "mrlm.core.types",
    "Role": "mrlm.core.types",
    "Rollout": "mrlm.core.types",
    "SamplingParams": "mrlm.core.types",
    "SimulatedEnvironment": "mrlm.core.environment",
    "StepResult": "mrlm.core.types",
    "Task": "mrlm.core.types",
    "Turn": "mrlm.core.types",
    "as_environment": "mrlm.core.environment",
    "check_environment": "mrlm.core.environment",
}
"""Public name -> its module."""

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, _HOME)
