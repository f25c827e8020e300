"""When a setting changes anything: algorithms, sections, workflows and environments declare it as
`matters`, beside their fields, and what was set without effect is found here. It knows none of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What settings may depend on besides those beside them.

    Args:
        rows: it learns from rows instead of play.
        agents: agents that play, where it plays.
        turns: joint steps of an episode, where every episode has the same number; `None`: they
            differ, or are not known.
        lags: what it learns from may be sampled by older weights.
        truncates: tokens are drawn with top-p, top-k or min-p.
        values: something estimates values.
        loads: some policy's model is named, and not handed over alive.
        adapts: some trained policy takes the adapter of `model.lora`.
        limits: joint steps that the trained environments end after by themselves, of each.
        engine: arguments that the engine takes.
        config: the whole `ExperimentConfig`.
    """

    rows: bool = False
    agents: int = 2
    turns: int | None = None
    lags: bool = False
    truncates: bool = False
    values: bool = True
    loads: bool = True
    adapts: bool = True
    limits: tuple[int | None, ...] = (None,)
    engine: frozenset[str] = field(default_factory=frozenset)
    config: Any = None


class Matters(NamedTuple):
    """Under which condition a setting has an effect.

    Args:
        when: (settings, facts) -> whether it has. Says no only where nothing could change.
        otherwise: why it has none, and what to do: the end of a sentence of an error.
    """

    when: Callable[[Any, RunFacts], Any]
    otherwise: str


PLAYED = Matters(
    lambda settings, run: not run.rows,
    "it is about episodes that are played, and this run learns from a data set; remove it",
)
"""Of settings that only matter where something is played."""
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


def without_effect(
    settings: Any, given: Iterable[str], facts: RunFacts, more: Mapping[str, Matters] | None = None
) -> dict[str, str]:
    """Those of the settings `given` that change nothing: name -> the reason."""
    known = conditions(type(settings)) | dict(more or {})
    return {
        name: known[name].otherwise
        for name in given
        if name in known and not known[name].when(settings, facts)
    }
