"""MAREMAX: every agent gets the team's return, against the best sibling's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.dataclasses import dataclass

from mrlm.algorithms.magrpo import MAGRPO, Baseline
from mrlm.config.presets import Preset
from mrlm.config.words import FlatWords
from mrlm.learn.algorithm import STRICT
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class MAREMAX(MAGRPO):
    """`A_t = G_t - max(G of the siblings)`: `MAGRPO` (arXiv 2508.04652) with the best sibling as
    baseline.

    No advantage is above 0 in one turn: it pushes away from what was worse and never pulls. It is
    not ReMax (arXiv 2310.10505), whose baseline is the return of a greedy answer; that is
    `baseline="remax_greedy"`. Where all siblings return the same the advantage is exactly 0.
    Settings and loss are `MAGRPO`'s.
    """

    baseline: Baseline = "group_max"

    presets: ClassVar[Mapping[str, Preset]] = {
        "maremax": Preset(
            "MAREMAX of the authors' library, arXiv 2508.04652",
            {
                "loss_type": ("reinforce", "definition"),
                "baseline": ("group_max", "authors' code, maremax.py"),
                "returns": ("joint", "definition"),
                "joint_mode": ("aligned", "authors' code, magrpo.py"),
                "gamma": (0.9, "authors' code, magrpo.py"),
                "group_size": (2, "authors' code, magrpo.py"),
            },
            (5e-6, "authors' code"),
            (
                "One optimiser step per batch; the authors' code takes one per node of a tree, "
                "whose later nodes then come from older weights.",
                "The last token of an answer is trained, which the authors' code leaves out.",
                "Temperature .7 and top-p .9 are `generation.temperature` and `generation.top_p`.",
            ),
        ),
    }


@dataclass(kw_only=True, config=STRICT)
class MAREMAXConfig(FlatWords, MAREMAX):  # pyright: ignore[reportIncompatibleVariableOverride]
    """MAREMAX with the flat words of its trainer."""


class MAREMAXTrainer(Trainer):
    """Train with `MAREMAX` in one call."""

    algorithm = "maremax"


PLUGIN = MAREMAX
