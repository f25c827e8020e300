"""The config of a whole experiment: all sections, the algorithm's settings, the stages of a
pipeline, and consistency checks between them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from mrlm.config import comparison, normalize, paths, yaml
from mrlm.config.base import FileName, Section
from mrlm.config.engine_section import EngineConfig
from mrlm.config.errors import InvalidConfig, Problem, problems_of, unknown_key
from mrlm.config.play_sections import (
    AgentConfig,
    EnvironmentConfig,
    EvaluationConfig,
    GenerationConfig,
    OpponentsConfig,
    WorkflowConfig,
)
from mrlm.config.policy_sections import ModelConfig, PolicyConfig
from mrlm.config.sections import (
    AsynchronyConfig,
    DataConfig,
    DistributedConfig,
    RecordConfig,
    StageConfig,
    TrainingConfig,
)
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.replacing import replacing


class ExperimentConfig(Section):
    """The config of an experiment.

    Besides the fields below it takes one section named after the run's algorithm (`grpo`, `ppo`,
    ...; `algorithm` for `module:Class`), as a mapping or as an object such as `PPOConfig`, and the
    flat words of other trainers at the top level.

    Raises:
        ConfigError: one line per problem, each with its dotted key.

    Examples:
        >>> config = ExperimentConfig(training=TrainingConfig(algorithm="ppo"), ppo={"gamma": 0.99})
        >>> config.ppo.gamma
        0.99
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    experiment_name: FileName = "experiment"
    output_dir: str | None = None
    """The run folder; `outputs/<experiment_name>` if not set."""
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    agents: dict[str, AgentConfig] = Field(default_factory=dict)
    environments: list[EnvironmentConfig] = Field(default_factory=list)
    """The environments; `eval_envs` is an alias."""
    workflow: WorkflowConfig = Field(default_factory=WorkflowConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    opponents: OpponentsConfig = Field(default_factory=OpponentsConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    asynchrony: AsynchronyConfig = Field(default_factory=AsynchronyConfig)
    record: RecordConfig = Field(default_factory=RecordConfig)
    distributed: DistributedConfig = Field(default_factory=DistributedConfig)
    stages: list[StageConfig] = Field(default_factory=list)
    """A pipeline: each stage is this config with changes, and starts from the previous weights."""
    _stage_configs: tuple[list[Any], list[tuple[str, "ExperimentConfig"]]] = PrivateAttr(
        default_factory=lambda: ([], [])
    )
    """The configs of the stages, after the set values of which they were made, and their own."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The section of an algorithm, such as `config.ppo`."""

    def __init__(self, /, **data: Any) -> None:
        data = normalize.normalise(data)
        if isinstance(folder := data.get("output_dir"), str):
            data["output_dir"] = os.path.expanduser(folder)
        sections = {key: value for key, value in data.items() if key in type(self).model_fields}
        settings, problems = _algorithm_sections(data)
        try:
            super(Section, self).__init__(**sections, **settings)
        except ValidationError as error:
            problems += problems_of(error, type(self))
        if problems:
            raise InvalidConfig(problems)
        if self.stages:
            self.stage_configs()
        elif contradictions := [Problem(key, text) for key, text in _contradictions(self)]:
            raise InvalidConfig(contradictions)

    def algorithm_settings(self) -> Any:
        """The run's algorithm with its settings: a new object for each call, without shared
        state."""
        name = self.training.algorithm
        section = (self.__pydantic_extra__ or {}).get(normalize.section_key(name))
        cls = normalize.algorithm_class(name)
        fields = {} if section is None else normalize.changed_fields(section)
        return _settings(cls, fields, normalize.section_key(name))

    def given(self) -> dict[str, Any]:
        """The explicitly set values, in canonical keys."""
        values: dict[str, Any] = {}
        for key in normalize.SECTIONS:
            value = getattr(self, key)
            mapped = normalize.as_mappings(value)
            if key in self.model_fields_set or (isinstance(value, Section) and mapped):
                values[key] = mapped
        for key, value in (self.__pydantic_extra__ or {}).items():
            changed = normalize.changed_fields(value)
            if changed:
                values[key] = changed
        return values

    def merged(
        self,
        changes: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        *,
        replacing: bool = True,
    ) -> "ExperimentConfig":
        """A copy of this config with changes.

        Args:
            changes: nested mappings, dotted paths (`{"training.seed": 1}`) and flat words, in any
                combination; mappings are merged, lists are replaced.
            fields: settings of the run's algorithm.
            replacing: whether set values may change; else a second value is an error that shows
                both.

        Raises:
            ConfigError: the changes or the result are invalid.
        """
        base = self.given()
        settings = {normalize.section_key(self.training.algorithm): dict(fields)} if fields else {}
        below = normalize.merge(base, settings)
        changed = normalize.normalise(_nested(changes), base=below)
        if replacing:
            return ExperimentConfig(**normalize.merge(below, changed))
        tree = normalize.NestedSettings(base)
        for part in (changed, settings):
            for path, value in normalize.leaves(part):
                tree.put(path, value, "given beside the config")
        return ExperimentConfig(**tree.data)

    def joined(
        self, changes: Mapping[str, Any], fields: Mapping[str, Any] | None = None
    ) -> "ExperimentConfig":
        """`merged` without `replacing`, its name until 0.2."""
        return self.merged(changes, fields, replacing=False)

    def stage_configs(self) -> list[tuple[str, "ExperimentConfig"]]:
        """The runs of this experiment in order, each with its name: its stages, or itself (named
        `""`). Sections of algorithms that a stage does not use are left out of it. Raises
        `ConfigError`: a stage is invalid; its keys start with `stages.<index>`."""
        if not self.stages:
            return [("", self)]
        whole = self.given()
        made, stages = self._stage_configs
        if made != [whole, *(stage.given() for _, stage in stages)]:  # first, or assigned to since
            stages = self._made_stages(whole)
            self._stage_configs = [whole, *(stage.given() for _, stage in stages)], stages
        runs: list[tuple[str, ExperimentConfig]] = []
        for section, (_, stage) in zip(self.stages, stages, strict=True):
            runs.append((section.name, stage))
        return runs

    def _made_stages(self, values: Mapping[str, Any]) -> list[tuple[str, "ExperimentConfig"]]:
        base = {key: value for key, value in values.items() if key != "stages"}
        runs: list[tuple[str, ExperimentConfig]] = []
        used: set[str] = {normalize.section_key(self.training.algorithm)}
        for index, stage in enumerate(self.stages):
            stage_path = f"stages.{index} ({stage.name})"
            if stage.name in [name for name, _ in runs]:
                raise InvalidConfig([Problem(f"{stage_path}.name", "another stage has this name")])
            try:
                changes = normalize.normalise(stage.changes, base=base)
                whole = normalize.merge(base, changes)
                own_section = normalize.section_key(normalize.algorithm_name(whole))
                foreign = _sections_of_others(whole, own_section) - changes.keys()
                settings = {key: value for key, value in whole.items() if key not in foreign}
                runs.append((stage.name, ExperimentConfig(**settings)))
            except InvalidConfig as error:
                problems = [Problem(f"{stage_path}.{p.key}", p.text) for p in error.problems]
                raise InvalidConfig(problems) from None
            used.add(own_section)
        unused = _sections_of_others(base, "") - used
        if unused:
            key = sorted(unused)[0]
            raise InvalidConfig([Problem(key, "no stage uses this algorithm; remove the section")])
        return runs

    def resolved(self) -> dict[str, Any]:
        """All settings as plain data, in a fixed order; `ExperimentConfig(**resolved)` is an equal
        config."""
        result: dict[str, Any] = {}
        for key in normalize.SECTIONS:
            result[key] = comparison.plain(getattr(self, key))
            if key == "training":
                result |= self._resolved_algorithms()
        own_models = all(policy.model or policy.endpoint for policy in self.policies.values())
        if self.policies and own_models and not self.stages:  # no policy begins with it
            del result["model"]["model_name_or_path"]
        result["output_dir"] = self.output_dir or f"outputs/{self.experiment_name}"
        if self.training.learning_rate is None and not self.stages:
            rate = self.algorithm_settings().learning_rate
            result["training"]["learning_rate"] = rate
        return result

    def _resolved_algorithms(self) -> dict[str, Any]:
        sections = dict(self.__pydantic_extra__ or {})
        if not self.stages:
            key = normalize.section_key(self.training.algorithm)
            sections = {key: self.algorithm_settings()}
        return {
            key: {
                name: comparison.plain(getattr(value, name))
                for name in normalize.algorithm_fields(type(value))
            }
            for key, value in sections.items()
        }

    def to_yaml(self) -> str:
        """The resolved config as YAML."""
        return yaml.write(self.resolved())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_yaml()` to a file atomically; its paths are relative to the file's folder."""
        path = Path(path).expanduser()
        with replacing(path) as temporary:
            data = paths.relative(self.resolved(), path.parent)
            temporary.write_text(yaml.write(data), encoding="utf-8")
        return path

    def hash(self) -> str:
        """Sixteen hexadecimal digits of the settings that must not change on resumption."""
        return comparison.fingerprint(self.resolved())


def diff(old: ExperimentConfig, new: ExperimentConfig) -> list[str]:
    """`key: old -> new` for every difference that forbids resuming `old` as `new`; keys that may
    change are in `comparison.MAY_CHANGE`."""
    before, after = (paths.absolute(config.resolved(), Path()) for config in (old, new))
    return comparison.differences(before, after)


def _nested(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted paths and mappings, in any combination, as nested mappings."""
    result: dict[str, Any] = {}
    for path, value in changes.items():
        for part in reversed(path.split(".")):
            value = {part: value}
        result = normalize.merge(result, value)
    return result


def _sections_of_others(data: Mapping[str, Any], own_section: str) -> set[str]:
    return {key for key in data if key not in normalize.SECTIONS and key != own_section}


def _settings(cls: type[Any], fields: Mapping[str, Any], key: str) -> Any:
    try:
        return cls(**fields)
    except InvalidConfig as error:
        problems = [(item.key.replace(cls.__name__, key, 1), item.text) for item in error.problems]
        raise InvalidConfig([Problem(*problem) for problem in problems]) from None
    except ConfigError as error:
        raise InvalidConfig([Problem(key, str(error))]) from None


def _algorithm_sections(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The algorithm objects of a canonical config, the run's own always among them, and their
    problems. Sections of others are for stages; without stages they are an error."""
    name = normalize.algorithm_name(data)
    own_section = normalize.section_key(name)
    result: dict[str, Any] = {}
    problems: list[Problem] = []
    algorithm_names = registry.names("algorithms")
    keys = [own_section, *sorted(_sections_of_others(data, own_section))]
    for key in keys:
        fields = data.get(key)
        if key != own_section and key not in (*algorithm_names, "algorithm"):
            problems.append(unknown_key(key, [*normalize.SECTIONS, "eval_envs", *algorithm_names]))
            continue
        text, foreign = None, key != own_section
        if foreign and not data.get("stages") and normalize.known_fields(name) is not None:
            text = f"training.algorithm is {name!r}, so this section has no effect; remove one"
        elif foreign and key == "algorithm":
            text = "it is the section of an algorithm given as training.algorithm=module:Class"
        elif fields is not None and not isinstance(fields, Mapping):
            text = f"must be a mapping of keys to values, not {type(fields).__name__}"
        if text is not None:
            problems.append(Problem(key, text))
            continue
        try:
            cls = normalize.algorithm_class(name if key == own_section else key)
            result[key] = _settings(cls, fields or {}, key)
        except InvalidConfig as error:
            problems += error.problems
        except ConfigError as error:
            where = "training.algorithm" if key == own_section else key
            problems.append(Problem(where, str(error)))
    return result, problems


def _contradictions(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Settings that contradict others, as key and message."""
    training = config.training
    algorithm = (config.__pydantic_extra__ or {})[normalize.section_key(training.algorithm)]
    spec = algorithm.spec
    parts = algorithm.num_minibatches * training.gradient_accumulation_steps
    if training.batch_size % parts:
        lower = training.batch_size // parts * parts
        nearest = " or ".join(str(size) for size in (lower, lower + parts) if size)
        text = (
            f"{training.batch_size} cannot be divided into num_minibatches "
            f"({algorithm.num_minibatches}) x gradient_accumulation_steps "
            f"({training.gradient_accumulation_steps}) = {parts} equal parts; use {nearest}"
        )
        yield "training.batch_size", text
    if spec.sampling.siblings and algorithm.group_size < 2:
        key = f"{normalize.section_key(training.algorithm)}.group_size"
        yield key, "it compares the episodes of one task with each other, so it needs at least 2"
    if training.warmup_ratio is not None and training.warmup_steps:
        yield "training.warmup_ratio", "give it or training.warmup_steps, not both"
    if config.evaluation.samples > 1 and config.evaluation.greedy:
        text = "greedy episodes of one task are all the same; set evaluation.greedy=false"
        yield "evaluation.samples", text
    if config.generation.temperature == 0 and (spec.sampling.siblings or spec.sampling.replays):
        text = "greedy episodes are all the same, so there is nothing to compare; use 1.0"
        yield "generation.temperature", text
    beside = spec.critic.of_team or spec.critic.topology == "separate"
    if training.critic_model is not None and not beside:
        text = "the algorithm has no critic with a model of its own; remove it, or use mappo"
        if spec.critic.topology == "shared" and "values" in spec.columns:
            text = "the critic shares the policy's network; set critic: separate, or remove it"
        yield "training.critic_model", text
    distributed = config.distributed
    set_fields = distributed.model_fields_set
    if "strategy" in set_fields and "enabled" not in set_fields and distributed.strategy != "ddp":
        text = "distributed.enabled is not set, so it changes nothing; set distributed.enabled=true"
        yield "distributed.strategy", text
    environments = [*config.environments, *config.evaluation.environments]
    named = [section.name for section in environments if section.name]
    for name in sorted({name for name in named if named.count(name) > 1}):
        yield "environments", f"two environments are called {name!r}"
    for agent, section in config.agents.items():
        if config.policies and section.policy and section.policy not in config.policies:
            text = registry.unknown(section.policy, list(config.policies), "policies")
            yield f"agents.{agent}.policy", text
    for name, policy in config.policies.items():
        if policy.misfit is not None:
            key, text = policy.misfit
            yield f"policies.{name}.{key}", text
