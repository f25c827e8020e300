"""Written by `python -m scripts.faces`."""

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
