"""MAREMAX: the team's return for every agent, relative to the best sibling's.

- **Kind** teams without a critic
- **Paper** arXiv 2508.04652's library; greedy: 2310.10505.
- **Formula** `A_t = G_t - max over the siblings' turns t`: never above 0. With `baseline:
  remax_greedy` it is `A_t = G_t - G_t of the greedy episode`, without siblings.
- **Differs** from the authors' code: as `magrpo`, whose advantages CoMLRL 1.4.3 centres afterwards
  (`advantage_normalization`); here all but the best answer have negative ones. ReMax's own baseline
  is `remax_greedy`.
- **Knobs** as `magrpo`; baseline: max, or a greedy sibling.
- **Use it** with care: it only lowers the probability of worse answers.
"""

from mrlm.algorithms.magrpo import MAGRPO, Baseline
from mrlm.learn.bases.algorithm import settings


@settings
class MAREMAX(MAGRPO):
    """`A_t = G_t - max(G of the siblings)`: `MAGRPO` (arXiv 2508.04652) with the best sibling as
    baseline. No advantage is above 0 in one turn; where all siblings have the same return it is
    exactly 0.
    """

    baseline: Baseline = "group_max"


PLUGIN = MAREMAX
