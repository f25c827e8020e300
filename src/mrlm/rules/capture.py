"""One role captures a shared policy.

The gradient of a policy that several agents share comes nearly from one of them alone, far beyond
its share of the tokens, and does not point where the others' does (arXiv 2605.24202). It needs
`training.gradient_shares`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.recent import Rows
from mrlm.doctor.rule import Rule


@dataclass(frozen=True)
class Capture(Rule):
    """A gradient of one agent alone.

    Args:
        points: steps with measured shares.
        share: median share of the gradient above which an agent captures it.
        excess: share beyond that of its tokens.
        cosine: median cosine with another agent's part above which they agree.
    """

    points: int = 4
    share: float = 0.9
    excess: float = 0.25
    cosine: float = 0.3

    do: ClassVar[str] = (
        "set aggregation=agent_balanced, normalise advantages by agent, or give agents policies or "
        "adapters of their own"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"gradient_share/.+", self.points)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        for agent in history.agents:
            steps, shares = history.known(f"gradient_share/{agent}", self.points)
            tokens = history.known(f"tokens/{agent}/share", self.points)[1]
            if len(shares) < self.points or not len(tokens):
                continue
            share, words = float(np.median(shares)), float(np.median(tokens))
            cosine = self._agreement(history, agent)
            if share < self.share or share < words + self.excess or cosine > self.cosine:
                continue
            because = (
                f"{share:.0%} of the gradient of the shared policy is this agent's, with "
                f"{words:.0%} of the tokens; cosine with the others {cosine:.2f}"
            )
            rows = [row for row in episodes if agent in row["agents"]]
            yield Alarm(int(steps[0]), because, agent, history.policies.get(agent), cited(rows))

    def _agreement(self, history: History, agent: str) -> float:
        """The largest median cosine with another agent's part."""
        names = history.names(r"gradient_cosine/(.+)")
        pairs = [name for name, pair in names.items() if agent in pair.split("/")]
        medians = [float(np.median(history.known(name, self.points)[1])) for name in pairs]
        return max(medians, default=0.0)


PLUGIN = Capture
