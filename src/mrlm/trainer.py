"""The one-call face: `XTrainer(...).train()`. It turns live objects and familiar words into a
config and its parts, and knows no algorithm; every algorithm's trainer is this class with a name in
it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from mrlm.build.async_play import plan_ahead
from mrlm.build.environments import make_worlds
from mrlm.build.policies import Parts
from mrlm.build.run import build, open_log
from mrlm.build.sources import total_steps
from mrlm.config import ExperimentConfig
from mrlm.config.algorithm_configs import config_class
from mrlm.config.errors import InvalidConfig
from mrlm.config.flat_words import FlatWords, algorithm_fields, setting_of, split_config, twice
from mrlm.config.normalize import section_key
from mrlm.core import registry
from mrlm.core.environment import Environment, SimulatedEnvironment, as_environment
from mrlm.core.errors import ConfigError
from mrlm.core.faces import faces
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.types import EnvironmentMode
from mrlm.runs import EvalResult, TrainResult, evaluate, run_to_end, save_policies
from mrlm.training.run import Callback, Run


class Trainer:
    """Trains agents in one call.

    Args:
        policy_or_model: an `LLMEnvironment`, a live model, or a folder or hub id.
        data: environments to play in, or rows to learn from (also: `train_dataset`,
            `preference_dataset`).
        config: an `ExperimentConfig`; anything given beside it must not contradict it.
        model, tokenizer: what every policy starts from (also: `agent_model`, `processing_class`).
        peft_config: a `peft.LoraConfig`, for the section `lora`.
        agents: agent -> model reference; equal references share one policy. A list names models for
            agents in order.
        num_agents: how many agents, where the environment does not say.
        environment: an environment, a class or function that makes one, or a list of these.
        eval_envs: environments that are evaluated and never trained on; where there is nothing
            else to learn from, the same as `environment`.
        workflow: a coroutine function `(task, agents, env)` or a workflow's name.
        reward_func, formatters: reward function(s) and one prompt formatter per agent, over
            `train_dataset`.
        reward_processor: number -> number, applied to every reward.
        external_transition: writes the prompts between two turns (with `num_turns` above 1), called
            by keyword as CoMLRL does: `(prompt, agent_completions, num_agents,
            prompt_history_per_agent, response_history_per_agent) -> [prompt, ...]`, or by position.
        train_dataset, eval_dataset: rows; for algorithms that play they become a reward-function
            world.
        args: an `XConfig`, whose words are those of other trainers.
        callbacks: `Callback` objects.
        wandb_config: log to Weights & Biases, with these arguments of `wandb.init` (`project`,
            `entity`, `name`, ...).
        share_policy: `True`: one policy for all agents; `False`: one each; `"lora"`: an adapter
            each on one base.
        **words: any flat word (`num_generations=4`, `max_new_tokens=16`, `learning_rate=1e-4`,
            ...).

    Raises:
        ConfigError: the arguments contradict each other or leave something open.
    """

    algorithm: ClassVar[str] = ""
    args_class: ClassVar[type[Any] | None] = None
    """A config class whose defaults hold instead of the algorithm's: what a name of another library
    means."""

    def __init__(
        self,
        policy_or_model: Any = None,
        data: Any = None,
        config: ExperimentConfig | None = None,
        *,
        model: Any = None,
        agent_model: Any = None,
        tokenizer: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        agents: Mapping[str, Any] | Sequence[Any] | None = None,
        num_agents: int | None = None,
        environment: Any = None,
        eval_envs: Any = None,
        workflow: Any = None,
        reward_func: Any = None,
        reward_funcs: Any = None,
        reward_processor: Any = None,
        formatters: Any = None,
        external_transition: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        preference_dataset: Any = None,
        args: FlatWords | None = None,
        callbacks: Sequence[Callback] = (),
        wandb_config: Mapping[str, Any] | None = None,
        share_policy: bool | str | None = None,
        **words: Any,
    ) -> None:
        model = _one_of("model", policy_or_model, model, agent_model)
        tokenizer = _one_of("tokenizer", tokenizer, processing_class)
        reward_func = _one_of("reward_func", reward_func, reward_funcs)
        words = _adapter_words(peft_config) | words
        num_agents = _one_of("num_agents", num_agents, getattr(args, "num_agents", None))
        worlds, rows = _worlds_or_rows(data)
        worlds += _listed(environment)
        rows = _one_of("train_dataset", rows, train_dataset, preference_dataset)
        self.config: ExperimentConfig = self._config(config, args, words)
        watched, known = _listed(eval_envs), self.config.environments or self.config.data.dataset
        if not worlds and rows is None and not known:
            worlds, watched = watched, []
        self._parts = Parts(callbacks=callbacks)
        if isinstance(model, LLMEnvironment):
            model, tokenizer, worlds, watched = self._from_llm(model, tokenizer, worlds, watched)
        if isinstance(workflow, str):
            self.config = self.config.merged({"workflow": {"name": workflow}})
        else:
            self._parts.workflow = workflow
        if wandb_config is not None:
            trackers = [*self.config.training.report_to, "wandb"]
            changes = {"report_to": list(dict.fromkeys(trackers)), "wandb": dict(wandb_config)}
            self.config = self.config.merged({"training": changes})
        if isinstance(external_transition, str):
            words = {"workflow.external_transition": external_transition}
            self.config = self.config.joined(words)
        else:
            self._parts.external_transition = external_transition
        plays = "rows" not in self._settings().requires
        if rows is not None and plays and reward_func is not None:
            world = registry.load("environments", "reward")
            count = num_agents or (len(agents) if agents is not None else 1)
            names = list(agents) if isinstance(agents, Mapping) else None
            worlds.append(
                world(
                    rows,
                    reward_func,
                    formatters,
                    agents=names or _agent_names(count),
                    reward_processor=reward_processor,
                    eval_dataset=eval_dataset,
                )
            )
            rows = None
        else:
            parts = {
                "reward_func": reward_func,
                "reward_processor": reward_processor,
                "formatters": formatters,
            }
            given = next((name for name, part in parts.items() if part is not None), None)
            if given is not None:
                raise ConfigError(
                    f"{given}= is for prompts that are played: it needs train_dataset=, "
                    "reward_func= and an algorithm that plays"
                )
        self._parts.worlds, self._parts.rows = worlds, rows
        self._parts.eval_worlds = watched
        self._cast(model, tokenizer, agents, num_agents, share_policy)
        self._run: Run | None = None

    # -- what is asked for -------------------------------------------------------------------------

    def _config(
        self, config: ExperimentConfig | None, args: FlatWords | None, words: dict[str, Any]
    ) -> ExperimentConfig:
        """The config with the algorithm's name, the settings of `args` and the flat words in it."""
        name = self.algorithm or (config.training.algorithm if config else "grpo")
        if config is None:
            config = ExperimentConfig(training={"algorithm": name})  # pyright: ignore
        elif self.algorithm and config.training.algorithm != self.algorithm:
            if "algorithm" in config.training.model_fields_set:
                raise ConfigError(
                    f"{type(self).__name__} trains with {self.algorithm!r}, but "
                    "config.training.algorithm is "
                    f"{config.training.algorithm!r}"
                )
            config = config.merged({"training": {"algorithm": self.algorithm}})
        given = {*config.given().get(section_key(name), {}), *map(setting_of, words)}
        fields, overrides = ({}, {}) if args is None else split_config(args)
        overrides.pop("num_agents", None)
        for path, value in overrides.items():
            if words.get(path, value) != value:
                raise InvalidConfig([twice(path, (value, "args"), (words[path], "a keyword"))])
        if fields or overrides or words:
            config = config.joined(overrides | words, fields)
        settings = config.algorithm_settings()
        given |= fields.keys() | settings.implied({"preset": settings.preset}).keys()
        usual = self._usual(config)
        usual = {key: value for key, value in usual.items() if key not in given}
        config = config.merged({section_key(name): usual}) if usual else config
        if "experiment_name" not in config.model_fields_set:
            config = config.merged({"experiment_name": name.rsplit(":", 1)[-1].lower()})
        return config

    def _usual(self, config: ExperimentConfig) -> dict[str, Any]:
        """The defaults of `args_class` that are not the algorithm's."""
        if self.args_class is None:
            return {}
        plain = algorithm_fields(type(config.algorithm_settings()))
        own = algorithm_fields(self.args_class)
        return {name: value for name, value in own.items() if value != plain[name]}

    def _settings(self) -> Any:
        return self.config.algorithm_settings()

    def _from_llm(self, llm: LLMEnvironment, tokenizer: Any, *worlds: list[Any]) -> tuple[Any, ...]:
        if llm.mode is EnvironmentMode.CLIENT:
            raise ConfigError(
                "the LLMEnvironment is in mode CLIENT (frozen); a trainer needs "
                "EnvironmentMode.SERVER"
            )
        llm.check_policy()
        if llm.generation_config:
            self.config = self.config.merged({"generation": dict(llm.generation_config)})
        if llm.reward_fn is not None:
            rescored = registry.load("environments", "rescored")
            worlds = tuple(
                [rescored(as_environment(world), llm.reward_fn) for world in each]
                for each in worlds
            )
        if llm.system_prompt:
            self._parts.system_prompts = _Everybody(llm.system_prompt)
        return llm.model, _one_of("tokenizer", tokenizer, llm.tokenizer), *worlds

    def _cast(
        self,
        model: Any,
        tokenizer: Any,
        agents: Mapping[str, Any] | Sequence[Any] | None,
        num_agents: int | None,
        share: bool | str | None,
    ) -> None:
        """Which agent speaks with which weights (equal references share one policy), as sections of
        the config."""
        config, parts = self.config, self._parts
        seats = [seat for world in make_worlds(config, parts) for seat in world.agents]
        if isinstance(agents, Mapping):
            references = dict(agents)
        elif agents is not None:
            names = list(dict.fromkeys(seats)) or _agent_names(len(agents))
            if len(names) != len(agents):
                raise ConfigError(
                    f"{len(agents)} models for {len(names)} agents ({', '.join(names)})"
                )
            references = dict(zip(names, agents, strict=True))
        else:
            names = (
                list(config.agents) or list(dict.fromkeys(seats)) or _agent_names(num_agents or 1)
            )
            references = dict.fromkeys(names, model)
        if num_agents is not None and len(references) != num_agents:
            raise ConfigError(
                f"num_agents={num_agents}, but there are {len(references)} agents: "
                f"{', '.join(references)}"
            )
        if config.policies:
            live = model if not isinstance(model, str | os.PathLike | type(None)) else None
            parts.models = (
                dict.fromkeys(config.policies, (live, tokenizer)) if live is not None else {}
            )
            if model is not None and live is None:
                self.config = config.merged({"model": {"model_name_or_path": str(model)}})
            return
        together = agents is not None if share is None else share is True
        policies: dict[str, dict[str, Any]] = {}
        of: dict[str, str] = {}
        by_reference: dict[Any, str] = {}
        sections: dict[str, dict[str, Any]] = {agent: {} for agent in references}
        for agent, reference in references.items():
            own, frozen = tokenizer, False
            if isinstance(reference, LLMEnvironment) and not isinstance(reference.model, Mapping):
                reference.check_policy()
                own = reference.tokenizer or tokenizer
                frozen = reference.mode is EnvironmentMode.CLIENT
                if reference.reward_fn is not None:
                    raise ConfigError(
                        f"agents[{agent!r}]: the reward_fn of an LLMEnvironment of one agent is "
                        "not used; give the trainer reward_func, or the environment its own reward"
                    )
                if reference.generation_config:
                    sections[agent]["generation"] = dict(reference.generation_config)
                if reference.system_prompt:
                    sections[agent]["system_prompt"] = reference.system_prompt
                reference = reference.model
            elif isinstance(reference, tuple):
                reference, own = reference
            live = not isinstance(reference, str | os.PathLike)
            key = (id(reference) if live else str(reference), frozen)
            name = by_reference.get(key) if together else None
            if name is None:
                name = "policy" if len(references) == 1 else agent
                by_reference[key] = name
                if isinstance(reference, LLMEnvironment) and isinstance(reference.model, Mapping):
                    policies[name] = {"endpoint": dict(reference.model)}
                    of[agent] = name
                    continue
                policies[name] = {"lora": {}} if share == "lora" else {}
                if frozen:
                    policies[name] = {"trainable": False}
                if isinstance(reference, str | os.PathLike):
                    policies[name]["model"] = str(reference)
                if (
                    reference is not None and not isinstance(reference, str | os.PathLike)
                ) or own is not None:
                    parts.models[name] = (reference, own)
            of[agent] = name
        if len(policies) == 1 and len(of) > 1:
            (only,) = policies
            policies = {"policy": policies.pop(only)}
            if only in parts.models:
                parts.models = {"policy": parts.models[only]}
            of = dict.fromkeys(of, "policy")
        sections = {agent: {"policy": name, **sections[agent]} for agent, name in of.items()}
        self.config = config.merged({"policies": policies, "agents": sections})

    # -- doing it ----------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run, put together at first use."""
        if self._run is None:
            self._run = build(self.config, self._parts)
        return self._run

    def train(
        self,
        num_iterations: int | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
    ) -> TrainResult:
        """Train.

        Args:
            num_iterations: instead of `training.num_iterations` and the epochs.
            resume_from_checkpoint: a run folder or checkpoint to continue from; `True` is this
                run's own folder.

        Raises:
            KeyboardInterrupt: interrupted; the run was saved and can be resumed.
        """
        if num_iterations is not None:
            if num_iterations < 1:
                raise ConfigError(f"num_iterations must be at least 1, not {num_iterations}")
            self.config = self.config.merged({"training": {"num_iterations": num_iterations}})
        if self._run is not None and not resume_from_checkpoint:
            self._go_on(self._run)
        if resume_from_checkpoint:
            default = self.config.output_dir or f"outputs/{self.config.experiment_name}"
            place = default if resume_from_checkpoint is True else resume_from_checkpoint
            self._run = build(self.config, self._parts, Path(place))
        return run_to_end(self.run)

    def _go_on(self, run: Run) -> None:
        """Prepare a run that was used before for as many iterations again."""
        run.total_steps = run.step + total_steps(self.config, run.source.num_tasks())
        plan_ahead(run.source, run.total_steps)
        run.stopping = run.interrupted = False
        state = {"step": run.step, "parts": {"log": run.log.state()}}
        run.log.close()
        run.log = open_log(self.config, run.folder, run.total_steps, state, run.peers)

    def evaluate(
        self, episodes: int | None = None, samples: int | None = None, greedy: bool | None = None
    ) -> EvalResult:
        """Play held-out tasks with the policies as they are."""
        return evaluate(self.run, episodes, samples, greedy)

    def save_model(self, folder: str | os.PathLike[str]) -> Path:
        """Write Hugging Face folders: `folder` itself for one policy, `folder/<policy>` for
        several."""
        return save_policies(self.run, Path(folder))


class _Everybody(dict[str, str]):
    """The same system prompt for every agent."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt

    def get(self, key: str, default: Any = None) -> str:  # type: ignore[override]
        """The prompt, whoever asks."""
        return self.prompt


def _adapter_words(peft_config: Any) -> dict[str, Any]:
    """Flat words for a `peft.LoraConfig`.

    Raises:
        ConfigError: it sets something that the section `lora` does not have.
    """
    if peft_config is None:
        return {}
    usual = type(peft_config)()
    words: dict[str, Any] = {"use_peft": True}
    left = {"task_type", "inference_mode", "base_model_name_or_path", "peft_type", "runtime_config"}
    names = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
    for name, value in vars(peft_config).items():
        if name in names:
            words[names[name]] = value
        elif name == "target_modules" and value is not None:
            words["lora_target_modules"] = value if isinstance(value, str) else sorted(value)
        elif name not in left and value != getattr(usual, name, None):
            raise ConfigError(
                f"peft_config.{name}={value!r}: adapters here have r, alpha, dropout and "
                "target_modules; pass a PEFT model as model= for others"
            )
    return words


def _one_of(name: str, *values: Any) -> Any:
    """The one value that is given.

    Raises:
        ConfigError: two different ones are.
    """
    given = [value for value in values if value is not None]
    if any(value is not given[0] and not _same(value, given[0]) for value in given[1:]):
        raise ConfigError(
            f"{name} is given twice, with different values: {given[0]!r} and {given[1]!r}"
        )
    return given[0] if given else None


def _same(first: Any, second: Any) -> bool:
    plain = (str, int, float, bool)
    return isinstance(first, plain) and isinstance(second, plain) and first == second


def _worlds_or_rows(data: Any) -> tuple[list[Any], Any]:
    """What the second argument of a trainer means: worlds, or rows."""
    if data is None:
        return [], None
    if _is_world(data):
        return [data], None
    if isinstance(data, list | tuple) and data and all(_is_world(each) for each in data):
        return list(data), None
    return [], data


def _is_world(value: Any) -> bool:
    return (
        isinstance(value, Environment | SimulatedEnvironment | LLMEnvironment)
        or inspect.isclass(value)
        or inspect.isfunction(value)
    )


def _listed(worlds: Any) -> list[Any]:
    if worlds is None:
        return []
    return list(worlds) if isinstance(worlds, list | tuple) else [worlds]


def _agent_names(count: int) -> list[str]:
    return ["agent"] if count == 1 else [f"agent_{i}" for i in range(count)]


@cache
def trainer_class(name: str) -> type[Trainer]:
    """The class `XTrainer` of an algorithm, made once.

    Args:
        name: its public name (`mrlm.core.faces`).
    """
    found = faces()[name]
    algorithm = registry.load("algorithms", found.algorithm)
    body = {
        "__doc__": f"Trains with `{algorithm.__name__}` in one call.",
        "__module__": algorithm.__module__,
        "__qualname__": name,
        "algorithm": found.algorithm,
        "args_class": config_class(found.config) if found.defaults else None,
    }
    return type(name, (Trainer,), body)
