"""Conditions under which settings have an effect, which algorithms, sections, workflows and
environments declare as `matters`, and the check of their choices."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from mrlm.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run on which the effect of settings may depend.

    Args:
        rows: the run trains on rows instead of sampled episodes.
        turns: joint steps of an episode, if every episode has the same number; `None`: variable or
            unknown.
        lags: training data may be sampled by older weights.
        truncates: tokens are sampled with top-p, top-k or min-p.
        values: the run has a value estimator.
        policies: settings of every policy with local weights (`PolicyConfig`).
        loaded: those of them whose model is loaded by name.
        limits: joint steps after which each of the training environments ends by itself.
        engine: arguments of the engine.
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
        when: (settings, facts) -> whether it has an effect. False only if it certainly has none.
        otherwise: the reason why it has no effect and, after a semicolon, the fix. It follows the
            words "changes nothing because".
    """

    when: Callable[[Any, RunFacts], Any]
    otherwise: str


def each_of(
    names: str, when: Callable[[Any, RunFacts], object], otherwise: str
) -> dict[str, Matters]:
    """One condition of several settings, whose names are separated by spaces."""
    return dict.fromkeys(names.split(), Matters(when, otherwise))


PLAYED = Matters(
    lambda settings, run: not run.rows,
    "it applies to sampled episodes, and this run trains on a data set; remove it",
)
"""The condition of settings that apply to sampled episodes."""
SEVERAL_TURNS = Matters(
    lambda settings, run: run.turns != 1,
    "every episode has one turn here; remove it, or play several (num_turns)",
)
SEVERAL_AGENTS = Matters(
    lambda settings, run: run.agents > 1, "there is one agent; remove it, or play with several"
)


def check_choices(settings: object, title: str) -> None:
    """Raise `ConfigError` if a setting of type `Literal` has another value."""
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            choices = " or ".join(map(repr, get_args(hint)))
            value = getattr(settings, name)
            raise ConfigError(f"{title}: {name}={value!r} is not known; use {choices}")


def conditions(cls: type[Any]) -> dict[str, Matters]:
    """Setting -> its condition, as declared by a class and its bases; it overrides its bases."""
    declared: dict[str, Matters] = {}
    for base in reversed(cls.__mro__):
        declared |= base.__dict__.get("matters", {})
    return declared


def judged(
    settings: Any, names: Iterable[str], facts: RunFacts, rules: Mapping[str, Matters] | None = None
) -> dict[str, str | None]:
    """The settings `names`, each with the reason why it has no effect; `None`: it has one.

    Args:
        settings: the object (or section) with the settings.
        names: names of the explicitly set ones.
        facts: facts about the run.
        rules: conditions, if the class of `settings` does not declare them.
    """
    rules = conditions(type(settings)) if rules is None else rules
    return {
        name: rules[name].otherwise
        if name in rules and not rules[name].when(settings, facts)
        else None
        for name in names
    }
