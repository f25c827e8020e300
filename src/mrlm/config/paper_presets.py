"""Presets: the numbers of a paper as settings of an algorithm, each with the place it stands there.
Each algorithm's file has its own tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mrlm.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PaperPreset:
    """The settings of a paper (or of its authors' code, where a table says so).

    What is written beside a preset wins over it. How large a run is (tasks per iteration, lengths)
    is not part of one; `departs` names the paper's.

    Args:
        paper: its name and where it is.
        settings: setting -> its value and the equation, table or section it is from.
        learning_rate: the same for `training.learning_rate`; `None` where the paper has none that
            a language model could use.
        departs: what a run with these settings still does otherwise, a sentence each.

    Example:
        >>> from mrlm.algorithms.grpo import GRPO
        >>> GRPO.presets["dapo"].settings["clip_range_high"]
        (0.28, 'section 4.1')
        >>> GRPO(preset="dapo", clip_range_high=0.25).clip_range_high
        0.25
    """

    paper: str
    settings: Mapping[str, tuple[Any, str]]
    learning_rate: tuple[float, str] | None = None
    departs: tuple[str, ...] = field(default=())

    @property
    def values(self) -> dict[str, Any]:
        """Setting -> value."""
        return {name: value for name, (value, _) in self.settings.items()}


def preset_of(presets: Mapping[str, PaperPreset], name: Any, algorithm: str) -> PaperPreset:
    """The preset of a name.

    Raises:
        ConfigError: the algorithm has none of that name.
    """
    if isinstance(name, str) and name in presets:
        return presets[name]
    known = f"use {' or '.join(presets)}" if presets else "it has none; remove it"
    raise ConfigError(f"preset={name!r} is not a preset of {algorithm}; {known}")
