"""The sampling parameters: the one list from which sections, keywords, the protocols of servers and
clients, their checks and the engines' columns are made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from mrlm.core.errors import ConfigError

Body = Literal["always", "set", "no"]
"""Whether a body of OpenAI's protocol has a parameter: always, where it is set (servers of
open-weight models accept it), or not under its name."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SamplingField:
    """What the doors know of a sampling parameter.

    Args:
        name: its name in configs, protocols and records.
        kind: `int`, `float`, or `tuple` for texts.
        default: its value where it is not set; that of a truncation is off.
        low, high: its range.
        above: `low` is no value of it.
        truncates: tokens are cut from the distribution, so that log-probs are not the model's.
        body: whether a body of OpenAI's protocol has it.
    """

    name: str
    kind: type
    default: Any
    low: float = 0
    high: float = math.inf
    above: bool = False
    truncates: bool = False
    body: Body = "set"

    def fits(self, value: float) -> bool:
        """Whether a number is in the range."""
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    @property
    def range(self) -> str:
        """The range in words."""
        if self.above:
            return f"above {self.low:g} and at most {self.high:g}"
        finite = f"from {self.low:g} to {self.high:g}"
        return f"at least {self.low:g}" if math.isinf(self.high) else finite


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

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether the sampling distribution is truncated, so that log-probs are not the model's."""
        return not self.greedy and any(getattr(self, name) != off for name, off in OFF.items())

    def untruncated(self) -> SamplingParams:
        """The same with the model's own distribution: no truncation, temperature 1."""
        return replace(self, temperature=1.0, **OFF)

    def carried(self, names: Collection[str], door: str) -> dict[str, Any]:
        """The parameters of a protocol or an engine.

        Args:
            names: those that it has.
            door: its title in messages.

        Raises:
            ConfigError: another one is set.
        """
        for entry in FIELDS.values():
            if entry.name not in names and getattr(self, entry.name) != entry.default:
                raise ConfigError(
                    f"{door} has no sampling parameter {entry.name}; remove "
                    f"generation.{entry.name}, or sample with an engine that has it"
                )
        return {name: getattr(self, name) for name in FIELDS if name in names}


FIELDS: dict[str, SamplingField] = {
    f.name: SamplingField(f.name, type(f.default), f.default, **f.metadata)
    for f in fields(SamplingParams)
}
OFF: dict[str, Any] = {f.name: f.default for f in FIELDS.values() if f.truncates}
"""Truncation -> its value that is off."""
BODY: frozenset[str] = frozenset(f.name for f in FIELDS.values() if f.body != "no")
"""The parameters that a body of OpenAI's protocol has."""


def takes_sampling(function: F) -> F:
    """Show the sampling parameters in the signature of a function that passes its `**sampling` on
    to `SamplingParams`."""
    signature = inspect.signature(function)
    others = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kinds = {f.name: tuple[str, ...] if f.kind is tuple else f.kind for f in FIELDS.values()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=FIELDS[name].default, annotation=kind)
        for name, kind in kinds.items()
    ]
    function.__annotations__.pop("sampling", None)
    function.__annotations__.update(kinds)
    vars(function)["__signature__"] = signature.replace(parameters=[*others, *added])
    return function


def sampling_of(**values: Any) -> SamplingParams:
    """Sampling parameters from keywords; one text or any sequence of texts for a tuple."""
    for name, value in values.items():
        if name in FIELDS and FIELDS[name].kind is tuple:
            values[name] = (value,) if isinstance(value, str) else tuple(value)
    return SamplingParams(**values)
