"""Written by `python -m scripts.faces`."""

from mrlm.config.aliases import FlatWords as FlatWords
from mrlm.config.experiment import ExperimentConfig as ExperimentConfig
from mrlm.config.experiment import diff as diff
from mrlm.config.flat_words import split_config as split_config
from mrlm.config.loading import load_config as load_config
from mrlm.config.loading import parse_config as parse_config
from mrlm.config.play_sections import AgentConfig as AgentConfig
from mrlm.config.play_sections import EngineConfig as EngineConfig
from mrlm.config.play_sections import EnvironmentConfig as EnvironmentConfig
from mrlm.config.play_sections import EvaluationConfig as EvaluationConfig
from mrlm.config.play_sections import GenerationConfig as GenerationConfig
from mrlm.config.play_sections import OpponentsConfig as OpponentsConfig
from mrlm.config.play_sections import WorkflowConfig as WorkflowConfig
from mrlm.config.policy_sections import EndpointConfig as EndpointConfig
from mrlm.config.policy_sections import LoraConfig as LoraConfig
from mrlm.config.policy_sections import ModelConfig as ModelConfig
from mrlm.config.policy_sections import PolicyConfig as PolicyConfig
from mrlm.config.sections import AsynchronyConfig as AsynchronyConfig
from mrlm.config.sections import DataConfig as DataConfig
from mrlm.config.sections import DistributedConfig as DistributedConfig
from mrlm.config.sections import RecordConfig as RecordConfig
from mrlm.config.sections import ScheduleConfig as ScheduleConfig
from mrlm.config.sections import StageConfig as StageConfig
from mrlm.config.sections import TrainingConfig as TrainingConfig
from pydantic.dataclasses import dataclass

from mrlm.algorithms.a2c import A2C as A2C
from mrlm.algorithms.at_grpo import ATGRPO as ATGRPO
from mrlm.algorithms.cory import CORY as CORY
from mrlm.algorithms.dpo import DPO as DPO
from mrlm.algorithms.dr_mas import DrMAS as DrMAS
from mrlm.algorithms.grpo import GRPO as GRPO
from mrlm.algorithms.happo import HAPPO as HAPPO
from mrlm.algorithms.ippo import IPPO as IPPO
from mrlm.algorithms.madpo import MADPO as MADPO
from mrlm.algorithms.magrpo import MAGRPO as MAGRPO
from mrlm.algorithms.malt import MALT as MALT
from mrlm.algorithms.maporl import MAPoRL as MAPoRL
from mrlm.algorithms.mappo import MAPPO as MAPPO
from mrlm.algorithms.mareinforce import MAREINFORCE as MAREINFORCE
from mrlm.algorithms.maremax import MAREMAX as MAREMAX
from mrlm.algorithms.marft import MARFT as MARFT
from mrlm.algorithms.marloo import MARLOO as MARLOO
from mrlm.algorithms.marshal import MARSHAL as MARSHAL
from mrlm.algorithms.matpo import MATPO as MATPO
from mrlm.algorithms.online_dpo import OnlineDPO as OnlineDPO
from mrlm.algorithms.ppo import PPO as PPO
from mrlm.algorithms.qmix import QMIX as QMIX
from mrlm.algorithms.reinforce import REINFORCE as REINFORCE
from mrlm.algorithms.reinforce_pp import ReinforcePP as ReinforcePP
from mrlm.algorithms.rema import ReMA as ReMA
from mrlm.algorithms.remax import ReMax as ReMax
from mrlm.algorithms.reward_model import BradleyTerry as BradleyTerry
from mrlm.algorithms.rloo import RLOO as RLOO
from mrlm.algorithms.router_r1 import RouterR1 as RouterR1
from mrlm.algorithms.sac import SAC as SAC
from mrlm.algorithms.sft import SFT as SFT
from mrlm.algorithms.spin import SPIN as SPIN
from mrlm.algorithms.spiral import SPIRAL as SPIRAL
from mrlm.algorithms.vdn import VDN as VDN

@dataclass(kw_only=True)
class A2CConfig(FlatWords, A2C): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class ATGRPOConfig(FlatWords, ATGRPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class CORYConfig(FlatWords, CORY): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class DPOConfig(FlatWords, DPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class DrMASConfig(FlatWords, DrMAS): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class GRPOConfig(FlatWords, GRPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class HAPPOConfig(FlatWords, HAPPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class IACConfig(FlatWords, IPPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class IPPOConfig(FlatWords, IPPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MAACConfig(FlatWords, MAPPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MADPOConfig(FlatWords, MADPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MAGRPOConfig(FlatWords, MAGRPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MALTConfig(FlatWords, MALT): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MAPPOConfig(FlatWords, MAPPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MAPoRLConfig(FlatWords, MAPoRL): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MAREINFORCEConfig(FlatWords, MAREINFORCE): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MAREMAXConfig(FlatWords, MAREMAX): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MARFTConfig(FlatWords, MARFT): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MARLOOConfig(FlatWords, MARLOO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MARSHALConfig(FlatWords, MARSHAL): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class MATPOConfig(FlatWords, MATPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class OnlineDPOConfig(FlatWords, OnlineDPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class PPOConfig(FlatWords, PPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class QMIXConfig(FlatWords, QMIX): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class RLOOConfig(FlatWords, RLOO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class ReMAConfig(FlatWords, ReMA): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class ReMaxConfig(FlatWords, ReMax): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class ReinforceConfig(FlatWords, REINFORCE): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class ReinforcePPConfig(FlatWords, ReinforcePP): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class RewardModelConfig(FlatWords, BradleyTerry): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class RouterR1Config(FlatWords, RouterR1): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class SACConfig(FlatWords, SAC): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class SFTConfig(FlatWords, SFT): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class SPINConfig(FlatWords, SPIN): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class SPIRALConfig(FlatWords, SPIRAL): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class VDNConfig(FlatWords, VDN): ...  # pyright: ignore[reportIncompatibleVariableOverride]
