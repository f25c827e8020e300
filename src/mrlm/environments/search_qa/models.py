"""The models that a router can query: agents of the episode, with prices and latencies, or the
environment's own search engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.shared.rows import at_least
from mrlm.environments.texts.writing.words import words_of

KEYS = ("agent", "price", "latency", "about")


@dataclass(frozen=True)
class Expert:
    """A model that the router can query.

    Args:
        agent: the agent that answers; `""` is the search engine.
        price: price of a million output tokens.
        latency: seconds per output token.
        about: its description in the router's prompt.
    """

    name: str
    agent: str
    price: float = 0.0
    latency: float = 0.0
    about: str = ""


def experts_of(models: Mapping[str, Any] | Sequence[str]) -> dict[str, Expert]:
    """The models by name, from a user's setting: names, or names with their settings. Raises
    `ConfigError`: no names, invalid names or names equal up to case, two models with the same
    agent, or unknown settings."""
    tables = models if isinstance(models, Mapping) else dict.fromkeys(models, None)
    experts: dict[str, Expert] = {}
    for name, settings in tables.items():
        settings = dict(settings or {})
        if not isinstance(name, str) or not name.strip() or any(c in name for c in ":<>\n"):
            raise ConfigError(f"models: {name!r} cannot be used as a name in a query; rename it")
        unknown = [key for key in settings if key not in KEYS]
        if unknown:
            raise ConfigError(
                f"models.{name}: unknown setting {unknown[0]!r}; it has {', '.join(KEYS)}"
            )
        for key in ("price", "latency"):
            at_least(0, **{f"models.{name}.{key}": settings.get(key, 0.0)})
        experts[name] = Expert(name, **{"agent": name, **settings})
    if not experts or len({name.strip().lower() for name in experts}) < len(experts):
        raise ConfigError(
            f"models: give at least one; names must differ by more than case: {list(experts)}"
        )
    if len({expert.agent for expert in experts.values()}) < len(experts):
        raise ConfigError("models: two of them have the same agent; give each an agent of its own")
    return experts


def tokens_of(message: Message) -> int:
    """Number of tokens that an agent wrote: sampled, or counted by its server, else the number of
    words."""
    if message.turn is not None and message.turn.completion_ids:
        return len(message.turn.completion_ids)
    counted = message.metadata.get("usage")
    return int(counted[1]) if counted else len(words_of(message.content))
