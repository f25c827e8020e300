"""The sections for play, field by field: generation, agents, environments, workflow, evaluation and
opponents."""

import inspect
import re
from collections.abc import Callable, Mapping
from math import isinf
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mrlm.config.base import (
    MOST,
    Count,
    FileName,
    NotNegative,
    Positive,
    Reference,
    Section,
    Share,
    Whole,
    listed,
)
from mrlm.config.errors import InvalidConfig, did_you_mean
from mrlm.config.paths import LENT
from mrlm.config.plugins import accepted, fitted_arguments
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters, each_of
from mrlm.core.sampling import FIELDS, OFF, SamplingField, SamplingParams
from mrlm.core.types import EnvironmentMode


def _sampling_field(entry: SamplingField) -> tuple[Any, Any]:
    """Type and default of a sampling parameter in a section."""
    if entry.kind is tuple:
        return Annotated[list[str], BeforeValidator(listed)], Field(default_factory=list)
    high = MOST if entry.kind is int else None if isinf(entry.high) else entry.high
    limits = {"gt" if entry.above else "ge": entry.low, "le": high}
    return Annotated[entry.kind, Field(**limits)], entry.default


_fields: Any = {name: _sampling_field(entry) for name, entry in FIELDS.items()}
if TYPE_CHECKING:

    class _Sampling(Section):
        def __getattr__(self, name: str) -> Any: ...
else:
    _Sampling = pydantic.create_model("_Sampling", __base__=Section, **_fields)


class GenerationConfig(_Sampling):
    """The sampling parameters (`SamplingParams`), and the limit of prompts."""

    max_prompt_tokens: Count | None = None
    """Maximum prompt length: a longer one ends the episode as truncated; by default the model's."""

    matters: ClassVar[Mapping[str, Matters]] = each_of(
        " ".join(OFF),
        lambda s, run: (
            s.temperature > 0
            or any(agent.generation.get("temperature") for agent in run.config.agents.values())
        ),
        "temperature is 0, so sampling is greedy; remove it",
    )

    def sampling(self, **overrides: Any) -> SamplingParams:
        """The sampling parameters, with some fields replaced. Raises `ConfigError`: an override is
        unknown or out of range."""
        merged = GenerationConfig(**{**self.model_dump(), **overrides})
        return SamplingParams(*attrgetter(*FIELDS)(merged))


class AgentConfig(Section):
    """An agent: its policy, system prompt and sampling parameters."""

    policy: str | None = None
    """Name of a policy; by default that with the agent's name, or the only one."""
    system_prompt: str | None = None
    """System prompt of every conversation of this agent."""
    generation: dict[str, Any] = Field(default_factory=dict)
    """Fields of `generation` that differ for this agent."""
    formatter: str | None = None
    """In `team.yaml`, the template of what the agent reads of a text: `Short: {prompt}`."""
    formatter_function: str | None = None
    """In `team.yaml`, the name of the Python function instead, which is no part of the team."""

    matters: ClassVar[Mapping[str, Matters]] = each_of(
        "formatter formatter_function",
        lambda s, run: False,
        "it is used where a team reads a text (`Team.play`); give the environment `reward` "
        "formatters, or remove it",
    )

    @field_validator("generation")
    @classmethod
    def _known(cls, value: dict[str, Any]) -> dict[str, Any]:
        allowed = set(GenerationConfig.model_fields) - {"max_prompt_tokens"}
        for key in value:
            if key not in allowed:
                raise ValueError(f"unknown key {key!r} for an agent{did_you_mean(key, allowed)}")
        try:
            checked = GenerationConfig(**value)
        except InvalidConfig as error:
            raise ValueError("; ".join(map(str, error.problems))) from None
        return checked.model_dump(exclude_unset=True)


ADDRESS = re.compile(r"(https?://)?(\[[\da-fA-F:.%]+\]|[^\s:/\[\]@]+):\d{1,5}/?")
"""The address of a server."""
REMOTE = ("server_address", "servers_file", "token_env", "tls_ca", "tls_cert", "tls_key")
"""Keys of an environment for its server and credentials."""


class PluginSection(Section):
    """A section of a plug-in. Every other key is an argument of its constructor."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    @property
    def parameters(self) -> dict[str, Any]:
        """The keys that are arguments of the constructor."""
        return dict(self.__pydantic_extra__ or {})


class EnvironmentConfig(PluginSection):
    """An environment. Every other key is an argument of its constructor."""

    env_type: Reference
    """An environment's name, or `module:Class`."""
    name: FileName | None = None
    """Its name in metrics; by default its type."""
    weight: NotNegative = 1.0
    """Relative frequency of its tasks among the environments; with 0 it is only evaluated."""
    mode: EnvironmentMode = EnvironmentMode.CLIENT
    """`client`: the environment is not trained."""
    max_turns: Count | None = None
    """Joint steps after which an episode is truncated."""
    timeout: Positive | None = None
    """Time limit of one reset or step, in seconds; by default the environment's `step_timeout`
    (60; no limit in `reward`)."""
    retries: Whole = 0
    """Maximum number of retries of a failed episode."""
    remote: bool = False
    """Whether it runs on an environment server (`mrlm serve --environments ...`)."""
    server_address: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    """Address of the server: `host:port`, or a list of servers that share the episodes."""
    servers_file: str | None = None
    """A file with further addresses, one per line; it is reread when it changes."""
    token_env: str | None = None
    """Environment variable with the servers' token; by default `MRLM_TOKEN`."""
    tls_ca: str | None = None
    """File of trusted certificates; enables encryption."""
    tls_cert: str | None = None
    """File of the client's certificate, if servers require one."""
    tls_key: str | None = None
    """File of the certificate's key."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "weight": Matters(
            lambda s, run: (
                not s.weight
                or (
                    any(each is s for each in run.config.environments)
                    and any(e.weight and e is not s for e in run.config.environments)
                )
            ),
            "it is the only environment that is trained on, or it is only evaluated; remove it",
        )
    }

    if TYPE_CHECKING:

        def __init__(self, /, *, env_type: str, **arguments: Any) -> None: ...

    @field_validator("mode")
    @classmethod
    def _not_trained(cls, value: EnvironmentMode) -> EnvironmentMode:
        if value is EnvironmentMode.SERVER:
            raise ValueError(
                "an environment is not trained, so its mode is 'client'; "
                "name the trained model in policies: or model:"
            )
        return value

    @field_validator("server_address")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for address in value:
            if not ADDRESS.fullmatch(address):
                raise ValueError(
                    f"{address!r} is not an address; write host:port, such as localhost:50051"
                )
        return value

    @model_validator(mode="after")
    def _remote_or_not(self) -> "EnvironmentConfig":
        remote_settings = [name for name in REMOTE if getattr(self, name)]
        if remote_settings and not self.remote:
            raise ValueError(
                f"{remote_settings[0]} is for an environment on a server: add remote: true"
            )
        if self.remote and not (self.server_address or self.servers_file):
            raise ValueError(
                "remote: true needs server_address (host:port, or a list) or servers_file"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key need each other: a certificate and its key")
        return self

    @property
    def lent_policy(self) -> str | None:
        """The policy named by `model`, or `None`."""
        model = self.parameters.get("model")
        if not isinstance(model, str) or not model.startswith(LENT):
            return None
        return model.removeprefix(LENT)

    @property
    def remote_arguments(self) -> dict[str, Any]:
        """The arguments for a server, which knows the constructor."""
        arguments = self.parameters
        return arguments if self.max_turns is None else arguments | {"max_turns": self.max_turns}

    def constructor_arguments(self, plugin: Callable[..., Any]) -> dict[str, Any]:
        """Keyword arguments for the environment's constructor, checked against its signature;
        `max_turns` is passed to a parameter of that name, or to `max_attempts`. Raises
        `ConfigError`: an argument is unknown, missing, or of the wrong type."""
        arguments, (named, _) = self.parameters, accepted(plugin)
        free = named.keys() - arguments
        limits = [name for name in ("max_turns", "max_attempts") if name in free]
        if self.max_turns is not None and limits:
            arguments[limits[0]] = self.max_turns
        return fitted_arguments(plugin, arguments, f"environment {self.name or self.env_type!r}")


class WorkflowConfig(PluginSection):
    """The workflow. Every other key is an argument of its constructor."""

    name: Reference = "turns"
    """A workflow's name, or `module:function`."""

    if TYPE_CHECKING:

        def __init__(self, /, name: str = "turns", **arguments: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def constructor_arguments(self, plugin: Callable[..., Any]) -> dict[str, Any]:
        """Checked keyword arguments for the workflow's constructor; a plain function has none.
        Raises `ConfigError`: an argument is unknown, missing, or of the wrong type."""
        if not inspect.isclass(plugin):
            for name in self.parameters:
                raise ConfigError(
                    f"workflow.{name}: {self.name!r} is a plain function, which takes no settings; "
                    "remove it, or write a class that derives from mrlm.Workflow with this field"
                )
            return {}
        return fitted_arguments(plugin, self.parameters, f"workflow {self.name!r}")


class EarlyStoppingConfig(Section):
    """The end of a run that no longer improves."""

    metric: str = "reward/mean"
    """Of evaluations; `eval/` may be left out."""
    patience: Count = 3
    """Evaluations in a row without an improvement after which the run ends, saved."""
    min_change: NotNegative = 0.0
    """Difference from which on a value is an improvement."""
    maximize: bool = True
    """Whether larger values are better."""


class EvaluationConfig(Section):
    """The evaluation on held-out tasks."""

    every: Count | None = None
    """Iterations between evaluations; by default only at the start and the end."""
    episodes: Whole = 0
    """Tasks per evaluation; 0 disables it."""
    greedy: bool = True
    """Take the most probable token; `false` samples as in training."""
    samples: Count = 1
    """Episodes of each task, for avg@k and pass@k; more than one requires `greedy: false`."""
    at_start: bool = True
    """Also evaluate before the first iteration."""
    environments: list[EnvironmentConfig] = Field(default_factory=list)
    """Environments for evaluation only, in addition to `environments:`."""
    keep_best: bool | str = False
    """Keep the policies of the best evaluation in `best/`: by the metric `eval/reward/mean`, or by
    the one named here."""
    early_stopping: EarlyStoppingConfig | None = None
    """End the run when evaluations no longer improve; by default never."""
    effects: Whole | None = None
    """Tasks of each evaluation that are replayed with messages left empty, for the effects of
    agents: `eval/marginal/<agent>`, `eval/influence/<agent>/<other>` and `eval/changed/<agent>/
    <other>`. Costs an episode for each agent and each message that another agent reads, and two
    forward passes for each reader. By default, for a team whose episodes can be replayed here, as
    many (at most 8) as take one replay for 40 episodes that are played from one evaluation to the
    next; 0 measures none."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "every": Matters(
            lambda s, run: s.episodes or s.wrote("episodes") or run.config.opponents.on,
            "episodes is 0, so nothing is evaluated; set evaluation.episodes, or remove it",
        ),
        **each_of(
            "greedy samples at_start environments effects keep_best early_stopping",
            lambda s, run: s.episodes or s.wrote("episodes"),
            "episodes is 0, so nothing is evaluated; set evaluation.episodes, or remove it",
        ),
    }

    def replays(self, steps: int, episodes: int) -> int:
        """Replays of an evaluation where `effects` is not set: one for 40 episodes that are played
        from one evaluation to the next, in a run of `steps` iterations of so many episodes."""
        if self.effects is not None or not self.episodes:
            return 0
        return (min(self.every or steps, steps) * episodes + self.episodes * self.samples) // 40


class OpponentsConfig(Section):
    """The opponent pool: snapshots of the policies, and other models."""

    every: Count | None = None
    """Iterations between snapshots, the first before training; none by default."""
    keep: Annotated[int, Field(ge=2)] = 8
    """Number of snapshots kept per policy: the first, the newest, and others spread most evenly
    over the run."""
    source: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    """Model or run folders of permanent further opponents for every policy of `policies`."""
    policies: list[str] | None = None
    """Policies whose roles opponents play; by default all trained policies."""
    matchmaking: Literal["latest", "uniform", "pfsp"] = "uniform"
    """Selection of opponents: the newest, uniformly, or with priority for stronger ones."""
    power: NotNegative = 2.0
    """With `pfsp`, the selection weight is the fraction of lost games to this power."""
    self: Share = 0.5  # pyright: ignore[reportGeneralTypeIssues]
    """Fraction of the tasks that are played without opponents."""
    at_once: Count = 1
    """Number of different opponents of a policy per iteration, all held in memory."""
    games: Count = 32
    """Games against each opponent in an evaluation."""
    tasks_per_game: Count = 1
    """Held-out tasks per game, each played with every assignment of roles: the policy with the
    higher total reward wins. Use more for environments with much randomness."""

    matters: ClassVar[Mapping[str, Matters]] = {
        **each_of(
            "matchmaking self at_once games tasks_per_game",
            lambda s, run: s.on or s.wrote("every"),
            "no opponents are set; give opponents.every or opponents.source, or remove it",
        ),
        "keep": Matters(
            lambda s, run: s.every or s.wrote("every"),
            "no snapshots are taken; set opponents.every, or remove it",
        ),
        "power": Matters(
            lambda s, run: s.matchmaking == "pfsp",
            "only matchmaking=pfsp reads it; set that, or remove it",
        ),
    }

    @property
    def on(self) -> bool:
        return self.every is not None or bool(self.source)
