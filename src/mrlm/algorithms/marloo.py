"""MARLOO: the team's return for every agent, relative to the mean over the other siblings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.dataclasses import dataclass

from mrlm.algorithms.magrpo import MAGRPO, Baseline, preset
from mrlm.config.paper_presets import PaperPreset
from mrlm.learn.bases.algorithm import STRICT


@dataclass(kw_only=True, config=STRICT)
class MARLOO(MAGRPO):
    """`A_t = G_t - mean(G of the other siblings)`: `MAGRPO` (arXiv 2508.04652) with the unbiased
    baseline of RLOO (arXiv 2402.14740, eq. 6).

    The others are sibling episodes (or, in a tree, the other answers to one state), not other
    agents. Where all have the same return, and where one sibling is left, the advantage is exactly
    0. Settings and loss are `MAGRPO`'s.
    """

    baseline: Baseline = "leave_one_out"

    presets: ClassVar[Mapping[str, PaperPreset]] = {
        "marloo": preset(
            "MARLOO of the authors' library, arXiv 2508.04652",
            "leave_one_out",
        )
    }


PLUGIN = MARLOO
