"""The sampling parameters: the one list from which sections, keywords, the protocols of servers and
clients, their checks and the engines' columns are made."""

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

from mrlm.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


class SamplingField(NamedTuple):
    """A sampling parameter: its default, which of a truncation is off; its range, in which `low` is
    not if `above`; whether it truncates; whether a body of OpenAI's protocol has it: always, where
    it is set (servers of open-weight models accept it), or not under its name."""

    default: Any
    low: float = 0
    high: float = math.inf
    above: bool = False
    truncates: bool = False
    body: Literal["always", "set", "no"] = "set"

    @property
    def kind(self) -> type:
        """`int`, `float`, or `tuple` for texts."""
        return type(self.default)


def _field(default: Any, **about: Any) -> Any:
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters.

    Args:
        max_new_tokens: limit of a completion, in tokens.
        temperature: divisor of the logits; 0 is greedy.
        top_p: sample from the fewest tokens with at least this probability together; 1 is off.
        top_k: sample from this many of the most probable tokens; 0 is off.
        min_p: sample from tokens with at least this fraction of the highest probability; 0 is off.
        stop: texts after which a completion ends.
    """

    max_new_tokens: int = _field(128, low=1, body="no")
    temperature: float = _field(1.0, body="always")
    top_p: float = _field(1.0, high=1, above=True, truncates=True, body="always")
    top_k: int = _field(0, truncates=True)
    min_p: float = _field(0.0, high=1, truncates=True)
    stop: tuple[str, ...] = _field(())

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether the sampling distribution is truncated, so that log-probs are not the model's."""
        return not self.greedy and any(getattr(self, name) != off for name, off in OFF.items())

    def untruncated(self) -> "SamplingParams":
        """The same with the model's own distribution: no truncation, temperature 1."""
        return replace(self, temperature=1.0, **OFF)

    def carried(self, names: Collection[str], door: str) -> dict[str, Any]:
        """The parameters among the `names` that a protocol or an engine has, by its title. Raises
        `ConfigError`: another one is set."""
        for name, entry in FIELDS.items():
            if name not in names and getattr(self, name) != entry.default:
                raise ConfigError(
                    f"{door} has no sampling parameter {name}; remove generation.{name}, or sample "
                    "with an engine that has it"
                )
        return {name: getattr(self, name) for name in FIELDS if name in names}


FIELDS = {f.name: SamplingField(f.default, **f.metadata) for f in fields(SamplingParams)}
OFF = {name: entry.default for name, entry in FIELDS.items() if entry.truncates}
"""Truncation -> its value that is off."""


def takes_sampling(function: F) -> F:
    """Show the sampling parameters in the signature of a function that passes its `**sampling` on
    to `SamplingParams`."""
    signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
    kinds = {name: tuple[str, ...] if e.kind is tuple else e.kind for name, e in FIELDS.items()}
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shown += [
        inspect.Parameter(name, keyword, default=FIELDS[name].default, annotation=kind)
        for name, kind in kinds.items()
    ]
    del function.__annotations__["sampling"]
    function.__annotations__.update(kinds)
    vars(function)["__signature__"] = signature.replace(parameters=shown)
    return function
