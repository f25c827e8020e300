"""Self-play runs in circles.

The rating of a player does not rise over several evaluations, and the results of past players
have cycles: one beats a second, the second a third, the third the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.recent import Rows
from mrlm.doctor.rule import Rule
from mrlm.doctor.trends import slope


@dataclass(frozen=True)
class Circles(Rule):
    """Strategies that follow each other round.

    Args:
        evaluations: latest evaluations with a rating.
        cycles: median share of cycles among them; 0.25 if results are arbitrary.
    """

    evaluations: int = 5
    cycles: float = 0.2

    do: ClassVar[str] = (
        "keep more past players (opponents.keep), meet them more often (a lower opponents.self, "
        "opponents.matchmaking=pfsp), and lower the learning rate"
    )

    def ready(self, history: History) -> bool:
        return history.has("opponents/cycles", self.evaluations)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        shares = history.known("opponents/cycles", self.evaluations)[1]
        if len(shares) < self.evaluations or np.median(shares) < self.cycles:
            return
        for name, player in history.names(r"rating/([^/]+)").items():
            steps, ratings = history.known(name, self.evaluations)
            if len(ratings) == self.evaluations and slope(ratings)[1] < 2:
                because = (
                    f"its rating went from {ratings[0]:.0f} to {ratings[-1]:.0f} in "
                    f"{self.evaluations} evaluations, and {np.median(shares):.0%} of the triples "
                    "of players are cycles"
                )
                yield Alarm(int(steps[0]), because, policy=player, evidence=cited(episodes))


PLUGIN = Circles
