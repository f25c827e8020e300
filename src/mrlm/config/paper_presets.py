"""Presets: the numbers of a paper as settings of an algorithm, each with its place in the paper.
Those of this library's algorithms are in `algorithms/presets/<algorithm>.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PaperPreset:
    """The settings of a paper (or of its authors' code, as noted in a table).

    Explicit settings have precedence over a preset. The size of a run (tasks per iteration,
    lengths) is not part of a preset; `departs` names the paper's.

    Args:
        paper: its name and reference.
        settings: setting -> its value and its equation, table or section.
        learning_rate: the same for `training.learning_rate`; `None` if the paper has none that is
            suitable for a language model.
        departs: remaining differences of a run with these settings, a sentence each.

    Examples:
        >>> from mrlm.algorithms.grpo import GRPO
        >>> GRPO.presets["dapo"].settings["clip_range_high"]
        (0.28, 'section 4.1')
        >>> GRPO(preset="dapo", clip_range_high=0.25).clip_range_high
        0.25
    """

    paper: str
    settings: Mapping[str, tuple[object, str]]
    learning_rate: tuple[float, str] | None = None
    departs: tuple[str, ...] = field(default=())

    @property
    def values(self) -> dict[str, Any]:
        """Setting -> value."""
        return {name: value for name, (value, _) in self.settings.items()}


def read_presets(file: Path) -> dict[str, PaperPreset]:
    """The presets in a YAML file, by name; empty if it does not exist. A setting is a list of its
    value and the value's place in the paper."""
    if not file.is_file():
        return {}
    from mrlm.core.content import parse_yaml  # not needed for --help on the command line

    presets = {}
    for name, row in parse_yaml(file.read_text(encoding="utf-8")).items():
        settings = {setting: tuple(both) for setting, both in row["settings"].items()}
        rate = tuple(row["learning_rate"]) if "learning_rate" in row else None
        presets[name] = PaperPreset(row["paper"], settings, rate, tuple(row["departs"]))
    return presets


def preset_of(presets: Mapping[str, PaperPreset], name: object, algorithm: str) -> PaperPreset:
    """The preset of a name. Raises `ConfigError`: the algorithm does not have it."""
    if isinstance(name, str) and name in presets:
        return presets[name]
    choices = f"use {' or '.join(presets)}" if presets else "it has none; remove it"
    raise ConfigError(f"preset={name!r} is not a preset of {algorithm}; {choices}")
