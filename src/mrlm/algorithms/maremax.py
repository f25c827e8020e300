"""MAREMAX: the team's return for every agent, relative to the best sibling's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.dataclasses import dataclass

from mrlm.algorithms.magrpo import MAGRPO, Baseline, preset
from mrlm.config.paper_presets import PaperPreset
from mrlm.learn.bases.algorithm import STRICT


@dataclass(kw_only=True, config=STRICT)
class MAREMAX(MAGRPO):
    """`A_t = G_t - max(G of the siblings)`: `MAGRPO` (arXiv 2508.04652) with the best sibling as
    baseline.

    No advantage is above 0 in one turn: worse answers are made less likely, none more likely. It is
    not ReMax (arXiv 2310.10505), whose baseline is the return of a greedy answer; that is
    `baseline="remax_greedy"`. Where all siblings have the same return the advantage is exactly 0.
    Settings and loss are `MAGRPO`'s.
    """

    baseline: Baseline = "group_max"

    presets: ClassVar[Mapping[str, PaperPreset]] = {
        "maremax": preset(
            "MAREMAX of the authors' library, arXiv 2508.04652",
            "group_max",
            "The maximum over siblings is the authors' baseline; that of ReMax, a greedy answer, "
            "is `baseline: remax_greedy`.",
        )
    }


PLUGIN = MAREMAX
