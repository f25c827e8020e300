"""Reads the arguments of a trainer that are live objects: an `LLMEnvironment`, rows with reward
functions, a workflow."""

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
    llm: Any, tokenizer: Any, config: ExperimentConfig, parts: LiveObjects, *environments: list[Any]
) -> tuple[Any, ...]:
    """The config with the settings of an `LLMEnvironment`, its model, the tokenizer, and the
    environments with its rewards; any other model as it is. Raises `ConfigError`: it is frozen."""
    if not isinstance(llm, LLMEnvironment):
        return config, llm, tokenizer, *environments
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
    weights: Sequence[float] | None, args: object, words: dict[str, Any], agents: Sequence[str]
) -> dict[str, Any]:
    """Arguments of the environment `reward` from those of a trainer; they are taken out of
    `words`. A mapping `rewards` belongs to it, a text to the algorithm."""
    calls = words.pop("rewards") if isinstance(words.get("rewards"), Mapping) else None
    written = args.reward_weights if isinstance(args, FlatWords) else words.pop(WEIGHTS, None)
    weights = one_of(WEIGHTS, weights, written)
    return {"reward_weights": weights, "rewards": calls, "agents": agents}


def scored_rows(
    config: ExperimentConfig,
    rows: Any,
    reward_func: Any,
    eval_dataset: Any,
    scoring: Mapping[str, Any],
) -> Environment | None:
    """The environment of rows that a reward function scores, for an algorithm that samples; of an
    `app` (a function of a row, its name, or a command as a list) in `scoring`, that app."""
    plays = not config.algorithm_settings().spec.sampling.rows
    agents, app = scoring["agents"], scoring["app"]
    rest = {name: value for name, value in scoring.items() if name not in ("agents", "app")}
    if app is not None:
        named = {"command" if isinstance(app, list | tuple) else "app": app, "agents": agents}
        made = registry.load("environments", "app")
        extra = {name: value for name, value in rest.items() if value is not None}
        if unused := extra.keys() - {"rewards"}:
            raise ConfigError(f"{min(unused)}= is for reward functions without app=; remove it")
        return made(dataset=rows, reward=reward_func, eval_dataset=eval_dataset, **named, **extra)
    if rows is None or not plays or reward_func is None:
        refuse_unplayed(
            reward_func=reward_func,
            eval_dataset=None if eval_dataset is False else eval_dataset,
            **rest,
        )
        return None
    made = registry.load("environments", "reward")
    return made(rows, reward_func, agents=agents, eval_dataset=eval_dataset, **rest)
