"""Written by `python -m scripts.faces`."""

from mrlm.config.engine_section import EngineConfig as EngineConfig
from mrlm.config.experiment import ExperimentConfig as ExperimentConfig
from mrlm.config.experiment import diff as diff
from mrlm.config.flat_words import split_config as split_config
from mrlm.config.loading import load_config as load_config
from mrlm.config.loading import parse_config as parse_config
from mrlm.config.play_sections import AgentConfig as AgentConfig
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
from typing import Any

from pydantic.dataclasses import dataclass

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

@dataclass(kw_only=True)
class FlatWords:
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    num_iterations: int | None = None
    max_steps: int | None = None
    num_epochs: float | None = None
    num_train_epochs: float | None = None
    schedule: str | dict[str, Any] | None = None
    batch_size: int | None = None
    train_batch_size: int | None = None
    per_device_train_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    num_agents: int | None = None
    reward_weights: list[float] | None = None
    learning_rate: float | None = None
    agent_learning_rate: float | None = None
    lr: float | None = None
    critic_learning_rate: float | None = None
    critic_model: str | None = None
    joint_mode: str | None = None
    use_separate_critic: bool | None = None
    optim: str | None = None
    optimizer: str | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    grad_clip: float | None = None
    lr_scheduler_type: str | None = None
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
    bf16: bool | None = None
    fp16: bool | None = None
    precision: str | None = None
    gradient_checkpointing: bool | None = None
    activation_checkpointing: bool | None = None
    disable_dropout: bool | None = None
    seed: int | None = None
    model_name_or_path: str | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool | None = None
    model_init_kwargs: dict[str, Any] | None = None
    quantization_config: Any | None = None
    load_in_4bit: bool | None = None
    load_in_8bit: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    use_cpu: bool | None = None
    use_peft: bool | None = None
    use_lora: bool | None = None
    lora_r: int | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float | None = None
    lora_modules_to_save: str | list[str] | None = None
    use_rslora: bool | None = None
    lora_use_rslora: bool | None = None
    use_dora: bool | None = None
    lora_target_modules: str | list[str] | None = None
    shuffle_dataset: bool | None = None
    streaming: bool | None = None
    rollout_buffer_size: int | None = None
    num_generations: int | None = None
    rollouts_per_example: int | None = None
    beta: float | None = None
    dpo_beta: float | None = None
    epsilon: float | None = None
    cliprange: float | None = None
    clip_param: float | None = None
    epsilon_high: float | None = None
    cliprange_value: float | None = None
    num_ppo_epochs: int | None = None
    ppo_epochs: int | None = None
    num_mini_batches: int | None = None
    lam: float | None = None
    lambda_: float | None = None
    discount: float | None = None
    ent_coef: float | None = None
    entropy_coeff: float | None = None
    value_loss_coef: float | None = None
    vf_loss_coeff: float | None = None
    advantage_normalization: bool | None = None
    reference_kl_coef: float | None = None
    reference_kl_enabled: bool | None = None
    preference_num_candidates: int | None = None
    loss_type: Any | None = None
    importance_sampling_level: str | None = None
    vllm_importance_sampling_correction: bool | None = None
    vllm_importance_sampling_mode: str | None = None
    vllm_importance_sampling_clip_max: float | None = None
    vllm_importance_sampling_cap: float | None = None
    vllm_importance_sampling_clip_min: float | None = None
    mask_truncated_completions: bool | None = None
    use_bias_correction_kl: bool | None = None
    advantage_mode: str | None = None
    max_completion_length: int | None = None
    response_length: int | None = None
    max_tokens: int | None = None
    max_prompt_length: int | None = None
    max_prompt_len: int | None = None
    use_vllm: bool | None = None
    vllm_server_base_url: str | None = None
    vllm_server_timeout: float | None = None
    generation_timeout: float | None = None
    max_concurrent: int | None = None
    vllm_enable_sleep_mode: bool | None = None
    num_turns: int | None = None
    max_turns: int | None = None
    external_transition: str | None = None
    transition_mode: str | None = None
    external_prompt_passthrough: bool | None = None
    early_termination_threshold: float | None = None
    output_dir: str | None = None
    experiment_name: str | None = None
    run_name: str | None = None
    report_to: str | list[str] | None = None
    logging_steps: int | None = None
    max_lag: int | None = None
    max_async_level: int | None = None
    max_head_offpolicyness: int | None = None
    eval_strategy: str | None = None
    save_strategy: str | None = None
    logging_strategy: str | None = None
    save_steps: int | None = None
    save_total_limit: int | None = None
    eval_steps: int | None = None
    eval_interval: int | None = None
    evaluation_interval: int | None = None
    evaluation_duration: int | None = None
    eval_num_samples: int | None = None
    eval_episodes: int | None = None
    eval_on_start: bool | None = None
    keep_best: bool | str | None = None
    early_stopping: dict[str, Any] | None = None
    num_generations_eval: int | None = None

@dataclass(kw_only=True)
class A2CConfig(FlatWords, A2C): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class ATGRPOConfig(FlatWords, ATGRPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class C3Config(FlatWords, C3): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class CCPOConfig(FlatWords, CCPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class CORYConfig(FlatWords, CORY): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class DPOConfig(FlatWords, DPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class DistillationConfig(FlatWords, Distill): ...  # pyright: ignore[reportIncompatibleVariableOverride]

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
class MGRPOConfig(FlatWords, MGRPO): ...  # pyright: ignore[reportIncompatibleVariableOverride]

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
class SHARPConfig(FlatWords, SHARP): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class SPINConfig(FlatWords, SPIN): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class SPIRALConfig(FlatWords, SPIRAL): ...  # pyright: ignore[reportIncompatibleVariableOverride]

@dataclass(kw_only=True)
class VDNConfig(FlatWords, VDN): ...  # pyright: ignore[reportIncompatibleVariableOverride]
