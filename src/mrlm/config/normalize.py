"""Conversion of user input to canonical keys: aliases are resolved, flat words moved to their
sections, objects converted to mappings. Values are validated later."""

import dataclasses
import inspect
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass

from mrlm.config.aliases import PER_DEVICE, UNSET, WORDS, Word
from mrlm.config.base import Section
from mrlm.config.errors import InvalidConfig, Problem
from mrlm.config.flat_words import (
    algorithm_fields,
    applies,
    changed_fields,
    flat_words,
    folded,
    twice,
)
from mrlm.config.other_libraries import refused_settings
from mrlm.config.sections import TrainingConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError

SECTIONS = (
    *("experiment_name", "output_dir", "training", "model", "policies", "agents", "environments"),
    *("workflow", "engine", "generation", "evaluation", "opponents", "data", "asynchrony"),
    *("record", "distributed", "stages"),
)
"""The keys of an experiment, in the order in which they are written."""

DEFAULT_ALGORITHM: str = TrainingConfig.model_fields["algorithm"].default


def section_key(algorithm: str) -> str:
    """The key of an algorithm's section: its name, or `algorithm` for `module:Class`."""
    return "algorithm" if ":" in algorithm else algorithm


def algorithm_name(data: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> str:
    """`training.algorithm` of a config as written, over a `base`; if neither has one, the algorithm
    named by a preset."""
    layers = (data, base or {})
    for key in ("algorithm", "preset"):
        for layer in layers:
            name = _written(layer, key)
            if name is not None and (key == "algorithm" or name in registry.names("algorithms")):
                return name
    return DEFAULT_ALGORITHM


def _written(data: Mapping[str, Any], key: str) -> str | None:
    """A key at the top level or in `training`, if it is a name."""
    names = (data.get(key), _training(data).get(key))
    return next((name for name in names if isinstance(name, str)), None)


def _training(data: Mapping[str, Any]) -> dict[str, Any]:
    """The set values of the section `training`; none if it is of a wrong type."""
    section = as_mappings(data.get("training", {}))
    return section if isinstance(section, dict) else {}


def algorithm_class(name: str) -> type[Any]:
    """The class of an algorithm. Raises `ConfigError`: the name is unknown, or is not an
    algorithm."""
    try:
        TrainingConfig(algorithm=name)
        cls = registry.load("algorithms", name)
    except InvalidConfig as error:
        raise ConfigError(error.problems[0].text) from None
    if not inspect.isclass(cls) or not _validates(cls):
        raise ConfigError(
            f"{name!r} is not an algorithm; give a class that derives from mrlm.Algorithm"
        )
    return cls


def _validates(cls: type[Any]) -> bool:
    """Whether a class, or one of its bases, is a dataclass that checks its fields."""
    return any(map(is_pydantic_dataclass, cls.__mro__))


def known_fields(name: str) -> dict[str, Any] | None:
    """Settings of an algorithm: name -> default; `None` for an unknown algorithm."""
    try:
        return algorithm_fields(algorithm_class(name))
    except ConfigError:
        return None


def word_at(section: str, key: str, algorithm: str, fields: Mapping[str, object]) -> Word | None:
    """The meaning of a key at the top level (`place=""`), in `training` or in the algorithm's
    section; `None` if it is in its own section already."""
    if section == "" and (key in SECTIONS or key == section_key(algorithm) or key == "eval_envs"):
        return None
    if section == "training" and key in TrainingConfig.model_fields:
        return None
    if key in fields:
        return None if section == section_key(algorithm) else Word(f"algorithm.{key}")
    return WORDS.get(key)


def _neutral(section: str, key: str, value: object, algorithm: str) -> bool:
    """Whether a key is a setting of another library with the value of the behaviour here."""
    own_section = section_key(algorithm)
    settings = TrainingConfig.model_fields if section == "training" else (*SECTIONS, own_section)
    if key in (known_fields(algorithm) or {} if section == own_section else settings):
        return False
    refused = refused_settings().get(key)
    return refused is not None and refused.accepts(value)


class NestedSettings:
    """Nested mappings that record the source of each value, and reject a second value."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.written: dict[str, str] = {}

    def get(self, path: str) -> Any:
        """The value at a dotted path, or `UNSET`."""
        value: Any = self.data
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return UNSET
            value = value[part]
        return value

    def put(self, path: str, value: object, source: str) -> None:
        """Set a value; setting the same value twice is allowed. Raises `ConfigError`: the path
        already has another value."""
        current = self.get(path)
        if value == {} and isinstance(current, Mapping):
            return
        if current is not UNSET and current != value:
            raise InvalidConfig(
                [twice(path, (current, self.written.get(path, path)), (value, source))]
            )
        *above, last = path.split(".")
        node = self.data
        for part in above:
            inner = node.get(part)
            if inner is None:
                inner = node[part] = {}
            if not isinstance(inner, dict):
                return  # sections of a wrong type are reported by their validation
            node = inner
        node[last] = value
        self.written.setdefault(path, source)


def normalise(
    data: Mapping[str, Any], algorithm: str | None = None, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A whole config or a part of one, whose sections may be mappings, sections or config objects,
    with canonical keys and unchanged values.

    Args:
        algorithm: the run's algorithm, if `data` does not name it.
        base: the canonical config that `data` will be merged into.

    Raises:
        ConfigError: both an alias and its key are given, or a setting has two values.
    """
    base = base or {}
    name = algorithm or algorithm_name(data, base)
    words: list[tuple[str, str, object]] = []
    section = section_key(name)
    tree = NestedSettings(_mappings(_aliases(data, name), section, words))
    fields = known_fields(name) or {}
    for where in ("", "training", section):
        inside = tree.data if where == "" else tree.data.get(where)
        if not isinstance(inside, dict):
            continue
        for key in [key for key in inside if word_at(where, str(key), name, fields)]:
            words.append((where, key, inside.pop(key)))
        for key in [key for key, value in inside.items() if _neutral(where, str(key), value, name)]:
            del inside[key]
    pending: list[tuple[str, object]] = []
    for where, key, raw in folded(words):
        source = f"{where}.{key}" if where else key
        word = word_at(where, key, name, fields) or WORDS[key]
        value = word.value(raw)
        if value is UNSET or (fields and not applies(word, value, fields, source)):
            continue
        if word.path == PER_DEVICE:
            pending.append((source, value))
            continue
        setting = word.path.removeprefix("algorithm.")
        path = word.path if setting == word.path else f"{section}.{setting}"
        tree.put(path, value, source)
    for source, value in pending:
        _put_per_device(tree, base, name, value, source)
    return tree.data


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` applied: mappings are merged, anything else is replaced."""
    result = dict(base)
    for key, value in changes.items():
        current = result.get(key)
        both = isinstance(current, Mapping) and isinstance(value, Mapping)
        result[key] = merge(current, value) if both else value  # type: ignore[arg-type]
    return result


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything except non-empty mappings."""
    for key, value in data.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def _aliases(data: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """`eval_envs` is `environments`; `algorithm` is the run's algorithm, or its section."""
    result = {str(key): value for key, value in data.items()}
    if "eval_envs" in result:
        if "environments" in result:
            text = (
                "it is the same key as environments; give one of them (environments that are only "
                "evaluated belong in evaluation.environments)"
            )
            raise InvalidConfig([Problem("eval_envs", text)])
        result["environments"] = result.pop("eval_envs")
    section = section_key(algorithm)
    if isinstance(result.get("algorithm"), str):
        training = _training(result)
        chosen_name = training.get("algorithm", result["algorithm"])
        if chosen_name != result["algorithm"]:
            both = (chosen_name, "training.algorithm"), (result["algorithm"], "algorithm")
            raise InvalidConfig([twice("training.algorithm", *both)])
        result["training"] = {**training, "algorithm": result.pop("algorithm")}
    elif _written(result, "algorithm") is None and _written(result, "preset") == algorithm:
        result["training"] = {**_training(result), "algorithm": algorithm}
    if "algorithm" in result and section != "algorithm":
        if section in result:
            text = f"it is the same section as {section}; give one of them"
            raise InvalidConfig([Problem("algorithm", text)])
        result[section] = result.pop("algorithm")
    workflow = result.get("workflow")
    if isinstance(workflow, str):
        result["workflow"] = {"name": workflow}
    return result


def _mappings(
    data: dict[str, Any], own_section: str, words: list[tuple[str, str, object]]
) -> dict[str, Any]:
    """Sections and config objects as mappings of their set values; the flat words of the run's
    algorithm are added to `words`."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(value, type) and dataclasses.is_dataclass(value):
            flat = flat_words(value)
            if flat and key != own_section:
                word = next(iter(flat))
                text = f"it is not the run's algorithm, so set {WORDS[word].path} where it is"
                raise InvalidConfig([Problem(f"{key}.{word}", text)])
            words += [(key, word, raw) for word, raw in flat.items()]
            if _validates(type(value)):
                value = changed_fields(value)
        result[key] = as_mappings(value)
    return result


def as_mappings(value: object) -> Any:
    """A copy of a value with all sections inside it converted to mappings of their set values."""
    if isinstance(value, Section):
        return as_mappings(value.model_dump(exclude_unset=True))
    if isinstance(value, Mapping):
        return {str(key): as_mappings(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_mappings(inner) for inner in value]
    return value


def _put_per_device(
    tree: NestedSettings, base: Mapping[str, Any], algorithm: str, value: Any, source: str
) -> None:
    """Set the batch size from `per_device_train_batch_size`, which is multiplied by the parts of
    `gradient_accumulation_steps` and by the processes of torchrun. It counts tasks; completions
    where TRL's trainer of the algorithm does."""
    below, section = NestedSettings(dict(base)), section_key(algorithm)

    def setting(path: str, default: Any) -> Any:
        return next((at for at in (tree.get(path), below.get(path)) if at is not UNSET), default)

    try:
        parts = setting("training.gradient_accumulation_steps", 1)
        checked = TrainingConfig(batch_size=value, gradient_accumulation_steps=parts)
    except InvalidConfig as error:
        texts = [problem.text for problem in error.problems]
        raise InvalidConfig([Problem(source, text) for text in texts[:1]]) from None
    value, parts = checked.batch_size, checked.gradient_accumulation_steps
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    total, cls = value * parts * processes, algorithm_class(algorithm)
    if algorithm in WORDS["per_device_train_batch_size"].completions:
        implied = cls.implied({"preset": setting(f"{section}.preset", None)})
        usual = implied.get("group_size", (known_fields(algorithm) or {})["group_size"])
        size = setting(f"{section}.group_size", usual)
        if total % size:
            step = size // math.gcd(size, parts * processes)
            lower = value // step * step
            fits = " or ".join(str(number) for number in (lower, lower + step) if number)
            text = (
                f"generation_batch_size = {value} x {parts} gradient_accumulation_steps x "
                f"{processes} processes = {total} completions cannot be divided by "
                f"num_generations ({size}); use per_device_train_batch_size={fits}"
            )
            raise InvalidConfig([Problem(source, text)])
        total //= size
        minibatches = setting(f"{section}.num_minibatches", 1)
        if parts > 1 and total % minibatches == 0:
            training = tree.data.setdefault("training", {})
            training["gradient_accumulation_steps"] = math.gcd(parts, total // minibatches)
    tree.put("training.batch_size", total, source)
