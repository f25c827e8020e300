"""When a setting changes anything: algorithms, sections, workflows and environments declare it as
`matters`, beside their fields. It knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What settings may depend on besides those beside them.

    Args:
        rows: the run trains on rows instead of play.
        agents: agents that play.
        turns: joint steps of an episode, where every episode has the same number; `None`: they
            differ, or are not known.
        lags: older weights may have sampled what is trained on.
        truncates: tokens are drawn with top-p, top-k or min-p.
        values: something estimates values.
        policies: the settings of every policy that has weights here (`PolicyConfig`).
        loaded: those of them whose model is loaded by its name.
        limits: joint steps after which each of the trained environments ends by itself.
        engine: arguments that the engine takes.
        config: the whole `ExperimentConfig`.
    """

    rows: bool = False
    agents: int = 2
    turns: int | None = None
    lags: bool = False
    truncates: bool = False
    values: bool = True
    policies: Mapping[str, Any] = field(default_factory=dict)
    loaded: Collection[str] = ()
    limits: tuple[int | None, ...] = (None,)
    engine: Collection[str] = ()
    config: Any = None


class Matters(NamedTuple):
    """The condition under which a setting has an effect.

    Args:
        when: (settings, facts) -> whether it has. False only where nothing could change.
        otherwise: the reason why it has none and, after a semicolon, the fix. It follows the words
            "changes nothing because".
    """

    when: Callable[[Any, RunFacts], Any]
    otherwise: str


PLAYED = Matters(
    lambda settings, run: not run.rows,
    "it is about episodes that are played, and this run trains on a data set; remove it",
)
"""The condition of settings that are about play."""
SEVERAL_TURNS = Matters(
    lambda settings, run: run.turns != 1,
    "every episode has one turn here; remove it, or play several (num_turns)",
)
SEVERAL_AGENTS = Matters(
    lambda settings, run: run.agents > 1, "there is one agent; remove it, or play with several"
)


def conditions(cls: type[Any]) -> dict[str, Matters]:
    """setting -> its condition, as a class and its bases declare them; a class replaces what its
    bases say of a setting."""
    found: dict[str, Matters] = {}
    for base in reversed(cls.__mro__):
        found |= base.__dict__.get("matters", {})
    return found


def judged(
    settings: Any, given: Iterable[str], facts: RunFacts, known: Mapping[str, Matters] | None = None
) -> dict[str, str | None]:
    """The settings `given`, each with the reason why it changes nothing; `None`: it does.

    Args:
        settings: the object (or section) that holds them.
        given: names of those that were set.
        facts: of the run.
        known: conditions, where the class of `settings` does not declare them.
    """
    known = conditions(type(settings)) if known is None else known
    return {
        name: known[name].otherwise
        if name in known and not known[name].when(settings, facts)
        else None
        for name in given
    }
