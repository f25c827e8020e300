"""The one-call interface: `XTrainer(...).train()`. It turns live objects and flat words into a
config and its parts, independent of the algorithm; the trainer of an algorithm is this class with
its name set."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

from mrlm.build import arguments, compatible
from mrlm.build.arguments import names_of
from mrlm.build.environments import make_environments
from mrlm.build.folder import open_log, run_folder
from mrlm.build.live_arguments import opened_llm, rewards_of, scored_rows, with_parts
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.build.sources import total_steps
from mrlm.config import ExperimentConfig
from mrlm.config.aliases import NUM_AGENTS, UNSET, WEIGHTS, WORDS, FlatWords
from mrlm.config.compatible import compatible_faces
from mrlm.config.errors import InvalidConfig
from mrlm.config.flat_words import (
    algorithm_fields,
    config_class,
    library_defaults,
    setting_of,
    split_config,
    twice,
)
from mrlm.config.normalize import section_key
from mrlm.core import registry
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.faces import faces
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.checkpoint import MANIFEST
from mrlm.play.workflow import AnyWorkflow
from mrlm.runs import EvalResult, LastStep, TrainResult, evaluate, save_policies
from mrlm.training.adapted_callbacks import adapted, parts_of
from mrlm.training.run import Callback, Run


class Trainer:
    """Trains agents in one call.

    Args:
        policy_or_model: an `LLMEnvironment`, a live model, or a folder or hub id.
        data: environments to play in, or rows to train on (also: `train_dataset`,
            `preference_dataset`).
        config: an `ExperimentConfig`; anything given beside it must not contradict it.
        model, tokenizer: initial model of every policy (also: `agent_model`, `processing_class`).
        peft_config: a `peft.LoraConfig`, for the section `lora`.
        agents: agent -> model reference; equal references share one policy. A list names models for
            agents in order.
        num_agents: number of agents, where the environment does not define it.
        critics: the models that critics start from: one of each policy, or one of the team (also
            `critic_model=`, one for all).
        environment: an environment, a class or function that makes one, or a list of these.
        eval_envs: environments that are evaluated and never trained on; in a run without a data
            set, the same as `environment`.
        app: a function of a row that calls agents through an OpenAI client, or `module:function`; a
            list is a command (environment `app`). Then `reward_func` is `(row, result) -> number`,
            and a list of `agents` has their names.
        workflow: a coroutine function `(task, agents, env)` or a workflow's name.
        reward_func, formatters: reward function(s) and a formatter per agent, over `train_dataset`.
        reward_weights: factor of each reward function in the sum.
        reward_processor: number -> number, applied to every reward.
        external_transition: writes the prompts between two turns (with `num_turns` above 1), called
            by keyword as CoMLRL does: `(prompt, agent_completions, num_agents,
            prompt_history_per_agent, response_history_per_agent) -> [prompt, ...]`, or by position.
        train_dataset, eval_dataset: rows; for online algorithms they become a reward-function
            environment.
        args: an `XConfig`, which takes the argument names of other trainers, or a mapping of such
            names to values.
        callbacks: `Callback` objects; those of transformers with its common hooks are adapted.
        wandb_config: log to Weights & Biases, with these arguments of `wandb.init` (`project`,
            `entity`, `name`, ...).
        share_policy: `True`: one policy for all agents; `False`: one each; `"lora"`: an adapter
            each on one base.
        **words: any other setting by its name (`num_generations=4`, `max_new_tokens=16`,
            `learning_rate=1e-4`, ...).

    Raises:
        ConfigError: the arguments contradict each other or are incomplete.
    """

    algorithm: ClassVar[str] = ""
    args_class: ClassVar[type[FlatWords] | None] = None
    """A config class whose defaults replace the algorithm's, for the names of other libraries."""
    args: FlatWords | Algorithm | None
    """The config class or algorithm that it was made with, with the keywords in it."""
    _usual: frozenset[str] = frozenset()
    """Config paths that have the default of another library's class."""
    _last: LastStep | None = None

    def __init__(
        self,
        policy_or_model: object = None,
        data: object = None,
        config: ExperimentConfig | None = None,
        *,
        model: object = None,
        agent_model: object = None,
        tokenizer: object = None,
        processing_class: object = None,
        peft_config: object = None,
        agents: Mapping[str, object] | Sequence[object] | None = None,
        num_agents: int | None = None,
        critics: Sequence[object] | None = None,
        environment: object = None,
        eval_envs: object = None,
        app: object = None,
        workflow: AnyWorkflow | str | None = None,
        reward_func: object = None,
        reward_funcs: object = None,
        reward_weights: Sequence[float] | None = None,
        reward_processor: object = None,
        formatters: object = None,
        external_transition: object = None,
        train_dataset: object = None,
        eval_dataset: object = None,
        preference_dataset: object = None,
        args: FlatWords | Algorithm | Mapping[str, object] | None = None,
        callbacks: Sequence[Callback] | None = None,
        wandb_config: Mapping[str, object] | None = None,
        share_policy: bool | str | None = None,
        **words: object,
    ) -> None:
        model = arguments.one_of("model", policy_or_model, model, agent_model)
        tokenizer = arguments.one_of("tokenizer", tokenizer, processing_class)
        reward_func = arguments.one_of("reward_func", reward_func, reward_funcs)
        words, settings = arguments.joined_words(args, arguments.adapter_words(peft_config) | words)
        kind = type(settings) if isinstance(settings, FlatWords) else self.args_class
        num_agents = compatible.count_of(num_agents, agents, kind, settings, words)
        critics = compatible.critics_of(critics, kind, words)
        environments, rows = arguments.environments_or_rows(data, environment)
        rows = arguments.one_of("train_dataset", rows, train_dataset, preference_dataset)
        scoring = rewards_of(reward_weights, settings, words, names_of(agents, num_agents, app))
        scoring |= {"formatters": formatters, "reward_processor": reward_processor, "app": app}
        agents = agents if app is None or isinstance(agents, Mapping) else None  # of an app, names
        self.config: ExperimentConfig = self._config(config, settings, words)
        watched = arguments.listed(eval_envs)
        configured = self.config.environments or self.config.data.dataset
        if not environments and rows is None and not configured:
            environments, watched = watched, []
        self._parts = LiveObjects(callbacks=adapted(callbacks, self.args), usual=self._usual)
        self.config, model, tokenizer, environments, watched = opened_llm(
            model, tokenizer, self.config, self._parts, environments, watched
        )
        live = wandb_config, workflow, external_transition
        self.config = with_parts(self.config, self._parts, *live)
        self._parts.environments, self._parts.eval_environments = environments, watched
        self._parts.rows = self._scored(rows, reward_func, eval_dataset, scoring, kind)
        self._cast(model, tokenizer, agents, num_agents, share_policy)
        self.config = compatible.with_critics(self.config, self._parts, critics)

    def _scored(
        self,
        rows: Any,
        reward_func: Any,
        eval_dataset: Any,
        scoring: Mapping[str, Any],
        kind: type[FlatWords] | None,
    ) -> Any:
        """The rows to train on; `None` where they become an environment with reward functions."""
        compatible.note_text_prompts(kind, rows, scoring.get("formatters"))
        if isinstance(eval_dataset, Mapping):
            names = ", ".join(map(repr, eval_dataset))
            raise DataError(f"eval_dataset: several data sets ({names}); give one of them")
        held = compatible.held_out(kind, eval_dataset)
        scored = scored_rows(self.config, rows, reward_func, held, scoring)
        if scored is None:
            return rows
        self._parts.environments = [*self._parts.environments, scored]
        count = None if eval_dataset is None else scored.num_tasks("eval")
        self.config, self._usual = compatible.evaluated(self.config, kind, self._usual, count)
        self._parts.usual = self._usual
        return None

    # -- from arguments to a config ----------------------------------------------------------------

    def _config(
        self,
        config: ExperimentConfig | None,
        args: FlatWords | Algorithm | None,
        words: dict[str, Any],
    ) -> ExperimentConfig:
        """The config with the algorithm's name, the settings of `args` and the flat words in it."""
        name = self.algorithm or (config.training.algorithm if config else "grpo")
        declared = [item for item in signature(Trainer).parameters if item != "words"]
        words = arguments.with_paths(words, declared, name)
        arguments.refuse_unknown(words, declared, name)
        if config is None:
            config = ExperimentConfig(training={"algorithm": name})  # pyright: ignore
        elif self.algorithm and config.training.algorithm != self.algorithm:
            if "algorithm" in config.training.model_fields_set:
                raise ConfigError(
                    f"{type(self).__name__} trains with {self.algorithm!r}, but "
                    f"config.training.algorithm is {config.training.algorithm!r}"
                )
            config = config.merged({"training": {"algorithm": self.algorithm}})
        explicit = {*config.given().get(section_key(name), {}), *map(setting_of, words)}
        paths = {WORDS[word].path for word in words if word in WORDS}
        paths |= {f"algorithm.{key}" for key in explicit}
        self.args, words = args, words = compatible.with_keywords(self.args_class, args, words)
        fields, overrides = ({}, {}) if args is None else split_config(args)
        usual = library_defaults(type(args) if isinstance(args, FlatWords) else self.args_class)
        rest = {key: value for key, value in usual.items() if key not in paths}
        rest |= {key: overrides.get(key) for key in (NUM_AGENTS, WEIGHTS)}
        overrides = {k: v for k, v in overrides.items() if rest.get(k, UNSET) != v}
        fields = {k: v for k, v in fields.items() if rest.get(f"algorithm.{k}", UNSET) != v}
        for path, value in overrides.items():
            if words.get(path, value) != value:
                raise InvalidConfig([twice(path, (value, "args"), (words[path], "a keyword"))])
        if fields or overrides or words:
            config = config.merged(overrides | words, fields, replacing=False)
        settings = config.algorithm_settings()
        explicit |= fields.keys() | settings.implied({"preset": settings.preset}).keys()
        if self.args_class is not None:
            plain, declared = (algorithm_fields(item) for item in (type(settings), self.args_class))
            alike = {key: value for key, value in declared.items() if value != plain[key]}
            usual = {f"algorithm.{key}": value for key, value in alike.items()} | usual
        config, self._usual = compatible.with_usual(config, usual, explicit)
        if "experiment_name" not in config.model_fields_set:
            config = config.merged({"experiment_name": name.rsplit(":", 1)[-1].lower()})
        return config

    def _cast(
        self,
        model: Any,
        tokenizer: Any,
        agents: Mapping[str, Any] | Sequence[Any] | None,
        num_agents: int | None,
        share: bool | str | None,
    ) -> None:
        """Assign policies to agents (equal references share one), as sections of the config."""
        config, parts = self.config, self._parts
        env_agents = [agent for env in make_environments(config, parts) for agent in env.agents]
        references = arguments.references_of(
            list(config.agents), env_agents, model, agents, num_agents
        )
        if config.policies:
            if isinstance(model, str | os.PathLike):
                self.config = config.merged({"model": {"model_name_or_path": str(model)}})
            elif model is not None:
                parts.models = dict.fromkeys(config.policies, (model, tokenizer))
            return
        together = agents is not None if share is None else share is True
        lora = share == "lora"
        policies, sections, models = arguments.assign_references(
            references, tokenizer, together, lora
        )
        parts.models |= models
        self.config = config.merged({"policies": policies, "agents": sections})

    # -- training and evaluation -------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run, built at first use."""
        return self._begun().run

    def _begun(self) -> LastStep:
        if self._last is None:
            self._last = LastStep(build(self.config, self._parts), self)
        return self._last

    def __getattr__(self, name: str) -> Any:
        """`model`, `processing_class` and `state`, as TRL's trainers have them."""
        theirs = name in ("model", "processing_class", "state")
        if theirs and name in (parts := parts_of(self.run, self.args)):
            return parts[name]
        raise AttributeError(f"{type(self).__name__}.{name}: see trainer.run and its learners")

    def add_callback(self, callback: object) -> None:
        """Add a callback, as the argument `callbacks`."""
        self._parts.callbacks = [*self._parts.callbacks, *adapted([callback], self.args)]
        if self._last is not None:
            self._last.run.callbacks = tuple(self._parts.callbacks)

    def train(
        self,
        num_iterations: int | str | os.PathLike[str] | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
        save: bool | None = None,
    ) -> TrainResult:
        """Train. A further call continues for as many iterations.

        Args:
            num_iterations: replaces `training.num_iterations` and the epochs; also what to resume
                from, as TRL's first argument.
            resume_from_checkpoint: a run folder or checkpoint; `True` is this run's own folder.
            save: save the end of this call, as a checkpoint and as `final/`. By default the end of
                the first call is saved, and that of later ones by `save()`, or when the trainer or
                the program ends: a loop of short calls does not write its models in each.
                `training.save_steps` holds anyway.

        Raises:
            KeyboardInterrupt: interrupted; the run was saved and can be resumed.
        """
        if isinstance(num_iterations, bool | str | os.PathLike):
            num_iterations, resume_from_checkpoint = None, num_iterations
        if num_iterations is not None:
            self.config = self.config.merged({"training": {"num_iterations": num_iterations}})
        if self._last is not None and not resume_from_checkpoint:
            self._go_on(self._last.run)
        if resume_from_checkpoint:
            self.save()
            own_folder = resume_from_checkpoint is True
            folder = run_folder(self.config) if own_folder else resume_from_checkpoint
            self._last = LastStep(build(self.config, self._parts, Path(folder).expanduser()), self)
        return self._begun().train(save)

    def _go_on(self, run: Run) -> None:
        """Prepare a run that was used before to continue for as many iterations."""
        more = total_steps(self.config.training, run.spec, run.source.num_tasks())
        run.total_steps = run.step + more
        run.source.plan(run.total_steps)
        run.stopping = run.interrupted = False
        state = {"step": run.step, "parts": {"log": run.log.state()}}
        run.log.close()
        run.log = open_log(self.config, run.folder, run.total_steps, state, run.peers)

    def evaluate(
        self,
        episodes: int | None = None,
        samples: int | None = None,
        greedy: bool | None = None,
        *,
        record: str | os.PathLike[str] | None = None,
    ) -> EvalResult:
        """Play held-out tasks with the current policies; arguments, result and errors are those of
        `mrlm.evaluate`."""
        return evaluate(self.run, episodes, samples, greedy, record=record)

    def save(self) -> None:
        """Save the last step, as a checkpoint and as `final/`, if it is not saved yet."""
        if self._last is not None:
            self._last.save()

    def save_model(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write Hugging Face folders: `folder` for one policy, `folder/<policy>` for several. Other
        files in it remain, such as those of the run, whose folder is meant by `None`."""
        target = Path(folder or self.run.folder).expanduser()
        if not target.is_dir() or (target / MANIFEST).is_file() or not any(target.iterdir()):
            return save_policies(self.run, target)
        made = save_policies(self.run, target / ".model")
        if self.run.peers.main:
            about = shutil.ignore_patterns(MANIFEST, "README.md", "card.json", "t*.yaml")
            shutil.copytree(made, target, dirs_exist_ok=True, ignore=about)
            shutil.rmtree(made)
        return target


@cache
def trainer_class(name: str, library: str = "") -> type[Trainer]:
    """The class `XTrainer` of an algorithm, made once.

    Args:
        name: its public name (`mrlm.core.faces`).
        library: another library, whose defaults it has (`mrlm.config.compatible`).
    """
    face = (compatible_faces(library) if library else faces())[name]
    algorithm = registry.load("algorithms", face.algorithm)
    body = {
        "__doc__": f"Trains with `{algorithm.__name__}` in one call.",
        "__module__": f"mrlm.{library}" if library else algorithm.__module__,
        "__qualname__": name,
        "algorithm": face.algorithm,
        "args_class": config_class(face.config, library) if face.defaults else None,
    }
    return type(name, (Trainer,), body)


def compatible_names(library: str) -> dict[str, Callable[[], Any]]:
    """Public name -> factory, of the classes of `mrlm.trl` or `mrlm.comlrl`."""
    made, faces = {"config": config_class, "trainer": trainer_class}, compatible_faces(library)
    return {name: partial(made[face.kind], name, library) for name, face in faces.items()}
