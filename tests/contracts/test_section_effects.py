"""Every key of every section changes something: each is varied in a run of a second in which it
should matter, and what the run computed, said and wrote must be something else. A key without a
case fails, and a key whose effect no such run shows names the test that shows it."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import typing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from effects import assert_tests_exist
from mrlm.build.run import build
from mrlm.config import ExperimentConfig
from mrlm.config.base import Section
from mrlm.config.normalize import merge
from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.types import EnvironmentMode
from mrlm.experiment import run_experiment
from recorded import episodes as recorded

NOISE = {"env_type": "played:Noise"}
ROWS = [
    {"prompt": f"{n} and {n} is ", "completion": str(2 * n), "other": "no"} for n in range(1, 7)
]
OTHER = "other-model"
"""A folder with another model and another chat template."""
CODED = "coded-model"
"""A folder with a model that comes with code of its own."""
MINE = """
from transformers import {config} as Config, {model} as Model


class MineConfig(Config):
    model_type = "mine"


class MineForCausalLM(Model):
    config_class = MineConfig
"""
BASE: dict[str, Any] = {
    "training": {"num_iterations": 2, "batch_size": 2, "learning_rate": 0.01, "report_to": "none"},
    "group_size": 2,
    "generation": {"max_new_tokens": 4},
    "environments": [NOISE],
    "policies": {"both": {}},
}


class Case(NamedTuple):
    """Changes to a run, `on` others that both runs have.

    Args:
        changes: dotted path -> value.
        on: the same, of both runs.
        error: what the changed run is refused or ended with.
        built: the run is put together, and what its engines were given is compared.
    """

    changes: dict[str, Any]
    on: dict[str, Any]
    error: str = ""
    built: bool = False


def case(key: str, value: Any, error: str = "", built: bool = False, **on: Any) -> Case:
    """One changed key; `__` stands for dots in those of both runs."""
    return Case({key: value}, {k.replace("__", "."): v for k, v in on.items()}, error, built)


class Given:
    """An engine that notes what it was given."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = {k: v for k, v in arguments.items() if k not in ("policies", "policy")}


class Server(Given):
    """One with a server of its own."""

    def __init__(
        self,
        policies: Any,
        batch_size: int,
        cache_mib: int,
        kv_mib: int | None,
        timeout: float,
        base_url: Any = None,
        servers: Any = None,
        model: Any = None,
        api_key_env: Any = None,
        ca: Any = None,
        sync_folder: Any = None,
        sleep: Any = None,
        max_retries: Any = None,
        max_concurrent: Any = None,
    ) -> None:
        super().__init__(**{k: v for k, v in locals().items() if k not in ("self", "__class__")})


class Asked(Given):
    """One that asks an endpoint."""

    def __init__(self, policy: str, base_url: str, **arguments: Any) -> None:
        super().__init__(base_url=base_url, **arguments)


class AskedToo(Asked):
    """Another one."""


TWO: dict[str, Any] = {"policies": {"short": {}, "long": {}}}
TURNS: dict[str, Any] = {**TWO, "training__num_iterations": 3}
EVAL: dict[str, Any] = {"evaluation__episodes": 2}
OFTEN: dict[str, Any] = {
    **{"evaluation__episodes": 2, "evaluation__every": 1, "training__num_iterations": 4},
    "evaluation__greedy": False,
}
STOPPING: dict[str, Any] = {
    "evaluation__early_stopping": {"patience": 1, "min_change": 10.0},
    **OFTEN,
}
LORA: dict[str, Any] = {"model__lora": {"r": 2}, "training__num_iterations": 3}
NAMED: dict[str, Any] = {**LORA, "model__lora": {"r": 2, "target_modules": ["q_proj"]}}
SFT: dict[str, Any] = {
    "training__algorithm": "sft",
    "environments": [],
    "data__dataset": ROWS,
    "group_size": None,
}
STREAM: dict[str, Any] = {**SFT, "data__streaming": True}
PAST: dict[str, Any] = {
    "policies": {"player": {}},
    "opponents__every": 1,
    "opponents__games": 1,
    "evaluation__episodes": 1,
    "training__num_iterations": 4,
    "training__batch_size": 4,
}
SERVER: dict[str, Any] = {
    "engine__name": "test_section_effects:Server",
    "engine__base_url": "http://localhost:1",
}
ENDPOINT = {"base_url": "http://localhost:1", "model": "m"}
ASKED: dict[str, Any] = {
    "policies": {
        "short": {},
        "long": {"endpoint": ENDPOINT, "engine": "test_section_effects:Asked"},
    }
}
ROUNDS = [{**NOISE, "rounds": 3}]


def of_server(field: str, value: Any) -> Case:
    return case(f"engine.{field}", value, built=True, **SERVER)


def of_endpoint(field: str, value: Any) -> Case:
    return case(f"policies.long.endpoint.{field}", value, built=True, **ASKED)


CASES: dict[str, Case] = {
    "ExperimentConfig.experiment_name": case("experiment_name", "another"),
    "ExperimentConfig.output_dir": case("output_dir", "elsewhere"),
    "TrainingConfig.algorithm": case("training.algorithm", "rloo"),
    "TrainingConfig.num_iterations": case("training.num_iterations", 3),
    "TrainingConfig.num_epochs": case("training.num_epochs", 2, training__num_iterations=None),
    "TrainingConfig.batch_size": case("training.batch_size", 4),
    "TrainingConfig.gradient_accumulation_steps": case("training.gradient_accumulation_steps", 2),
    "TrainingConfig.max_tokens_per_microbatch": case("training.max_tokens_per_microbatch", 20),
    "TrainingConfig.learning_rate": case("training.learning_rate", 0.02),
    "TrainingConfig.critic_learning_rate": case(
        "training.critic_learning_rate", 0.1, training__algorithm="ppo"
    ),
    "TrainingConfig.critic_model": case(
        "training.critic_model", OTHER, training__algorithm="mappo"
    ),
    "TrainingConfig.optimizer": case("training.optimizer", "sgd"),
    "TrainingConfig.optimizer_offload": case("training.optimizer_offload", True, "on the CPU"),
    "TrainingConfig.adam_beta1": case("training.adam_beta1", 0.5),
    "TrainingConfig.adam_beta2": case("training.adam_beta2", 0.5),
    "TrainingConfig.dropout": case("training.dropout", True, "no trained model has dropout"),
    "TrainingConfig.master_weights": case(
        "training.master_weights", False, model__torch_dtype="bfloat16"
    ),
    "TrainingConfig.weight_decay": case("training.weight_decay", 0.5),
    "TrainingConfig.max_grad_norm": case("training.max_grad_norm", 1e-3, training__optimizer="sgd"),
    "TrainingConfig.lr_scheduler_type": case("training.lr_scheduler_type", "linear"),
    "TrainingConfig.warmup_steps": case("training.warmup_steps", 2),
    "TrainingConfig.warmup_ratio": case("training.warmup_ratio", 1.0),
    "TrainingConfig.precision": case("training.precision", "bf16"),
    "TrainingConfig.seed": case("training.seed", 1),
    "TrainingConfig.save_steps": case("training.save_steps", 1),
    "TrainingConfig.save_total_limit": case(
        "training.save_total_limit", 3, training__save_steps=1, training__num_iterations=3
    ),
    "TrainingConfig.logging_steps": case("training.logging_steps", 2),
    "TrainingConfig.report_to": case("training.report_to", "tensorboard"),
    "TrainingConfig.threads": case("training.threads", 3),
    "TrainingConfig.max_lag": case("training.max_lag", 1),
    "TrainingConfig.profile": case("training.profile", True),
    "TrainingConfig.checks": case("training.checks", "warn", training__max_mismatch_kl=1e-30),
    "TrainingConfig.max_mismatch_kl": case("training.max_mismatch_kl", 1e-30, "rounding explains"),
    "TrainingConfig.gradient_shares": case(
        "training.gradient_shares", 1, environments=[{"env_type": "matrix", "game": "xor"}]
    ),
    "ScheduleConfig.order": case("training.schedule.order", "alternating", **TWO),
    "ScheduleConfig.period": case(
        "training.schedule.period", 2, training__schedule__order="alternating", **TURNS
    ),
    "ScheduleConfig.turns": case(
        "training.schedule.turns",
        [["long"], ["short"]],
        training__schedule__order="alternating",
        **TWO,
    ),
    "ScheduleConfig.swap_every": case("training.schedule.swap_every", 1, **TWO),
    "LoraConfig.r": case("model.lora.r", 3, **LORA),
    "LoraConfig.alpha": case("model.lora.alpha", 3.0, **LORA),
    "LoraConfig.dropout": case("model.lora.dropout", 0.5, **LORA),
    "LoraConfig.target_modules": case("model.lora.target_modules", ["q_proj"], **LORA),
    "LoraConfig.exclude_modules": case("model.lora.exclude_modules", ["q_proj"], **LORA),
    "LoraConfig.use_rslora": case("model.lora.use_rslora", True, **LORA),
    "LoraConfig.use_dora": case("model.lora.use_dora", True, **LORA),
    "LoraConfig.lora_bias": case("model.lora.lora_bias", True, **LORA),
    "LoraConfig.init_lora_weights": case("model.lora.init_lora_weights", "gaussian", **LORA),
    "LoraConfig.rank_pattern": case("model.lora.rank_pattern", {"q_proj": 3}, **LORA),
    "LoraConfig.alpha_pattern": case("model.lora.alpha_pattern", {"q_proj": 3.0}, **LORA),
    "LoraConfig.layers_to_transform": case("model.lora.layers_to_transform", [0], **NAMED),
    "LoraConfig.modules_to_save": case("model.lora.modules_to_save", ["norm"], **LORA),
    "LoraConfig.trainable_token_indices": case(
        "model.lora.trainable_token_indices", [3, 4], **LORA
    ),
    "ModelConfig.model_name_or_path": case("model.model_name_or_path", OTHER),
    "ModelConfig.tokenizer_name_or_path": case("model.tokenizer_name_or_path", OTHER),
    "ModelConfig.torch_dtype": case("model.torch_dtype", "bfloat16"),
    "ModelConfig.quantization": case("model.quantization", "nf4", **LORA),
    "ModelConfig.trust_remote_code": case(
        "model.trust_remote_code", True, model__model_name_or_path=CODED
    ),
    "ModelConfig.attn_implementation": case(
        "model.attn_implementation", "eager", model__lean=False
    ),
    "ModelConfig.lean": case("model.lean", False),
    "ModelConfig.chat_template_kwargs": case(
        "model.chat_template_kwargs", {"mood": "good"}, model__model_name_or_path=OTHER
    ),
    "PriceConfig.prompt": of_endpoint("price.prompt", 2.0),
    "PriceConfig.completion": of_endpoint("price.completion", 2.0),
    "EndpointConfig.base_url": of_endpoint("base_url", "http://localhost:2"),
    "EndpointConfig.model": of_endpoint("model", "n"),
    "EndpointConfig.api_key_env": of_endpoint("api_key_env", "SOME_KEY"),
    "EndpointConfig.max_retries": of_endpoint("max_retries", 1),
    "EndpointConfig.requests_per_minute": of_endpoint("requests_per_minute", 5.0),
    "EndpointConfig.max_concurrent": of_endpoint("max_concurrent", 2),
    "EndpointConfig.timeout": of_endpoint("timeout", 5.0),
    "EndpointConfig.token_limit": of_endpoint("token_limit", "max_completion_tokens"),
    "EndpointConfig.body": of_endpoint("body", {"top": 1}),
    "PolicyConfig.model": case("policies.long.model", OTHER, **TWO),
    "PolicyConfig.tokenizer": case("policies.long.tokenizer", OTHER, **TWO),
    "PolicyConfig.trainable": case("policies.long.trainable", False, **TWO),
    "PolicyConfig.learning_rate": case("policies.long.learning_rate", 0.1, **TWO),
    "PolicyConfig.max_grad_norm": case(
        "policies.long.max_grad_norm", 1e-3, training__optimizer="sgd", **TWO
    ),
    "PolicyConfig.weight_decay": case("policies.long.weight_decay", 0.5, **TWO),
    "PolicyConfig.engine": case(
        "policies.long.engine", "test_section_effects:AskedToo", built=True, **ASKED
    ),
    "DataConfig.dataset": case("data.dataset", ROWS[:2], **SFT),
    "DataConfig.columns": case("data.columns", {"completion": "other"}, **SFT),
    "DataConfig.on_bad_row": case(
        "data.on_bad_row",
        "skip",
        **{**SFT, "data__dataset": [*ROWS, {"prompt": "?", "completion": None}]},
    ),
    "DataConfig.on_long_row": case(
        "data.on_long_row",
        "truncate",
        **{**SFT, "data__dataset": [{"prompt": "?" * 9000, "completion": "!"}] * 4},
    ),
    "DataConfig.max_rows": case("data.max_rows", 2, **SFT),
    "DataConfig.shuffle": case("data.shuffle", False, **SFT),
    "DataConfig.shuffle_buffer": case("data.shuffle_buffer", 1, **STREAM),
    "AsynchronyConfig.oversample": case(
        "asynchrony.oversample", 4.0, environments=[{**ROUNDS[0], "uneven": True}]
    ),
    "RecordConfig.tokens": case("record.tokens", "none"),
    "RecordConfig.keep": case("record.keep", "evaluations"),
    "RecordConfig.compress": case("record.compress", False),
    "RecordConfig.max_gb": case("record.max_gb", 1e-6),
    "StageConfig.name": case("stages", [{"name": "b"}], stages=[{"name": "a"}]),
    "GenerationConfig.max_new_tokens": case("generation.max_new_tokens", 5),
    "GenerationConfig.temperature": case("generation.temperature", 0.5),
    "GenerationConfig.top_p": case("generation.top_p", 0.3),
    "GenerationConfig.top_k": case("generation.top_k", 2),
    "GenerationConfig.min_p": case("generation.min_p", 0.5),
    "GenerationConfig.stop": case(
        "generation.stop", [*"abcdefghijklmnopqrstuvwxyzABCDEF0123456789"]
    ),
    "GenerationConfig.max_prompt_tokens": case("generation.max_prompt_tokens", 3, "the limit is 3"),
    "AgentConfig.policy": case(
        "agents", {"long": {"policy": "short"}, "short": {"policy": "long"}}, **TWO
    ),
    "AgentConfig.system_prompt": case(
        "agents.short.system_prompt", "Be brief.", agents__short={}, agents__long={}
    ),
    "AgentConfig.generation": case(
        "agents.short.generation", {"temperature": 0.1}, agents__short={}, agents__long={}
    ),
    "EnvironmentConfig.env_type": case("environments", [{"env_type": "length"}]),
    "EnvironmentConfig.name": case("environments", [{**NOISE, "name": "din"}]),
    "EnvironmentConfig.weight": case(
        "environments",
        [{**NOISE, "name": "a", "weight": 9}, {**NOISE, "name": "b"}],
        environments=[{**NOISE, "name": "a"}, {**NOISE, "name": "b"}],
        training__batch_size=8,
    ),
    "EnvironmentConfig.max_turns": case(
        "environments", [{**ROUNDS[0], "max_turns": 1}], environments=ROUNDS
    ),
    "WorkflowConfig.name": case("workflow.name", "single_turn", environments=ROUNDS),
    "EngineConfig.name": case("engine.name", "hf", built=True),
    "EngineConfig.tolerance": case("engine.tolerance", 1e-30, "tolerance"),
    "EngineConfig.timeout": of_server("timeout", 5.0),
    "EngineConfig.batch_size": of_server("batch_size", 5),
    "EngineConfig.cache_mib": of_server("cache_mib", 5),
    "EngineConfig.int8": case("engine.int8", True, grpo__importance="token"),
    "EngineConfig.kv_mib": of_server("kv_mib", 5),
    "EngineConfig.base_url": of_server("base_url", "http://localhost:2"),
    "EngineConfig.servers": of_server("servers", {"both": "http://localhost:2"}),
    "EngineConfig.model": of_server("model", "m"),
    "EngineConfig.api_key_env": of_server("api_key_env", "SOME_KEY"),
    "EngineConfig.ca": of_server("ca", "ca.pem"),
    "EngineConfig.sync_folder": of_server("sync_folder", "sync"),
    "EngineConfig.sleep": of_server("sleep", True),
    "EngineConfig.max_retries": of_server("max_retries", 1),
    "EngineConfig.max_concurrent": of_server("max_concurrent", 1),
    "EvaluationConfig.every": case("evaluation.every", 1, **EVAL),
    "EvaluationConfig.episodes": case("evaluation.episodes", 3, **EVAL),
    "EvaluationConfig.greedy": case("evaluation.greedy", False, **EVAL),
    "EvaluationConfig.samples": case("evaluation.samples", 2, evaluation__greedy=False, **EVAL),
    "EvaluationConfig.effects": case("evaluation.effects", 1, **EVAL),
    "EvaluationConfig.at_start": case("evaluation.at_start", False, **EVAL),
    "EvaluationConfig.keep_best": case("evaluation.keep_best", True, **EVAL),
    "EvaluationConfig.early_stopping": case("evaluation.early_stopping", {"patience": 1}, **OFTEN),
    "EarlyStoppingConfig.metric": case(
        "evaluation.early_stopping.metric", "reward/median", "no metric", **STOPPING
    ),
    "EarlyStoppingConfig.patience": case("evaluation.early_stopping.patience", 2, **STOPPING),
    "EarlyStoppingConfig.min_change": case(  # of four evaluations one is better than the first
        "evaluation.early_stopping.min_change",
        0,
        **{**OFTEN, "training__num_iterations": 6},
        evaluation__early_stopping={"patience": 4, "min_change": 10.0},
    ),
    "EarlyStoppingConfig.maximize": case(
        "evaluation.early_stopping.maximize",
        False,
        evaluation__early_stopping={"patience": 1},
        **OFTEN,
    ),
    "EvaluationConfig.environments": case(
        "evaluation.environments", [{"env_type": "length"}], **EVAL
    ),
    "OpponentsConfig.every": case("opponents.every", 2, **PAST),
    "OpponentsConfig.keep": case("opponents.keep", 2, **PAST),
    "OpponentsConfig.source": case("opponents.source", OTHER, **PAST),
    "OpponentsConfig.policies": case("opponents.policies", ["long"], **{**PAST, **TWO}),
    "OpponentsConfig.matchmaking": case("opponents.matchmaking", "latest", **PAST),
    "OpponentsConfig.power": case(
        "opponents.power",
        50.0,
        opponents__matchmaking="pfsp",
        evaluation__every=1,
        **{**PAST, "opponents__games": 4},
    ),
    "OpponentsConfig.self": case("opponents.self", 0.0, **PAST),
    "OpponentsConfig.at_once": case("opponents.at_once", 2, opponents__self=0.0, **PAST),
    "OpponentsConfig.games": case("opponents.games", 3, **PAST),
    "OpponentsConfig.tasks_per_game": case(
        "opponents.tasks_per_game", 3, evaluation__greedy=False, **{**PAST, "opponents__games": 9}
    ),
}

SHARDED = "test_sharded.py::test_two_processes_cut_it_and_one_puts_it_together"
RAY = "test_ray.py::test_{}"
SERVERS = "test_remote_settings.py::test_{}"
CERTIFICATES = "test_remote_environments.py::test_certificates_and_tokens_are_checked"
ROLLBACK = "test_rollback.py::test_it_goes_back_learns_more_slowly_and_comes_to_its_end"
HANGS = "test_play.py::test_a_world_that_hangs_fails_at_its_deadline_and_is_tried_again"
JOINED = "test_section_effects.py::test_a_process_joins_others_as_its_section_says"
UNPLACED = RAY.format("what_cannot_be_placed_is_refused_at_once")
KILLED = RAY.format("an_engine_that_is_killed_is_replaced_where_it_stood")
LEGAL = "test_section_effects.py::test_a_key_with_one_legal_value_refuses_every_other"
FINITE = "test_learner.py::test_what_is_said_of_a_step_that_is_not_finite"
STARTED = RAY.format("policies_learn_as_in_one_process_though_a_worker_is_killed")
ELSEWHERE: dict[str, str] = {
    "TrainingConfig.doctor": "test_doctor_runs.py::test_an_alarm_stops_a_run_after_a_checkpoint",
    "TrainingConfig.doctor_rules": "test_doctor_runs.py::test_a_run_takes_thresholds",
    # the numbers are the same, memory is not
    "TrainingConfig.gradient_checkpointing": "test_policy.py::test_adapters_can_be_checkpointed",
    # written by a run, read where a team is played
    "AgentConfig.formatter": "test_published.py::test_what_agents_read_is_published_too",
    "AgentConfig.formatter_function": ("test_published.py::test_what_agents_read_is_published_too"),
    # of another library
    "TrainingConfig.wandb": "test_tracking.py::test_a_tracker_logs_and_goes_on_where_it_was",
    # where a run fails
    "TrainingConfig.max_nonfinite_steps": FINITE,
    "TrainingConfig.rollback": ROLLBACK,
    "TrainingConfig.rollback_factor": ROLLBACK,
    "EnvironmentConfig.timeout": HANGS,
    "EnvironmentConfig.retries": HANGS,
    # the rows are the same, memory is not
    "DataConfig.streaming": ("test_data.py::test_no_more_rows_are_in_memory_than_the_buffer_holds"),
    # needs three agents, episodes of several lengths, a file with several splits
    "ScheduleConfig.roles": "test_schedules.py::test_roles_are_swapped_every_five_steps",
    "AsynchronyConfig.partial": "test_ahead.py::test_whole_episodes_have_one_version",
    "DataConfig.split": "test_tasks.py::test_a_folder_with_a_file_per_split",
    # has one legal value
    "EnvironmentConfig.mode": LEGAL,
    # needs an accelerator
    "ModelConfig.device": "test_policy.py::test_types_and_devices",
    # needs servers
    "EnvironmentConfig.remote": SERVERS.format("a_section_takes_one_server_or_several"),
    "EnvironmentConfig.server_address": SERVERS.format("a_section_takes_one_server_or_several"),
    "EnvironmentConfig.servers_file": SERVERS.format(
        "a_file_of_servers_is_read_again_when_it_changes"
    ),
    "EnvironmentConfig.token_env": CERTIFICATES,
    "EnvironmentConfig.tls_ca": CERTIFICATES,
    "EnvironmentConfig.tls_cert": CERTIFICATES,
    "EnvironmentConfig.tls_key": CERTIFICATES,
    "TrainingConfig.show": "test_cli.py::test_metrics_are_chosen_for_the_terminal",
    # needs several processes
    "DistributedConfig.enabled": SHARDED,
    "DistributedConfig.strategy": SHARDED,
    "DistributedConfig.timeout": JOINED,
    "DistributedConfig.bucket_mib": JOINED,
    "FsdpConfig.sharding": SHARDED,
    "FsdpConfig.cpu_offload": "test_sharded.py::test_a_device_computes_shards_in_bf16",
    "FsdpConfig.reduce_dtype": JOINED,
    # needs a cluster
    "RayConfig.address": RAY.format("a_cluster_that_exists_is_joined_by_its_address"),
    "RayConfig.num_cpus": STARTED,
    "RayConfig.num_gpus": STARTED,
    "RayConfig.pools": UNPLACED,
    "RayConfig.colocated": KILLED,
    "RayConfig.environment_workers": RAY.format(
        "adapters_of_one_base_are_together_and_worlds_elsewhere"
    ),
    "RayConfig.environment_pool": UNPLACED,
    "RayConfig.placement_timeout": RAY.format(
        "resources_that_others_hold_are_waited_for_but_not_without_end"
    ),
    "RayConfig.max_restarts": RAY.format("a_worker_that_is_lost_too_often_ends_the_run"),
    "RayPolicyConfig.learner": UNPLACED,
    "RayPolicyConfig.engine": UNPLACED,
    "RayPolicyConfig.engines": RAY.format("several_engines_share_what_is_sampled"),
    "RayPolicyConfig.learners": RAY.format("a_team_of_workers_trains_a_policy_as_one_does"),
}
"""Keys whose effect no run of a second in one process shows, and the test that shows it."""


# -- the walk --------------------------------------------------------------------------------------


def sections_in(annotation: Any) -> set[type[Section]]:
    """The sections that a field holds."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return {annotation}
    return set().union(*map(sections_in, typing.get_args(annotation)))


def walked(section: type[Section] = ExperimentConfig) -> dict[str, bool]:
    """`Section.field` of an experiment and everything inside it -> whether it is a section."""
    found: dict[str, bool] = {}
    for name, field in section.model_fields.items():
        inside = sections_in(field.annotation)
        found[f"{section.__name__}.{name}"] = bool(inside)
        for each in inside:
            found |= walked(each)
    return found


def test_every_key_has_a_case() -> None:
    keys = walked()
    assert not CASES.keys() & ELSEWHERE.keys()
    assert {key for key, inner in keys.items() if not inner} - CASES.keys() <= ELSEWHERE.keys()
    assert CASES.keys() | ELSEWHERE.keys() <= keys.keys()


def test_tests_elsewhere_exist() -> None:
    assert_tests_exist(ELSEWHERE, {})


# -- what a run does -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(tiny_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a model of other weights, whose template may be told a mood."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("other")
    model = AutoModelForCausalLM.from_pretrained(tiny_path)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 1.1
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.chat_template = "{{ mood or '~' }}" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def coded(tiny_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a model that comes with code of its own."""
    from transformers import AutoConfig

    folder = tmp_path_factory.mktemp("coded") / "model"
    shutil.copytree(tiny_path, folder)
    known = AutoConfig.from_pretrained(tiny_path)
    data = json.loads((folder / "config.json").read_text())
    code = MINE.format(config=type(known).__name__, model=data["architectures"][0])
    (folder / "mine.py").write_text(code)
    data |= {"model_type": "mine", "architectures": ["MineForCausalLM"]}
    own = {"AutoConfig": "MineConfig", "AutoModelForCausalLM": "MineForCausalLM"}
    data["auto_map"] = {name: f"mine.{each}" for name, each in own.items()}
    (folder / "config.json").write_text(json.dumps(data))
    return str(folder)


def nested(changes: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in changes.items():
        for part in reversed(path.split(".")):
            value = {part: value}
        found = merge(found, value)
    return found


def config_of(changes: dict[str, Any], other: str, coded: str = "") -> str:
    """The config of a run as JSON; a key that is `None` at the top is left out."""
    data = {key: value for key, value in merge(BASE, changes).items() if value is not None}
    own = {"long", "player"} & changes.get("policies", {}).keys()
    if own or data["training"].get("algorithm") == "sft":
        data["policies"].pop("both", None)
    return json.dumps(data).replace(OTHER, other).replace(CODED, coded)


@cache
def observed(text: str) -> dict[str, str]:
    """What a run computes, says and writes, in a folder of its own."""
    place = Path(f"run-{hashlib.sha256(text.encode()).hexdigest()[:8]}").absolute()
    place.mkdir(parents=True)
    threads, home = torch.get_num_threads(), Path.cwd()
    os.chdir(place)
    found: dict[str, str] = {}
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            run_experiment(ExperimentConfig(**json.loads(text)))
    except MRLMError as error:
        found["error"] = str(error)
    finally:
        found["threads"] = str(torch.get_num_threads())
        torch.set_num_threads(threads)
        os.chdir(home)
    files = sorted(file for file in place.rglob("*") if file.is_file())
    found["files"] = repr([re.sub(r"tfevents.*", "", str(f.relative_to(place))) for f in files])
    found["steps"] = str(said.getvalue().count("step "))
    for file in files:
        if file.name == "metrics.jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            found["metrics"] = repr([{k: v for k, v in r.items() if lasts(k)} for r in rows])
        if file.name == "ratings.json":
            found[file.name] = file.read_text()
        if file.name == "episodes.index":
            found["episodes"] = repr(recorded(file.parent))
        if file.suffix == ".safetensors" and "final" in str(file):
            found[f"weights of {file.parent.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def lasts(metric: str) -> bool:
    """Whether a number is the same when a run is repeated."""
    return metric != "time" and not metric.startswith(("seconds/", "tokens_per_second"))


def given(text: str) -> dict[str, str]:
    """What the engines of a run are, and were made with."""
    run = build(ExperimentConfig(**json.loads(text)))
    run.log.close()
    return {
        name: f"{type(engine).__name__} {getattr(engine, 'arguments', '')}"
        for name, engine in run.engines.items()
    }


QUICK = 16
"""One of so many runs is a quick test, and all that is only put together."""


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=[] if each.built or n % QUICK == 0 else [pytest.mark.system])
        for n, (key, each) in enumerate(CASES.items())
    ],
)
def test_a_key_changes_something(
    key: str, other: str, coded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "a key")
    each = CASES[key]
    look = given if each.built else observed
    before = look(config_of(nested(each.on), other, coded))
    after = look(config_of(merge(nested(each.on), nested(each.changes)), other, coded))
    if each.error:
        assert "error" not in before and re.search(each.error, after["error"])
    else:
        assert "error" not in after, after["error"]
    assert before != after, before


@pytest.mark.slow  # each is run once more
@pytest.mark.parametrize("on", [{}, TWO, EVAL, LORA, SFT, PAST], ids=repr)
def test_a_run_that_is_repeated_is_the_same(on: dict[str, Any], other: str) -> None:
    """Otherwise any two runs would differ."""
    changes = nested({key.replace("__", "."): value for key, value in on.items()})
    text = config_of(changes, other)
    assert observed(text) == observed(text.replace("{", "{ ", 1))


def test_a_key_with_one_legal_value_refuses_every_other() -> None:
    for mode in EnvironmentMode:
        worlds = [{"env_type": "relay", "mode": mode.value}]
        if mode is EnvironmentMode.CLIENT:
            ExperimentConfig(environments=worlds)
        else:
            with pytest.raises(ConfigError, match="mode"):
                ExperimentConfig(environments=worlds)


def test_a_process_joins_others_as_its_section_says(
    monkeypatch: pytest.MonkeyPatch, model: Any, tokenizer: Any
) -> None:
    """`timeout` and `bucket_mib` of `distributed`, `reduce_dtype` of its `fsdp`."""
    from torch.distributed.fsdp import FSDPModule

    from mrlm import distributed
    from mrlm.config import DistributedConfig
    from mrlm.config.sections import FsdpConfig
    from mrlm.distributed.buckets import pieces
    from mrlm.distributed.sharded import ShardedModel, mesh_of
    from mrlm.learn.policy.policy import Policy

    monkeypatch.setenv("WORLD_SIZE", "1")
    try:
        section = DistributedConfig(enabled=True, strategy="fsdp", timeout=7.0, bucket_mib=3)
        world: Any = distributed.join(section)
        assert world.timeout == 7.0 and world.bucket_bytes == 3 << 20
        parts = [torch.zeros(1 << 18) for _ in range(6)]  # a MiB each
        assert [len(each) for each in pieces(parts, world.bucket_bytes)] == [3, 3]
        policy = Policy("p", model, tokenizer)
        for dtype, expected in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
            cut = ShardedModel(
                policy, FsdpConfig(reduce_dtype=dtype), mesh_of("full", 1, "cpu"), world
            )
            blocks = [m for m in cut._model.modules() if isinstance(m, FSDPModule)]
            policies = [block._get_fsdp_state()._mp_policy for block in blocks]
            assert blocks and {each.reduce_dtype for each in policies} == {expected}
            policy = Policy("p", cut.whole.model, tokenizer)
    finally:
        distributed.stop()
