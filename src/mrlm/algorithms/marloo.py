"""MARLOO: the team's return for every agent, relative to the mean over the other siblings.

- **Kind** teams without a critic
- **Paper** arXiv 2508.04652 with the baseline of 2402.14740.
- **Formula** `A_t = G_t - mean over the turns t of the other siblings` (siblings, not other
  agents).
- **Differs** from the authors' code: as `magrpo`. Where CoMLRL 1.4.3 divides by the deviation
  (`advantage_normalization`), it is the same as `magrpo`; here it is `G / (G - 1)` times as large.
- **Knobs** as `magrpo`; baseline: leave-one-out.
- **Use it** for groups of two to four.
"""

from mrlm.algorithms.magrpo import MAGRPO, Baseline
from mrlm.learn.bases.algorithm import settings


@settings
class MARLOO(MAGRPO):
    """`A_t = G_t - mean(G of the other siblings)`: `MAGRPO` (arXiv 2508.04652) with the unbiased
    baseline of RLOO (arXiv 2402.14740, eq. 6). The others are sibling episodes (or, in a tree, the
    other answers to one state). Where all have equal returns, or one is left, it is exactly 0.
    """

    baseline: Baseline = "leave_one_out"


PLUGIN = MARLOO
