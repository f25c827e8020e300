"""Floor 1: what a user writes, strictly read. No torch; algorithms are reached by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mrlm.core.lazy import face

if TYPE_CHECKING:
    from mrlm.algorithms.a2c import A2CConfig as A2CConfig
    from mrlm.algorithms.at_grpo import ATGRPOConfig as ATGRPOConfig
    from mrlm.algorithms.cory import CORYConfig as CORYConfig
    from mrlm.algorithms.dpo import DPOConfig as DPOConfig
    from mrlm.algorithms.dr_mas import DrMASConfig as DrMASConfig
    from mrlm.algorithms.grpo import GRPOConfig as GRPOConfig
    from mrlm.algorithms.happo import HAPPOConfig as HAPPOConfig
    from mrlm.algorithms.ippo import IACConfig as IACConfig
    from mrlm.algorithms.ippo import IPPOConfig as IPPOConfig
    from mrlm.algorithms.madpo import MADPOConfig as MADPOConfig
    from mrlm.algorithms.magrpo import MAGRPOConfig as MAGRPOConfig
    from mrlm.algorithms.malt import MALTConfig as MALTConfig
    from mrlm.algorithms.maporl import MAPoRLConfig as MAPoRLConfig
    from mrlm.algorithms.mappo import MAACConfig as MAACConfig
    from mrlm.algorithms.mappo import MAPPOConfig as MAPPOConfig
    from mrlm.algorithms.mareinforce import MAREINFORCEConfig as MAREINFORCEConfig
    from mrlm.algorithms.maremax import MAREMAXConfig as MAREMAXConfig
    from mrlm.algorithms.marft import MARFTConfig as MARFTConfig
    from mrlm.algorithms.marloo import MARLOOConfig as MARLOOConfig
    from mrlm.algorithms.marshal import MARSHALConfig as MARSHALConfig
    from mrlm.algorithms.matpo import MATPOConfig as MATPOConfig
    from mrlm.algorithms.online_dpo import OnlineDPOConfig as OnlineDPOConfig
    from mrlm.algorithms.ppo import PPOConfig as PPOConfig
    from mrlm.algorithms.qmix import QMIXConfig as QMIXConfig
    from mrlm.algorithms.reinforce import ReinforceConfig as ReinforceConfig
    from mrlm.algorithms.reinforce_pp import ReinforcePPConfig as ReinforcePPConfig
    from mrlm.algorithms.rema import ReMAConfig as ReMAConfig
    from mrlm.algorithms.remax import ReMaxConfig as ReMaxConfig
    from mrlm.algorithms.reward_model import RewardModelConfig as RewardModelConfig
    from mrlm.algorithms.rloo import RLOOConfig as RLOOConfig
    from mrlm.algorithms.router_r1 import RouterR1Config as RouterR1Config
    from mrlm.algorithms.sac import SACConfig as SACConfig
    from mrlm.algorithms.sft import SFTConfig as SFTConfig
    from mrlm.algorithms.spin import SPINConfig as SPINConfig
    from mrlm.algorithms.spiral import SPIRALConfig as SPIRALConfig
    from mrlm.algorithms.vdn import VDNConfig as VDNConfig
    from mrlm.config.aliases import FlatWords as FlatWords
    from mrlm.config.aliases import split_config as split_config
    from mrlm.config.experiment import ExperimentConfig as ExperimentConfig
    from mrlm.config.experiment import diff as diff
    from mrlm.config.loading import load_config as load_config
    from mrlm.config.loading import parse_config as parse_config
    from mrlm.config.play_sections import AgentConfig as AgentConfig
    from mrlm.config.play_sections import EngineConfig as EngineConfig
    from mrlm.config.play_sections import EnvironmentConfig as EnvironmentConfig
    from mrlm.config.play_sections import EvaluationConfig as EvaluationConfig
    from mrlm.config.play_sections import GenerationConfig as GenerationConfig
    from mrlm.config.play_sections import OpponentsConfig as OpponentsConfig
    from mrlm.config.play_sections import WorkflowConfig as WorkflowConfig
    from mrlm.config.sections import AsynchronyConfig as AsynchronyConfig
    from mrlm.config.sections import DataConfig as DataConfig
    from mrlm.config.sections import DistributedConfig as DistributedConfig
    from mrlm.config.sections import EndpointConfig as EndpointConfig
    from mrlm.config.sections import LoraConfig as LoraConfig
    from mrlm.config.sections import ModelConfig as ModelConfig
    from mrlm.config.sections import PolicyConfig as PolicyConfig
    from mrlm.config.sections import ScheduleConfig as ScheduleConfig
    from mrlm.config.sections import StageConfig as StageConfig
    from mrlm.config.sections import TrainingConfig as TrainingConfig

_HOME = {
    "A2CConfig": "mrlm.algorithms.a2c",
    "ATGRPOConfig": "mrlm.algorithms.at_grpo",
    "AgentConfig": "mrlm.config.play_sections",
    "AsynchronyConfig": "mrlm.config.sections",
    "CORYConfig": "mrlm.algorithms.cory",
    "DPOConfig": "mrlm.algorithms.dpo",
    "DataConfig": "mrlm.config.sections",
    "DistributedConfig": "mrlm.config.sections",
    "DrMASConfig": "mrlm.algorithms.dr_mas",
    "EndpointConfig": "mrlm.config.sections",
    "EngineConfig": "mrlm.config.play_sections",
    "EnvironmentConfig": "mrlm.config.play_sections",
    "EvaluationConfig": "mrlm.config.play_sections",
    "ExperimentConfig": "mrlm.config.experiment",
    "FlatWords": "mrlm.config.aliases",
    "GRPOConfig": "mrlm.algorithms.grpo",
    "GenerationConfig": "mrlm.config.play_sections",
    "HAPPOConfig": "mrlm.algorithms.happo",
    "IACConfig": "mrlm.algorithms.ippo",
    "IPPOConfig": "mrlm.algorithms.ippo",
    "LoraConfig": "mrlm.config.sections",
    "MADPOConfig": "mrlm.algorithms.madpo",
    "MAGRPOConfig": "mrlm.algorithms.magrpo",
    "MALTConfig": "mrlm.algorithms.malt",
    "MAACConfig": "mrlm.algorithms.mappo",
    "MAPPOConfig": "mrlm.algorithms.mappo",
    "MAPoRLConfig": "mrlm.algorithms.maporl",
    "MAREINFORCEConfig": "mrlm.algorithms.mareinforce",
    "MAREMAXConfig": "mrlm.algorithms.maremax",
    "MARFTConfig": "mrlm.algorithms.marft",
    "MARLOOConfig": "mrlm.algorithms.marloo",
    "MARSHALConfig": "mrlm.algorithms.marshal",
    "MATPOConfig": "mrlm.algorithms.matpo",
    "ModelConfig": "mrlm.config.sections",
    "OnlineDPOConfig": "mrlm.algorithms.online_dpo",
    "PPOConfig": "mrlm.algorithms.ppo",
    "OpponentsConfig": "mrlm.config.play_sections",
    "PolicyConfig": "mrlm.config.sections",
    "QMIXConfig": "mrlm.algorithms.qmix",
    "RLOOConfig": "mrlm.algorithms.rloo",
    "ReMAConfig": "mrlm.algorithms.rema",
    "ReMaxConfig": "mrlm.algorithms.remax",
    "ReinforceConfig": "mrlm.algorithms.reinforce",
    "ReinforcePPConfig": "mrlm.algorithms.reinforce_pp",
    "RewardModelConfig": "mrlm.algorithms.reward_model",
    "RouterR1Config": "mrlm.algorithms.router_r1",
    "SACConfig": "mrlm.algorithms.sac",
    "SFTConfig": "mrlm.algorithms.sft",
    "SPINConfig": "mrlm.algorithms.spin",
    "SPIRALConfig": "mrlm.algorithms.spiral",
    "ScheduleConfig": "mrlm.config.sections",
    "StageConfig": "mrlm.config.sections",
    "TrainingConfig": "mrlm.config.sections",
    "VDNConfig": "mrlm.algorithms.vdn",
    "WorkflowConfig": "mrlm.config.play_sections",
    "diff": "mrlm.config.experiment",
    "load_config": "mrlm.config.loading",
    "parse_config": "mrlm.config.loading",
    "split_config": "mrlm.config.aliases",
}
"""Public name -> the module it lives in; imported at first use."""

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, _HOME)
