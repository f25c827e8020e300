"""A team loses to one agent.

At equal numbers of sampled tokens the held-out reward of the team stays below that of a run in
which one agent does all the work (environment `centralised`), beyond noise. It needs that run:
`mrlm doctor RUN --centralised TWIN`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.recent import Rows, is_evaluation
from mrlm.doctor.rule import Rule

REWARD = "eval/reward/mean"


@dataclass(frozen=True)
class Centralised(Rule):
    """A team that is worse than its members' work done by one.

    Args:
        evaluations: consecutive evaluations in which it is.
        z: distance in standard errors.
    """

    evaluations: int = 3
    z: float = 3.0

    do: ClassVar[str] = (
        "train one agent instead, or look for what the team loses: messages that do not help "
        "(mrlm why), credit, and prompts"
    )

    def ready(self, history: History) -> bool:
        return history.twin is not None and history.has(REWARD, self.evaluations)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        if history.twin is None:
            return
        ours, theirs = _by_tokens(history), _by_tokens(history.twin)
        if len(ours) < self.evaluations or len(theirs) < 2:
            return
        last = ours[-self.evaluations :]
        same = np.interp(last[:, 1], theirs[:, 1], theirs[:, 2], left=math.nan, right=math.nan)
        distance = same - last[:, 2]
        if not (distance > self.z * (_error(history) + _error(history.twin))).all():
            return
        because = (
            f"with {last[-1, 1]:.3g} tokens the team's held-out reward is {last[-1, 2]:.3g}, that "
            f"of one agent {same[-1]:.3g}"
        )
        evaluations_rows = [row for row in episodes if is_evaluation(row)]
        yield Alarm(int(last[0, 0]), because, evidence=cited(evaluations_rows))


def _by_tokens(history: History) -> np.ndarray:
    """(evaluations, 3): step, sampled tokens, held-out reward."""
    steps, values = history.together(("tokens/total", REWARD))
    return np.stack([steps, *values], axis=1)


def _error(history: History) -> float:
    """Standard error of a held-out reward."""
    deviations = history.known("eval/reward/std")[1]
    counts = history.known("eval/episodes/count")[1]
    return float(np.median(deviations)) / math.sqrt(counts[-1]) if len(counts) else 0.0


PLUGIN = Centralised
