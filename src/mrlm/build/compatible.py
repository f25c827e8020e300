"""Fills in what another library's trainer does where nothing is given (`mrlm.trl` and
`mrlm.comlrl`)."""

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mrlm.build.arguments import joined_words, one_of
from mrlm.build.learners import TEAM
from mrlm.build.policies import LiveObjects, load_with
from mrlm.config import ExperimentConfig
from mrlm.config.aliases import NUM_AGENTS, PER_DEVICE, UNSET, WORDS, FlatWords
from mrlm.config.compatible import COUNTED, as_here
from mrlm.config.flat_words import library_defaults
from mrlm.config.normalize import NestedSettings, section_key
from mrlm.core.errors import ConfigError
from mrlm.core.log import log

Usual = frozenset[str]
"""Config paths that have the default of another library's class."""


def with_usual(
    config: ExperimentConfig, usual: Mapping[str, Any], given_names: Collection[str]
) -> tuple[ExperimentConfig, Usual]:
    """A config with the defaults of another library where nothing is given, and their paths:
    `usual` is config path -> default (`algorithm.` is the algorithm's section), `given_names` the
    algorithm's settings that are given."""
    written, section = NestedSettings(config.given()), section_key(config.training.algorithm)
    changes: dict[str, Any] = {}
    one_turn = written.get("workflow.max_turns") == 1
    for path, value in usual.items():
        if one_turn and path in ("workflow.name", "workflow.branches"):
            continue  # one turn forks nothing
        head, _, setting = path.partition(".")
        if head == "algorithm":
            is_set, path = setting in given_names, f"{section}.{setting}"
        else:
            is_set = written.get(_canonical(path)) is not UNSET
        if path != NUM_AGENTS and not is_set:
            changes[path] = value
    paths = frozenset(map(_canonical, changes))
    return (config.merged(changes) if changes else config), paths


def with_keywords(kind: Any, args: Any, words: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`args` with the keywords (`words`) of a trainer that another library counts or converts, and
    the other keywords; both unchanged for a trainer (whose config class is `kind`) or `args` of
    this library. Raises `ConfigError`: one of them contradicts `args`."""
    kind = kind if args is None else type(args)
    face = kind.face_of if isinstance(kind, type) and issubclass(kind, FlatWords) else None
    if face is None or not face.library:
        return args, words
    words = as_here(face, words)
    named = {name: words.pop(name) for name in list(words) if name in WORDS or name in COUNTED}
    usual = kind()
    names = [] if args is None else [field.name for field in dataclasses.fields(kind)]
    changed = {n: v for n in names if (v := getattr(args, n)) != getattr(usual, n)}
    return kind(**joined_words(changed, named)[0]), words


def count_of(
    count: int | None,
    agents: Any,
    kind: type[FlatWords] | None,
    args: object,
    words: dict[str, Any],
) -> int | None:
    """The number of agents of a trainer: as given, by its argument, `args` or `words` (which lose
    it), else by default of another library's class; where `agents` are given, that default is no
    contradiction."""
    written = args.num_agents if isinstance(args, FlatWords) else words.pop(NUM_AGENTS, None)
    count = one_of(NUM_AGENTS, count, written)
    usual = library_defaults(kind).get(NUM_AGENTS)
    if usual is None or count not in (None, usual):
        return count
    return usual if agents is None else None


def critics_of(
    critics: Sequence[Any] | None, kind: type[FlatWords] | None, words: dict[str, Any]
) -> Sequence[Any] | None:
    """The models that critics start from; in another library's class its `critic_model` is one for
    all, which `words` lose."""
    face = None if kind is None else kind.face_of
    if face is None or not face.library or words.get("critic_model") is None:
        return critics
    return one_of("critics", critics, [words.pop("critic_model")])


def with_critics(
    config: ExperimentConfig, parts: LiveObjects, critics: Sequence[Any] | None
) -> ExperimentConfig:
    """A config whose critics start from given models, one for each trained policy or one for the
    team, as CoMLRL's `critics`; live models become parts. Raises `ConfigError`: their number
    differs, or the algorithm has no critic of its own."""
    if critics is None:
        return config
    critic = config.algorithm_settings().spec.critic
    if not critic.of_team and critic.topology != "separate":
        raise ConfigError(
            "critics: the critic shares the policy's network; set use_separate_critic=True, or "
            "remove it"
        )
    trained = [name for name, candidate in config.policies.items() if candidate.trainable]
    names = [TEAM] if critic.of_team else trained
    if len(critics) not in (len(names), len(config.agents)) and len(critics) != 1:
        raise ConfigError(f"critics: {len(critics)} models for {len(names)}; give one of each")
    first = critics[0]
    if isinstance(first, str) and all(critic == first for critic in critics):
        return config.merged({"training": {"critic_model": first}})
    models = list(critics)[: len(names)] if len(critics) >= len(names) else [first] * len(names)
    for name, model in zip(names, models, strict=True):
        live = not isinstance(model, str | os.PathLike)
        parts.critics[name] = (model if live else load_with(config.model, str(model)), None)
    return config


def evaluated(
    config: ExperimentConfig, kind: type[FlatWords] | None, usual: Usual, rows: int | None
) -> tuple[ExperimentConfig, Usual]:
    """A config that evaluates as another library does: only on its evaluation rows (`rows` of them,
    `None` without any), sampled as in training; and the config paths (`usual`) with that library's
    defaults, whose settings are of the class `kind`. Raises `ConfigError`: an evaluation without
    rows."""
    face = None if kind is None else kind.face_of
    section = config.evaluation
    if face is None or not face.library:
        return config, usual
    trl = face.library == "trl"
    if rows is None:
        path = "evaluation.every" if trl else "evaluation.episodes"
        if section.every is not None and path not in usual:
            raise ConfigError(f"{path}: this trainer evaluates on eval_dataset=; give it")
        return config.merged({"evaluation": {"episodes": 0}}), usual
    changes: dict[str, Any] = {"greedy": False}
    if trl and section.every is None:
        return config, usual
    if trl:
        size = config.algorithm_settings().group_size
        changes |= {"episodes": rows, "at_start": False, "samples": size}
    elif "evaluation.episodes" in usual:
        changes |= {"episodes": min(section.episodes, rows)}
    set_keys = config.given().get("evaluation", {}).keys()
    new = {k: v for k, v in changes.items() if k not in set_keys or f"evaluation.{k}" in usual}
    return config.merged({"evaluation": new}), usual | {f"evaluation.{key}" for key in new}


def held_out(kind: type[FlatWords] | None, eval_dataset: Any) -> Any:
    """The evaluation rows of a trainer whose settings are of the class `kind`: `False` (no row is
    held out) in that of another library, if none are given."""
    face = None if kind is None else kind.face_of
    return False if eval_dataset is None and face and face.library else eval_dataset


def note_text_prompts(kind: type[FlatWords] | None, rows: Any, formatters: Any) -> None:
    """One message where the prompts of a trainer of another library are text, which that library
    does not render: those of TRL's in its rows, and of CoMLRL's always, but for messages in rows
    without `formatters`."""
    face = None if kind is None else kind.face_of
    if face is None or not face.library or not hasattr(rows, "__getitem__"):
        return  # not a stream, which is read once
    first = next(iter(rows), None)
    library = {"trl": "TRL", "comlrl": "CoMLRL"}[face.library]
    formatted = formatters is not None and face.library == "comlrl"
    if formatted or (isinstance(first, Mapping) and isinstance(first.get("prompt"), str)):
        text = f"text is a user's message here, in the chat template; {library} continues it raw"
        log.warning("prompt: %s (docs/coming_from.md)", text)


def _canonical(path: str) -> str:
    return "training.batch_size" if path == PER_DEVICE else path
