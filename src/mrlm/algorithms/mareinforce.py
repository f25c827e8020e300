"""MAREINFORCE: every agent gets the team's return, and nothing is subtracted from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.magrpo import MAGRPO, Baseline, preset
from mrlm.config.paper_presets import PaperPreset
from mrlm.learn.bases.algorithm import STRICT


@dataclass(kw_only=True, config=STRICT)
class MAREINFORCE(MAGRPO):
    """`A_t = G_t`: `MAGRPO` without its baseline (arXiv 2508.04652).

    The plain member of the family, unbiased and of high variance, that the others are compared
    with. It needs no siblings. Settings and loss are `MAGRPO`'s.
    """

    baseline: Baseline = "none"
    group_size: int = Field(default=1, ge=1)

    presets: ClassVar[Mapping[str, PaperPreset]] = {
        "mareinforce": preset(
            "MAREINFORCE of the authors' library, arXiv 2508.04652",
            "none",
        )
    }


PLUGIN = MAREINFORCE
