"""The flat argument names of other trainers, and the config path of each (`aliases.yaml`): one
table for `args=`, keywords and YAML."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from mrlm.config.other_libraries import OFF, Refused, read_table, refused_settings
from mrlm.core.errors import ConfigError
from mrlm.core.faces import Face
from mrlm.core.log import log
from mrlm.core.sampling import FIELDS

UNSET: Any = object()
"""Result of a conversion for a value that is equivalent to an unset one."""

PER_DEVICE = "training.per_device_train_batch_size"
"""Placeholder of `training.batch_size` until `gradient_accumulation_steps` is known."""

NUM_AGENTS = "num_agents"
"""An argument of trainers, not a setting: a config names its agents."""

WEIGHTS = "reward_weights"
"""Another one: in a config it belongs to an environment."""

REFERENCE_KL = 0.1
"""CoMLRL's default `reference_kl_coef`, if enabled without a number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """The target of a flat word.

    Args:
        path: in the config; `algorithm.` is the section of the run's algorithm.
        kind: type of the values.
        values: value -> our value; other values are unchanged, and validated by the section.
        convert: converts a value, instead of the table.
        absent: handles an algorithm without the setting.
        completions: algorithms in which the word counts completions, as in TRL, and not tasks.
    """

    path: str
    kind: Any = Any
    values: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    convert: Callable[[Any], object] | None = None
    absent: Refused | None = None
    completions: tuple[str, ...] = ()

    def value(self, raw: Any) -> Any:
        """The converted value, or `UNSET`."""
        raw = raw.value if isinstance(raw, Enum) else raw  # such as transformers' own
        if self.convert is not None:
            return self.convert(raw)
        return self.values.get(raw, raw) if isinstance(raw, bool | str | None) else raw


def _precision(name: str) -> Callable[[Any], object]:
    def convert(value: object) -> object:
        if isinstance(value, bool):
            return name if value else UNSET
        return UNSET if value is None else f"{name}={value}"

    return convert


def _quantization(value: Any) -> object:
    """`model.quantization` for a `BitsAndBytesConfig`, or its settings as a mapping."""
    if value is None:
        return UNSET
    if not isinstance(value, Mapping):
        value = value.to_dict() if hasattr(value, "to_dict") else {"quant_method": value}
    unused = {"skip_modules": None, "threshold": 6.0, "has_fp16_weight": False}
    for key, usual in ((f"llm_int8_{name}", usual) for name, usual in unused.items()):
        if (value.get(key) or usual) != usual:
            raise ConfigError(
                f"quantization_config: {key}={value[key]} is not used here; leave it out, or load "
                "the model with it and pass the object as model=, with peft_config="
            )
    computed = str(value.get("bnb_4bit_compute_dtype") or "float32").removeprefix("torch.")
    if computed != "float32":
        log.info("bnb_4bit_compute_dtype=%s: products have the type of bf16= or dtype=", computed)
    if value.get("load_in_8bit"):
        return "int8"
    nf4 = value.get("bnb_4bit_quant_type") == "nf4"
    if value.get("load_in_4bit") and nf4 and value.get("bnb_4bit_use_double_quant"):
        return "nf4"
    raise ConfigError(
        "quantization_config: int8 and NF4 with double quantisation (bnb_4bit_quant_type='nf4', "
        "bnb_4bit_use_double_quant=True) are loaded here; for others load the model with it and "
        "pass the object as model=, with peft_config="
    )


CONVERTERS: dict[str, Callable[[Any], object]] = {
    "adapter": lambda value: {} if value else UNSET,
    "bf16": _precision("bf16"),
    "cut_off": lambda value: 0 if value is None or value == -1 else value,
    "fp16": _precision("fp16"),
    "positive": lambda value: UNSET if isinstance(value, int | float) and value <= 0 else value,
    "quantization": _quantization,
}
TYPES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str)},
    "Any": Any,
    "dict[str, Any]": dict[str, Any],
    "bool | str": bool | str,
    "list[float]": list[float],
    "str | dict[str, Any]": str | dict[str, Any],
    "str | list[str]": str | list[str],
}


def _word(path: str, kind: str, how: Mapping[str, Any]) -> Word:
    values = {**how.get("values", {}), **dict.fromkeys(how.get("drop", ()), UNSET)}
    absent = how.get("absent")
    return Word(
        path,
        TYPES[kind],
        values,
        CONVERTERS[how["convert"]] if "convert" in how else None,
        absent and Refused(absent["reason"], tuple(absent.get("same", OFF))),
        tuple(how.get("completions", ())),
    )


def rows() -> dict[str, list[Any]]:
    """The rows of `aliases.yaml`, and one for every sampling parameter that is a number."""
    usual = {n: [f"generation.{n}", e.kind.__name__] for n, e in FIELDS.items() if n != "stop"}
    return usual | read_table("aliases.yaml")


WORDS: dict[str, Word] = {
    name: _word(path, kind, how[0] if how else {}) for name, (path, kind, *how) in rows().items()
}
"""word -> its target. A field of the run's algorithm is a word too, and wins over this table."""


@dataclass(kw_only=True, config=ConfigDict(extra="forbid"))
class FlatWords:
    """A mixin of every algorithm's config class: a field for every flat word.

    A word that is a field of the algorithm remains that field with its default. Values are
    validated by the section they belong to.
    """

    vars().update(dict.fromkeys(WORDS))
    vars().update(__annotations__={name: word.kind | None for name, word in WORDS.items()})
    face_of: ClassVar[Face | None] = None
    """Origin of the class."""

    def __getattr__(self, name: str) -> Any:
        """The value of a setting of another library that has no effect here."""
        if name not in refused_settings():
            raise AttributeError(f"{type(self).__name__} has no setting {name!r}")
        return (*refused_settings()[name].same, None)[0]

    def to_dict(self) -> dict[str, Any]:
        """Name -> value of all settings, as transformers' config objects have it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        theirs = type(self).__module__ == "mrlm.trl" and "update_epochs" in values
        return values | ({"num_iterations": values["update_epochs"]} if theirs else {})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Redeclare, on the subclass, the algorithm's fields that a word would hide."""
        super().__init_subclass__(**kwargs)
        annotations = dict(inspect.get_annotations(cls))
        for base in reversed(cls.__mro__[1:]):
            if issubclass(base, FlatWords) or not dataclasses.is_dataclass(base):
                continue
            described = base.__dict__.get("__pydantic_fields__", {})
            for name in described.keys() & WORDS.keys() - cls.__dict__.keys():
                annotations[name] = described[name].annotation
                setattr(cls, name, described[name])
        cls.__annotations__ = annotations
