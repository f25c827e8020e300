"""MAREINFORCE: the team's return for every agent, without a baseline."""

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

    The reference point for the rest of the family: unbiased and of high variance. It needs no
    siblings. Settings and loss are `MAGRPO`'s.
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
