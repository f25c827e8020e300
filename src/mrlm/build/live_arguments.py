"""Reads the arguments of a trainer that are live objects: an `LLMEnvironment`, rows with reward
functions, a workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.build.arguments import one_of, refuse_unplayed
from mrlm.build.policies import LiveObjects
from mrlm.config import ExperimentConfig
from mrlm.config.aliases import WEIGHTS, FlatWords
from mrlm.core import registry
from mrlm.core.environment import Environment, as_environment
from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.types import EnvironmentMode
from mrlm.play.workflow import as_workflow


def with_parts(
    config: ExperimentConfig,
    parts: LiveObjects,
    wandb_config: Mapping[str, Any] | None,
    workflow: Any,
    external_transition: Any,
) -> ExperimentConfig:
    """A config with arguments that are named in it; live ones become `parts`."""
    if isinstance(workflow, str):
        config = config.merged({"workflow": {"name": workflow}})
    elif workflow is not None:
        parts.workflow = as_workflow(workflow)
    if wandb_config is not None:
        trackers = [*config.training.report_to, "wandb"]
        changes = {"report_to": list(dict.fromkeys(trackers)), "wandb": dict(wandb_config)}
        config = config.merged({"training": changes})
    if isinstance(external_transition, str):
        transition = {"workflow.external_transition": external_transition}
        return config.merged(transition, replacing=False)
    parts.external_transition = external_transition
    return config


def opened_llm(
    llm: LLMEnvironment,
    tokenizer: Any,
    config: ExperimentConfig,
    parts: LiveObjects,
    *environments: list[Any],
) -> tuple[Any, ...]:
    """The config with the settings of an `LLMEnvironment`, its model, the tokenizer, and the
    environments with its rewards.

    Raises:
        ConfigError: it is frozen.
    """
    if llm.mode is EnvironmentMode.CLIENT:
        raise ConfigError(
            "the LLMEnvironment is in mode CLIENT (frozen); a trainer needs EnvironmentMode.SERVER"
        )
    llm.check_policy()
    if llm.generation_config:
        config = config.merged({"generation": dict(llm.generation_config)})
    if llm.reward_fn is not None:
        rescored = registry.load("environments", "rescored")
        environments = tuple(
            [rescored(as_environment(env), llm.reward_fn) for env in env_list]
            for env_list in environments
        )
    if llm.system_prompt:
        parts.system_prompt = llm.system_prompt
    return config, llm.model, one_of("tokenizer", tokenizer, llm.tokenizer), *environments


def rewards_of(
    weights: Sequence[float] | None, args: object, words: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of the environment `reward` from those of a trainer; they are taken out of
    `words`. A mapping `rewards` belongs to it, a text to the algorithm."""
    calls = words.pop("rewards") if isinstance(words.get("rewards"), Mapping) else None
    written = args.reward_weights if isinstance(args, FlatWords) else words.pop(WEIGHTS, None)
    return {"reward_weights": one_of(WEIGHTS, weights, written), "rewards": calls}


def scored_rows(
    config: ExperimentConfig,
    rows: Any,
    reward_func: Any,
    agents: Sequence[str],
    eval_dataset: Any,
    scoring: Mapping[str, Any],
) -> Environment | None:
    """The environment of rows that a reward function scores, for an algorithm that samples."""
    plays = not config.algorithm_settings().spec.sampling.rows
    if rows is None or not plays or reward_func is None:
        refuse_unplayed(reward_func=reward_func, eval_dataset=eval_dataset, **scoring)
        return None
    made = registry.load("environments", "reward")
    return made(rows, reward_func, agents=agents, eval_dataset=eval_dataset, **scoring)


def app_of(
    app: Any,
    reward_func: Any,
    rows: Any,
    agents: Mapping[str, Any] | Sequence[str] | None,
    eval_dataset: Any,
) -> Environment:
    """The environment of an app: a function of a row, its name, or a command as a list."""
    kind = "command" if isinstance(app, list | tuple) else "app"
    named = {} if agents is None else {"agents": [*agents]}
    made = registry.load("environments", "app")
    return made(dataset=rows, reward=reward_func, eval_dataset=eval_dataset, **{kind: app}, **named)
