"""Whom a router may ask: agents of the episode, with what they cost and how long they take, or a
search engine of the world's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.shared.rows import at_least

KEYS = ("agent", "price", "latency", "about")


@dataclass(frozen=True)
class Expert:
    """A model that can be asked.

    Args:
        name: by which the router asks.
        agent: the seat that answers; `""` is the search engine.
        price: of a million tokens that it writes.
        latency: seconds per token that it writes.
        about: what the router is told of it.
    """

    name: str
    agent: str
    price: float = 0.0
    latency: float = 0.0
    about: str = ""


def experts_of(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Expert]:
    """The models by name, from what a user wrote: names, or names with their settings.

    Raises:
        ConfigError: no names, names that cannot be asked for or are the same but for their case,
            two models on one seat, or settings that do not exist.
    """
    tables = given if isinstance(given, Mapping) else dict.fromkeys(given, None)
    found: dict[str, Expert] = {}
    for name, settings in tables.items():
        settings = dict(settings or {})
        if not isinstance(name, str) or not name.strip() or any(c in name for c in ":<>\n"):
            raise ConfigError(f"models: {name!r} is no name that can be asked for")
        unknown = [key for key in settings if key not in KEYS]
        if unknown:
            raise ConfigError(
                f"models.{name}: there is no setting {unknown[0]!r} (there are: {', '.join(KEYS)})"
            )
        for key in ("price", "latency"):
            at_least(f"models.{name}.{key}", settings.get(key, 0.0), 0)
        found[name] = Expert(name, **{"agent": name, **settings})
    if not found or len({name.strip().lower() for name in found}) < len(found):
        raise ConfigError(f"models must be different names, whatever their case: {list(found)}")
    if len({each.agent for each in found.values()}) < len(found):
        raise ConfigError("models: two of them have the same seat; give each an agent of its own")
    return found


def tokens_of(message: Message) -> int:
    """Tokens that an agent wrote: those that were sampled, those that its server counted, or, for
    words that come from neither, the words."""
    if message.turn is not None and message.turn.completion_ids:
        return len(message.turn.completion_ids)
    counted = message.metadata.get("usage")
    return int(counted[1]) if counted else len(message.content.split())
