"""Written by `python -m scripts.faces`."""

from mrlm.algorithms.a2c import A2C as A2C
from mrlm.algorithms.at_grpo import ATGRPO as ATGRPO
from mrlm.algorithms.c3 import C3 as C3
from mrlm.algorithms.ccpo import CCPO as CCPO
from mrlm.algorithms.cory import CORY as CORY
from mrlm.algorithms.distill import Distill as Distill
from mrlm.algorithms.dpo import DPO as DPO
from mrlm.algorithms.dr_mas import DrMAS as DrMAS
from mrlm.algorithms.grpo import GRPO as GRPO
from mrlm.algorithms.happo import HAPPO as HAPPO
from mrlm.algorithms.ippo import IPPO as IPPO
from mrlm.algorithms.m_grpo import MGRPO as MGRPO
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
from mrlm.algorithms.sharp import SHARP as SHARP
from mrlm.algorithms.spin import SPIN as SPIN
from mrlm.algorithms.spiral import SPIRAL as SPIRAL
from mrlm.algorithms.vdn import VDN as VDN
from mrlm.app import reward as reward
from mrlm.config import A2CConfig as A2CConfig
from mrlm.config import ATGRPOConfig as ATGRPOConfig
from mrlm.config import C3Config as C3Config
from mrlm.config import CCPOConfig as CCPOConfig
from mrlm.config import CORYConfig as CORYConfig
from mrlm.config import DPOConfig as DPOConfig
from mrlm.config import DistillationConfig as DistillationConfig
from mrlm.config import DrMASConfig as DrMASConfig
from mrlm.config import ExperimentConfig as ExperimentConfig
from mrlm.config import GRPOConfig as GRPOConfig
from mrlm.config import HAPPOConfig as HAPPOConfig
from mrlm.config import IACConfig as IACConfig
from mrlm.config import IPPOConfig as IPPOConfig
from mrlm.config import MAACConfig as MAACConfig
from mrlm.config import MADPOConfig as MADPOConfig
from mrlm.config import MAGRPOConfig as MAGRPOConfig
from mrlm.config import MALTConfig as MALTConfig
from mrlm.config import MAPPOConfig as MAPPOConfig
from mrlm.config import MAPoRLConfig as MAPoRLConfig
from mrlm.config import MAREINFORCEConfig as MAREINFORCEConfig
from mrlm.config import MAREMAXConfig as MAREMAXConfig
from mrlm.config import MARFTConfig as MARFTConfig
from mrlm.config import MARLOOConfig as MARLOOConfig
from mrlm.config import MARSHALConfig as MARSHALConfig
from mrlm.config import MATPOConfig as MATPOConfig
from mrlm.config import MGRPOConfig as MGRPOConfig
from mrlm.config import OnlineDPOConfig as OnlineDPOConfig
from mrlm.config import PPOConfig as PPOConfig
from mrlm.config import QMIXConfig as QMIXConfig
from mrlm.config import RLOOConfig as RLOOConfig
from mrlm.config import ReMAConfig as ReMAConfig
from mrlm.config import ReMaxConfig as ReMaxConfig
from mrlm.config import ReinforceConfig as ReinforceConfig
from mrlm.config import ReinforcePPConfig as ReinforcePPConfig
from mrlm.config import RewardModelConfig as RewardModelConfig
from mrlm.config import RouterR1Config as RouterR1Config
from mrlm.config import SACConfig as SACConfig
from mrlm.config import SFTConfig as SFTConfig
from mrlm.config import SHARPConfig as SHARPConfig
from mrlm.config import SPINConfig as SPINConfig
from mrlm.config import SPIRALConfig as SPIRALConfig
from mrlm.config import TrainingConfig as TrainingConfig
from mrlm.config import VDNConfig as VDNConfig
from mrlm.config import load_config as load_config
from mrlm.core.chat import Chat as Chat
from mrlm.core.environment import BaseEnvironment as BaseEnvironment
from mrlm.core.environment import Environment as Environment
from mrlm.core.environment import SimulatedEnvironment as SimulatedEnvironment
from mrlm.core.environment import as_environment as as_environment
from mrlm.core.environment import check_environment as check_environment
from mrlm.core.episodes import Episode as Episode
from mrlm.core.episodes import Group as Group
from mrlm.core.errors import MRLMError as MRLMError
from mrlm.core.language_model import LLMEnvironment as LLMEnvironment
from mrlm.core.tiny_model import default_model as default_model
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
from mrlm.doctor.alarm import Alarm as Alarm
from mrlm.doctor.examination import examine as examine
from mrlm.engines.reward_model import RewardModel as RewardModel
from mrlm.environments.math import BoxedReward as BoxedReward
from mrlm.environments.qa import QASolverEnv as QASolverEnv
from mrlm.environments.reward import RewardProcessors as RewardProcessors
from mrlm.experiment import run_experiment as run_experiment
from mrlm.generate import Generator as Generator
from mrlm.generate import ModelGenerate as ModelGenerate
from mrlm.learn.bases.algorithm import Algorithm as Algorithm
from mrlm.learn.data.batch import Batch as Batch
from mrlm.learn.data.batch import Loss as Loss
from mrlm.learn.data.batch import Outputs as Outputs
from mrlm.learn.learner import Learner as Learner
from mrlm.learn.loss_tensor import LossTensor as LossTensor
from mrlm.learn.team_learner import TeamLearner as TeamLearner
from mrlm.play.workflow import Workflow as Workflow
from mrlm.play.workflow import WorkflowSpec as WorkflowSpec
from mrlm.play.workflow_check import check_workflow as check_workflow
from mrlm.record.reader import RecordedEpisode as RecordedEpisode
from mrlm.record.reader import RecordedRun as RecordedRun
from mrlm.record.reader import RecordedTurn as RecordedTurn
from mrlm.record.reader import read_run as read_run
from mrlm.replays.play_from import play_from as play_from
from mrlm.replays.replay import Replay as Replay
from mrlm.replays.replay import replay as replay
from mrlm.replays.session import Branch as Branch
from mrlm.replays.session import ForkSession as ForkSession
from mrlm.replays.why import Why as Why
from mrlm.replays.why import why as why
from mrlm.runs import EvalResult as EvalResult
from mrlm.runs import TrainResult as TrainResult
from mrlm.runs import evaluate as evaluate
from mrlm.serving.client.environment import RemoteEnvironment as RemoteEnvironment
from mrlm.serving.client.pool import ServerPool as ServerPool
from mrlm.teams.team import Team as Team
from mrlm.trainer import Trainer as Trainer
from mrlm.training.run import Callback as Callback
from mrlm.training.stopping import EarlyStopping as EarlyStopping

__version__: str

class A2CTrainer(Trainer): ...
class ATGRPOTrainer(Trainer): ...
class C3Trainer(Trainer): ...
class CCPOTrainer(Trainer): ...
class CORYTrainer(Trainer): ...
class DPOTrainer(Trainer): ...
class DistillationTrainer(Trainer): ...
class DrMASTrainer(Trainer): ...
class GRPOTrainer(Trainer): ...
class HAPPOTrainer(Trainer): ...
class IACTrainer(Trainer): ...
class IPPOTrainer(Trainer): ...
class MAACTrainer(Trainer): ...
class MADPOTrainer(Trainer): ...
class MAGRPOTrainer(Trainer): ...
class MALTTrainer(Trainer): ...
class MAPPOTrainer(Trainer): ...
class MAPoRLTrainer(Trainer): ...
class MAREINFORCETrainer(Trainer): ...
class MAREMAXTrainer(Trainer): ...
class MARFTTrainer(Trainer): ...
class MARLOOTrainer(Trainer): ...
class MARSHALTrainer(Trainer): ...
class MATPOTrainer(Trainer): ...
class MGRPOTrainer(Trainer): ...
class OnlineDPOTrainer(Trainer): ...
class PPOTrainer(Trainer): ...
class QMIXTrainer(Trainer): ...
class RLOOTrainer(Trainer): ...
class ReMATrainer(Trainer): ...
class ReMaxTrainer(Trainer): ...
class ReinforcePPTrainer(Trainer): ...
class ReinforceTrainer(Trainer): ...
class RewardModelTrainer(Trainer): ...
class RouterR1Trainer(Trainer): ...
class SACTrainer(Trainer): ...
class SFTTrainer(Trainer): ...
class SHARPTrainer(Trainer): ...
class SPINTrainer(Trainer): ...
class SPIRALTrainer(Trainer): ...
class VDNTrainer(Trainer): ...
