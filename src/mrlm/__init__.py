"""MRLM: multi-agent reinforcement learning of language models.

Names are loaded when they are first used, so that `import mrlm` is quick and needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mrlm.core.lazy import face

if TYPE_CHECKING:
    from mrlm.algorithms.a2c import A2C as A2C
    from mrlm.algorithms.a2c import A2CConfig as A2CConfig
    from mrlm.algorithms.a2c import A2CTrainer as A2CTrainer
    from mrlm.algorithms.at_grpo import ATGRPO as ATGRPO
    from mrlm.algorithms.at_grpo import ATGRPOConfig as ATGRPOConfig
    from mrlm.algorithms.at_grpo import ATGRPOTrainer as ATGRPOTrainer
    from mrlm.algorithms.cory import CORY as CORY
    from mrlm.algorithms.cory import CORYConfig as CORYConfig
    from mrlm.algorithms.cory import CORYTrainer as CORYTrainer
    from mrlm.algorithms.dpo import DPO as DPO
    from mrlm.algorithms.dpo import DPOConfig as DPOConfig
    from mrlm.algorithms.dpo import DPOTrainer as DPOTrainer
    from mrlm.algorithms.dr_mas import DrMAS as DrMAS
    from mrlm.algorithms.dr_mas import DrMASConfig as DrMASConfig
    from mrlm.algorithms.dr_mas import DrMASTrainer as DrMASTrainer
    from mrlm.algorithms.grpo import GRPO as GRPO
    from mrlm.algorithms.grpo import GRPOConfig as GRPOConfig
    from mrlm.algorithms.grpo import GRPOTrainer as GRPOTrainer
    from mrlm.algorithms.happo import HAPPO as HAPPO
    from mrlm.algorithms.happo import HAPPOConfig as HAPPOConfig
    from mrlm.algorithms.happo import HAPPOTrainer as HAPPOTrainer
    from mrlm.algorithms.ippo import IPPO as IPPO
    from mrlm.algorithms.ippo import IACConfig as IACConfig
    from mrlm.algorithms.ippo import IACTrainer as IACTrainer
    from mrlm.algorithms.ippo import IPPOConfig as IPPOConfig
    from mrlm.algorithms.ippo import IPPOTrainer as IPPOTrainer
    from mrlm.algorithms.madpo import MADPO as MADPO
    from mrlm.algorithms.madpo import MADPOConfig as MADPOConfig
    from mrlm.algorithms.madpo import MADPOTrainer as MADPOTrainer
    from mrlm.algorithms.magrpo import MAGRPO as MAGRPO
    from mrlm.algorithms.magrpo import MAGRPOConfig as MAGRPOConfig
    from mrlm.algorithms.magrpo import MAGRPOTrainer as MAGRPOTrainer
    from mrlm.algorithms.malt import MALT as MALT
    from mrlm.algorithms.malt import MALTConfig as MALTConfig
    from mrlm.algorithms.malt import MALTTrainer as MALTTrainer
    from mrlm.algorithms.maporl import MAPoRL as MAPoRL
    from mrlm.algorithms.maporl import MAPoRLConfig as MAPoRLConfig
    from mrlm.algorithms.maporl import MAPoRLTrainer as MAPoRLTrainer
    from mrlm.algorithms.mappo import MAPPO as MAPPO
    from mrlm.algorithms.mappo import MAACConfig as MAACConfig
    from mrlm.algorithms.mappo import MAACTrainer as MAACTrainer
    from mrlm.algorithms.mappo import MAPPOConfig as MAPPOConfig
    from mrlm.algorithms.mappo import MAPPOTrainer as MAPPOTrainer
    from mrlm.algorithms.mareinforce import MAREINFORCE as MAREINFORCE
    from mrlm.algorithms.mareinforce import MAREINFORCEConfig as MAREINFORCEConfig
    from mrlm.algorithms.mareinforce import MAREINFORCETrainer as MAREINFORCETrainer
    from mrlm.algorithms.maremax import MAREMAX as MAREMAX
    from mrlm.algorithms.maremax import MAREMAXConfig as MAREMAXConfig
    from mrlm.algorithms.maremax import MAREMAXTrainer as MAREMAXTrainer
    from mrlm.algorithms.marft import MARFT as MARFT
    from mrlm.algorithms.marft import MARFTConfig as MARFTConfig
    from mrlm.algorithms.marft import MARFTTrainer as MARFTTrainer
    from mrlm.algorithms.marloo import MARLOO as MARLOO
    from mrlm.algorithms.marloo import MARLOOConfig as MARLOOConfig
    from mrlm.algorithms.marloo import MARLOOTrainer as MARLOOTrainer
    from mrlm.algorithms.marshal import MARSHAL as MARSHAL
    from mrlm.algorithms.marshal import MARSHALConfig as MARSHALConfig
    from mrlm.algorithms.marshal import MARSHALTrainer as MARSHALTrainer
    from mrlm.algorithms.matpo import MATPO as MATPO
    from mrlm.algorithms.matpo import MATPOConfig as MATPOConfig
    from mrlm.algorithms.matpo import MATPOTrainer as MATPOTrainer
    from mrlm.algorithms.online_dpo import OnlineDPO as OnlineDPO
    from mrlm.algorithms.online_dpo import OnlineDPOConfig as OnlineDPOConfig
    from mrlm.algorithms.online_dpo import OnlineDPOTrainer as OnlineDPOTrainer
    from mrlm.algorithms.ppo import PPO as PPO
    from mrlm.algorithms.ppo import PPOConfig as PPOConfig
    from mrlm.algorithms.ppo import PPOTrainer as PPOTrainer
    from mrlm.algorithms.qmix import QMIX as QMIX
    from mrlm.algorithms.qmix import QMIXConfig as QMIXConfig
    from mrlm.algorithms.qmix import QMIXTrainer as QMIXTrainer
    from mrlm.algorithms.reinforce import REINFORCE as REINFORCE
    from mrlm.algorithms.reinforce import ReinforceConfig as ReinforceConfig
    from mrlm.algorithms.reinforce import ReinforceTrainer as ReinforceTrainer
    from mrlm.algorithms.reinforce_pp import ReinforcePP as ReinforcePP
    from mrlm.algorithms.reinforce_pp import ReinforcePPConfig as ReinforcePPConfig
    from mrlm.algorithms.reinforce_pp import ReinforcePPTrainer as ReinforcePPTrainer
    from mrlm.algorithms.rema import ReMA as ReMA
    from mrlm.algorithms.rema import ReMAConfig as ReMAConfig
    from mrlm.algorithms.rema import ReMATrainer as ReMATrainer
    from mrlm.algorithms.remax import ReMax as ReMax
    from mrlm.algorithms.remax import ReMaxConfig as ReMaxConfig
    from mrlm.algorithms.remax import ReMaxTrainer as ReMaxTrainer
    from mrlm.algorithms.reward_model import BradleyTerry as BradleyTerry
    from mrlm.algorithms.reward_model import RewardModelConfig as RewardModelConfig
    from mrlm.algorithms.reward_model import RewardModelTrainer as RewardModelTrainer
    from mrlm.algorithms.rloo import RLOO as RLOO
    from mrlm.algorithms.rloo import RLOOConfig as RLOOConfig
    from mrlm.algorithms.rloo import RLOOTrainer as RLOOTrainer
    from mrlm.algorithms.router_r1 import RouterR1 as RouterR1
    from mrlm.algorithms.router_r1 import RouterR1Config as RouterR1Config
    from mrlm.algorithms.router_r1 import RouterR1Trainer as RouterR1Trainer
    from mrlm.algorithms.sac import SAC as SAC
    from mrlm.algorithms.sac import SACConfig as SACConfig
    from mrlm.algorithms.sac import SACTrainer as SACTrainer
    from mrlm.algorithms.sft import SFT as SFT
    from mrlm.algorithms.sft import SFTConfig as SFTConfig
    from mrlm.algorithms.sft import SFTTrainer as SFTTrainer
    from mrlm.algorithms.spin import SPIN as SPIN
    from mrlm.algorithms.spin import SPINConfig as SPINConfig
    from mrlm.algorithms.spin import SPINTrainer as SPINTrainer
    from mrlm.algorithms.spiral import SPIRAL as SPIRAL
    from mrlm.algorithms.spiral import SPIRALConfig as SPIRALConfig
    from mrlm.algorithms.spiral import SPIRALTrainer as SPIRALTrainer
    from mrlm.algorithms.vdn import VDN as VDN
    from mrlm.algorithms.vdn import VDNConfig as VDNConfig
    from mrlm.algorithms.vdn import VDNTrainer as VDNTrainer
    from mrlm.config import ExperimentConfig as ExperimentConfig
    from mrlm.config import TrainingConfig as TrainingConfig
    from mrlm.config import load_config as load_config
    from mrlm.core.chat import Chat as Chat
    from mrlm.core.environment import BaseEnvironment as BaseEnvironment
    from mrlm.core.environment import Environment as Environment
    from mrlm.core.environment import SimulatedEnvironment as SimulatedEnvironment
    from mrlm.core.environment import as_environment as as_environment
    from mrlm.core.environment import check_environment as check_environment
    from mrlm.core.errors import MRLMError as MRLMError
    from mrlm.core.language_model import LLMEnvironment as LLMEnvironment
    from mrlm.core.tiny_model import default_model as default_model
    from mrlm.core.types import Completion as Completion
    from mrlm.core.types import EnvironmentMode as EnvironmentMode
    from mrlm.core.types import Episode as Episode
    from mrlm.core.types import Group as Group
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
    from mrlm.engines.reward_model import RewardModel as RewardModel
    from mrlm.environments.math import BoxedReward as BoxedReward
    from mrlm.environments.qa import QASolverEnv as QASolverEnv
    from mrlm.environments.reward import RewardProcessors as RewardProcessors
    from mrlm.experiment import run_experiment as run_experiment
    from mrlm.generate import Generator as Generator
    from mrlm.learn.bases.algorithm import Algorithm as Algorithm
    from mrlm.learn.data.batch import Batch as Batch
    from mrlm.learn.data.batch import Loss as Loss
    from mrlm.learn.data.batch import Outputs as Outputs
    from mrlm.learn.learner import Learner as Learner
    from mrlm.learn.loss_tensor import LossTensor as LossTensor
    from mrlm.learn.team_learner import TeamLearner as TeamLearner
    from mrlm.play.workflow_check import check_workflow as check_workflow
    from mrlm.replays.replay import Replay as Replay
    from mrlm.replays.replay import replay as replay
    from mrlm.runs import EvalResult as EvalResult
    from mrlm.runs import TrainResult as TrainResult
    from mrlm.runs import evaluate as evaluate
    from mrlm.serving.client.environment import RemoteEnvironment as RemoteEnvironment
    from mrlm.serving.client.pool import ServerPool as ServerPool
    from mrlm.trainer import Trainer as Trainer
    from mrlm.training.run import Callback as Callback

__version__ = "0.1.0"

_WHERE = {
    "mrlm.algorithms.a2c": ("A2C", "A2CConfig", "A2CTrainer"),
    "mrlm.algorithms.at_grpo": ("ATGRPO", "ATGRPOConfig", "ATGRPOTrainer"),
    "mrlm.algorithms.cory": ("CORY", "CORYConfig", "CORYTrainer"),
    "mrlm.algorithms.dpo": ("DPO", "DPOConfig", "DPOTrainer"),
    "mrlm.algorithms.dr_mas": ("DrMAS", "DrMASConfig", "DrMASTrainer"),
    "mrlm.algorithms.grpo": ("GRPO", "GRPOConfig", "GRPOTrainer"),
    "mrlm.algorithms.happo": ("HAPPO", "HAPPOConfig", "HAPPOTrainer"),
    "mrlm.algorithms.ippo": ("IACConfig", "IACTrainer", "IPPO", "IPPOConfig", "IPPOTrainer"),
    "mrlm.algorithms.madpo": ("MADPO", "MADPOConfig", "MADPOTrainer"),
    "mrlm.algorithms.magrpo": ("MAGRPO", "MAGRPOConfig", "MAGRPOTrainer"),
    "mrlm.algorithms.malt": ("MALT", "MALTConfig", "MALTTrainer"),
    "mrlm.algorithms.maporl": ("MAPoRL", "MAPoRLConfig", "MAPoRLTrainer"),
    "mrlm.algorithms.mappo": ("MAACConfig", "MAACTrainer", "MAPPO", "MAPPOConfig", "MAPPOTrainer"),
    "mrlm.algorithms.mareinforce": ("MAREINFORCE", "MAREINFORCEConfig", "MAREINFORCETrainer"),
    "mrlm.algorithms.maremax": ("MAREMAX", "MAREMAXConfig", "MAREMAXTrainer"),
    "mrlm.algorithms.marft": ("MARFT", "MARFTConfig", "MARFTTrainer"),
    "mrlm.algorithms.marloo": ("MARLOO", "MARLOOConfig", "MARLOOTrainer"),
    "mrlm.algorithms.marshal": ("MARSHAL", "MARSHALConfig", "MARSHALTrainer"),
    "mrlm.algorithms.matpo": ("MATPO", "MATPOConfig", "MATPOTrainer"),
    "mrlm.algorithms.online_dpo": ("OnlineDPO", "OnlineDPOConfig", "OnlineDPOTrainer"),
    "mrlm.algorithms.ppo": ("PPO", "PPOConfig", "PPOTrainer"),
    "mrlm.algorithms.qmix": ("QMIX", "QMIXConfig", "QMIXTrainer"),
    "mrlm.algorithms.reinforce": ("REINFORCE", "ReinforceConfig", "ReinforceTrainer"),
    "mrlm.algorithms.reinforce_pp": ("ReinforcePP", "ReinforcePPConfig", "ReinforcePPTrainer"),
    "mrlm.algorithms.rema": ("ReMA", "ReMAConfig", "ReMATrainer"),
    "mrlm.algorithms.remax": ("ReMax", "ReMaxConfig", "ReMaxTrainer"),
    "mrlm.algorithms.reward_model": ("BradleyTerry", "RewardModelConfig", "RewardModelTrainer"),
    "mrlm.algorithms.rloo": ("RLOO", "RLOOConfig", "RLOOTrainer"),
    "mrlm.algorithms.router_r1": ("RouterR1", "RouterR1Config", "RouterR1Trainer"),
    "mrlm.algorithms.sac": ("SAC", "SACConfig", "SACTrainer"),
    "mrlm.algorithms.sft": ("SFT", "SFTConfig", "SFTTrainer"),
    "mrlm.algorithms.spin": ("SPIN", "SPINConfig", "SPINTrainer"),
    "mrlm.algorithms.spiral": ("SPIRAL", "SPIRALConfig", "SPIRALTrainer"),
    "mrlm.algorithms.vdn": ("VDN", "VDNConfig", "VDNTrainer"),
    "mrlm.config": ("ExperimentConfig", "TrainingConfig", "load_config"),
    "mrlm.core.chat": ("Chat",),
    "mrlm.core.environment": (
        "BaseEnvironment",
        "Environment",
        "SimulatedEnvironment",
        "as_environment",
        "check_environment",
    ),
    "mrlm.core.errors": ("MRLMError",),
    "mrlm.core.language_model": ("LLMEnvironment",),
    "mrlm.core.types": (
        "Completion",
        "EnvironmentMode",
        "Episode",
        "Group",
        "Message",
        "MessageRole",
        "MessageType",
        "Observation",
        "Reward",
        "Role",
        "Rollout",
        "SamplingParams",
        "StepResult",
        "Task",
        "Turn",
    ),
    "mrlm.engines.reward_model": ("RewardModel",),
    "mrlm.environments.math": ("BoxedReward",),
    "mrlm.environments.qa": ("QASolverEnv",),
    "mrlm.environments.reward": ("RewardProcessors",),
    "mrlm.generate": ("Generator",),
    "mrlm.learn.bases.algorithm": ("Algorithm",),
    "mrlm.learn.data.batch": ("Batch", "Loss", "Outputs"),
    "mrlm.learn.learner": ("Learner",),
    "mrlm.learn.loss_tensor": ("LossTensor",),
    "mrlm.learn.team_learner": ("TeamLearner",),
    "mrlm.experiment": ("run_experiment",),
    "mrlm.play.workflow_check": ("check_workflow",),
    "mrlm.runs": ("EvalResult", "TrainResult", "evaluate"),
    "mrlm.serving.client.environment": ("RemoteEnvironment",),
    "mrlm.serving.client.pool": ("ServerPool",),
    "mrlm.core.tiny_model": ("default_model",),
    "mrlm.replays.replay": ("Replay", "replay"),
    "mrlm.training.run": ("Callback",),
    "mrlm.trainer": ("Trainer",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def _hint(name: str) -> str | None:
    """What to use instead of a trainer of another library."""
    from mrlm.config.other_libraries import CLASSES

    return CLASSES.get(name.removesuffix("Trainer").removesuffix("Config"))


__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, _MODULE_OF, _hint)
