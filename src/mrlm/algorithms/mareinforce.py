"""MAREINFORCE: the team's return for every agent, without a baseline.

- **Kind** teams without a critic
- **Paper** arXiv 2508.04652 (its plain member).
- **Formula** `A_t = G_t` of the team; `-A l` summed over a turn, averaged over turns.
- **Differs** from the authors' code: as `magrpo`, whose advantages CoMLRL 1.4.3 centres and divides
  by their deviation, which adds a baseline there (`advantage_normalization`).
- **Knobs** plan: `chain(G)`, `tree` or `cross`; credit: team, to go; baseline: none.
- **Use it** as the reference of the algorithms below.
"""

from pydantic import Field

from mrlm.algorithms.magrpo import MAGRPO, Baseline
from mrlm.learn.bases.algorithm import settings


@settings
class MAREINFORCE(MAGRPO):
    """`A_t = G_t`: `MAGRPO` without its baseline (arXiv 2508.04652), unbiased and of high variance;
    needs no siblings.
    """

    baseline: Baseline = "none"
    group_size: int = Field(default=1, ge=1)


PLUGIN = MAREINFORCE
