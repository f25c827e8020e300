"""The sections that say what is played, field by field: who speaks and how, where, in which
workflow, with what engine, and against whom. Strict, as all sections are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mrlm.config.base import (
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
from mrlm.config.plugins import accepted, fitted_arguments
from mrlm.core.matters import Matters
from mrlm.core.types import EnvironmentMode, SamplingParams


class GenerationConfig(Section):
    """How tokens are drawn."""

    max_new_tokens: Count = 128
    temperature: NotNegative = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """1 is off."""
    top_k: Whole = 0
    """0 is off."""
    min_p: Share = 0.0
    """0 is off."""
    stop: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    """Strings that end a completion."""
    max_prompt_tokens: Count | None = None
    """A longer prompt ends the episode as truncated; what fits the model if not set."""

    matters: ClassVar[Mapping[str, Matters]] = {
        **dict.fromkeys(
            ("top_p", "top_k", "min_p"),
            Matters(
                lambda s, run: (
                    s.temperature > 0
                    or any(
                        agent.generation.get("temperature") for agent in run.config.agents.values()
                    )
                ),
                "temperature is 0, so nothing is drawn at random; remove it",
            ),
        ),
    }

    def sampling(self, **overrides: Any) -> SamplingParams:
        """The sampling parameters, with some fields replaced.

        Raises:
            ConfigError: an override is unknown or out of range.
        """
        merged = GenerationConfig(**{**self.model_dump(), **overrides})
        return SamplingParams(
            max_new_tokens=merged.max_new_tokens,
            temperature=merged.temperature,
            top_p=merged.top_p,
            top_k=merged.top_k,
            min_p=merged.min_p,
            stop=tuple(merged.stop),
        )


class AgentConfig(Section):
    """A seat: who speaks with which policy, and how."""

    policy: str | None = None
    """Name of a policy; the one of the agent's own name, or the only one, if not set."""
    system_prompt: str | None = None
    """Put before every conversation of this agent."""
    generation: dict[str, Any] = Field(default_factory=dict)
    """Fields of `generation` that are different for this agent."""

    @field_validator("generation")
    @classmethod
    def _known(cls, value: dict[str, Any]) -> dict[str, Any]:
        known = set(GenerationConfig.model_fields) - {"max_prompt_tokens"}
        for key in value:
            if key not in known:
                raise ValueError(f"there is no {key!r} for one agent{did_you_mean(key, known)}")
        try:
            checked = GenerationConfig(**value)
        except InvalidConfig as error:
            raise ValueError("; ".join(map(str, error.problems))) from None
        return checked.model_dump(exclude_unset=True)


ADDRESS = re.compile(r"(https?://)?(\[[\da-fA-F:.%]+\]|[^\s:/\[\]@]+):\d{1,5}/?")
"""A server's."""
LENT = "policy:"
"""Before the name of a frozen policy, where an environment names its model."""
REMOTE = ("server_address", "servers_file", "token_env", "tls_ca", "tls_cert", "tls_key")
"""Keys of a world that say where its server is, and who may ask it."""


class EnvironmentConfig(Section):
    """A world. Every key that is not listed here is an argument of its constructor."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    env_type: Reference
    """An environment's name, or `module:Class`."""
    name: FileName | None = None
    """What metrics call it; its type if not set."""
    weight: NotNegative = 1.0
    """How often its tasks come, compared with other worlds; with 0 it is only evaluated."""
    mode: EnvironmentMode = EnvironmentMode.CLIENT
    """`client`: a world that is only asked."""
    max_turns: Count | None = None
    """Joint steps after which an episode is cut short."""
    timeout: Positive = 60.0
    """Seconds one reset or step may take."""
    retries: Whole = 0
    """Times an episode that failed is played again."""
    remote: bool = False
    """Whether it lives on an environment server (`mrlm serve --environments ...`)."""
    server_address: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    """Where: `host:port`, or a list of servers that share the episodes."""
    servers_file: str | None = None
    """A file with an address per line besides; it is read again whenever it changes."""
    token_env: str | None = None
    """Name of the environment variable that holds the servers' token; `MRLM_TOKEN` if not set."""
    tls_ca: str | None = None
    """File of the certificates to trust; turns encryption on."""
    tls_cert: str | None = None
    """File of the client's own certificate, where servers ask for one."""
    tls_key: str | None = None
    """File of its key."""

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
        ),
    }

    if TYPE_CHECKING:

        def __init__(self, /, *, env_type: str, **arguments: Any) -> None: ...

    @field_validator("mode")
    @classmethod
    def _not_trained(cls, value: EnvironmentMode) -> EnvironmentMode:
        if value is EnvironmentMode.SERVER:
            raise ValueError(
                "a world is not a trained policy, so its mode is 'client'; "
                "what is trained is named in policies: or model:"
            )
        return value

    @field_validator("server_address")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for each in value:
            if not ADDRESS.fullmatch(each):
                raise ValueError(
                    f"{each!r} is no address; write host:port, such as localhost:50051"
                )
        return value

    @model_validator(mode="after")
    def _remote_or_not(self) -> EnvironmentConfig:
        given = [name for name in REMOTE if getattr(self, name)]
        if given and not self.remote:
            raise ValueError(f"{given[0]} is for a world on a server: add remote: true")
        if self.remote and not (self.server_address or self.servers_file):
            raise ValueError(
                "remote: true needs server_address (host:port, or a list) or servers_file"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: a certificate and its key")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The keys that are arguments of the constructor."""
        return dict(self.__pydantic_extra__ or {})

    @property
    def lent_policy(self) -> str | None:
        """The policy that `model` names, if it does."""
        model = self.parameters.get("model")
        if not isinstance(model, str) or not model.startswith(LENT):
            return None
        return model.removeprefix(LENT)

    def constructor_arguments(self, plugin: Callable[..., Any]) -> dict[str, Any]:
        """Keyword arguments for the constructor of the world, checked against its signature;
        `max_turns` goes to a parameter of that name, or to `max_attempts`.

        Raises:
            ConfigError: an argument that does not exist, is missing, or has the wrong type.
        """
        given = self.parameters
        if self.max_turns is not None:
            named, _ = accepted(plugin)
            for alias in ("max_turns", "max_attempts"):
                if alias in named and alias not in given:
                    given[alias] = self.max_turns
                    break
        return fitted_arguments(plugin, given, f"environment {self.name or self.env_type!r}")


class WorkflowConfig(Section):
    """Who speaks when. Every other key is an argument of the workflow's constructor."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    name: Reference = "turns"
    """A workflow's name, or `module:function`."""

    if TYPE_CHECKING:

        def __init__(self, /, name: str = "turns", **arguments: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def parameters(self) -> dict[str, Any]:
        """The keys that are arguments of the constructor."""
        return dict(self.__pydantic_extra__ or {})

    def constructor_arguments(self, plugin: Callable[..., Any]) -> dict[str, Any]:
        """Keyword arguments for the workflow's constructor, checked against its signature.

        Raises:
            ConfigError: an argument that does not exist, is missing, or has the wrong type.
        """
        return fitted_arguments(plugin, self.parameters, f"workflow {self.name!r}")


class EngineConfig(Section):
    """What samples."""

    name: Reference = "lean"
    """`lean`; `hf` is the general engine, which `lean` turns to for models it does not know;
    `vllm`, `sglang` and `mrlm` are servers elsewhere."""
    timeout: Positive = 600.0
    """Seconds one completion may take."""
    batch_size: Count = 256
    """Rows that are decoded at once; more wait, and come in as others finish."""
    cache_mib: Whole = 1024
    """Memory for keys and values that `lean` keeps from turn to turn, in MiB; 0 keeps none."""
    tolerance: Positive | None = None
    """How far log-probs of engine and trainer may be apart after an exchange of weights (nats, of
    any token); what the engine takes for rounding if not set."""
    base_url: str | None = None
    """Of an engine that is a server: where it is, `http://host:port` (`mrlm`: `host:port`)."""
    servers: dict[str, str] | None = None
    """policy -> server, where whole models have one each."""
    model: str | None = None
    """The model's name on the server; what the server says if not set."""
    api_key_env: str | None = None
    """The environment variable with the server's key or token."""
    ca: str | None = None
    """A PEM file of certificates to trust; `mrlm` uses TLS then."""
    sync_folder: str | None = None
    """Where weights are written for the server to read, a folder that it sees under the same path;
    a temporary one if not set."""
    sleep: bool | None = None
    """The server gives its memory back while policies learn; not if not set."""
    max_retries: Whole | None = None
    """How often a call is repeated that failed for a reason that may pass; 4 if not set."""
    max_concurrent: Count | None = None
    """Calls that are under way at the same time; 256 if not set."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "tolerance": Matters(
            lambda s, run: run.config.training.checks != "off",
            "with training.checks=off engine and trainer are not compared; remove one of the two",
        ),
        **{
            name: Matters(
                lambda s, run, name=name: name in run.engine,
                "this engine takes no such setting; remove it",
            )
            for name in ("batch_size", "cache_mib")
        },
    }

    def of_server(self) -> dict[str, Any]:
        """What is set of the keys that only engines with servers have."""
        found: dict[str, Any] = {}
        for key in type(self).model_fields:
            if key not in ("name", "timeout", "batch_size", "cache_mib", "tolerance"):
                found[key] = getattr(self, key)
        return {key: value for key, value in found.items() if value is not None}


class EvaluationConfig(Section):
    """Held-out tasks, played now and then."""

    every: Count | None = None
    """Iterations between evaluations; at the start and the end only, if not set."""
    episodes: Whole = 0
    """Tasks per evaluation; 0 is off."""
    greedy: bool = True
    """Take the most probable token; `false` samples as in training."""
    samples: Count = 1
    """Plays of each task, for the mean and the best of k; more than one needs `greedy: false`."""
    at_start: bool = True
    """Evaluate before the first iteration, too."""
    environments: list[EnvironmentConfig] = Field(default_factory=list)
    """Worlds that are evaluated, beside those of `environments:`, and never trained on."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "every": Matters(
            lambda s, run: s.episodes or s.wrote("episodes") or run.config.opponents.on,
            "episodes is 0, so nothing is evaluated; set evaluation.episodes, or remove it",
        ),
        **dict.fromkeys(
            ("greedy", "samples", "at_start", "environments"),
            Matters(
                lambda s, run: s.episodes or s.wrote("episodes"),
                "episodes is 0, so nothing is evaluated; set evaluation.episodes, or remove it",
            ),
        ),
    }


class OpponentsConfig(Section):
    """Whom policies play against besides each other: snapshots of themselves, and others."""

    every: Count | None = None
    """Iterations between snapshots, the first before training; none are taken if not set."""
    keep: Annotated[int, Field(ge=2)] = 8
    """Snapshots of a policy that are kept: the first, the newest, and of the others those that are
    spread most evenly over the run."""
    source: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    """Model or run folders of further opponents, for every policy of `policies`; always kept."""
    policies: list[str] | None = None
    """Whose seats opponents take; those of all trained policies if not set."""
    matchmaking: Literal["latest", "uniform", "pfsp"] = "uniform"
    """Which are met: the newest, any, or rather those that are lost against."""
    power: NotNegative = 2.0
    """With `pfsp`, the chance to be met grows as this power of the share of lost games."""
    self: Share = 0.5  # pyright: ignore[reportGeneralTypeIssues]
    """Share of the tasks that policies play as they are, without opponents."""
    at_once: Count = 1
    """Different opponents of a policy in an iteration: as many are held in memory."""
    games: Count = 32
    """Games against each opponent in an evaluation."""
    tasks_per_game: Count = 1
    """Held-out tasks that such a game is made of, each played with every way to sit: who is paid
    more in all of them together has won. Where chance decides much, more tell more."""

    matters: ClassVar[Mapping[str, Matters]] = {
        **dict.fromkeys(
            ("matchmaking", "self", "at_once", "games", "tasks_per_game"),
            Matters(
                lambda s, run: s.on or s.wrote("every"),
                "there are no opponents; set opponents.every or opponents.source, or remove it",
            ),
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
        """Whether there are any opponents."""
        return self.every is not None or bool(self.source)
