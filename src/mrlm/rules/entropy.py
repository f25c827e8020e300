"""The entropy of an agent collapses or explodes.

The median of an agent's entropy over the last steps is less than half of that of its first steps,
or far above it, while the reward has not risen since. Where the reward has risen, a lower entropy
is what learning looks like, and so it is in imitation, where all advantages are equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.progress import gained
from mrlm.doctor.recent import Rows
from mrlm.doctor.rule import Rule


@dataclass(frozen=True)
class Entropy(Rule):
    """A distribution that became nearly certain, or nearly uniform, for no reward.

    Args:
        steps: steps of the two windows that are compared.
        collapse: share of the first entropy below which it has collapsed.
        explosion: multiple of the first entropy above which it has exploded.
        nats: smallest rise, in nats per token, that counts as an explosion.
    """

    steps: int = 8
    collapse: float = 0.4
    explosion: float = 1.5
    nats: float = 0.25

    do: ClassVar[str] = (
        "lower the learning rate; against a collapse also set entropy_coef or clip_range_high, or "
        "raise the temperature"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"entropy(/.+)?", 2 * self.steps)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        rewards = history.known("reward/mean")[1]
        if not len(rewards) or not np.ptp(rewards) or gained(history, self.steps):
            return
        for agent in history.agents:
            name = history.of_agent("entropy", agent)
            steps, values = history.known(name)
            spread = history.known(f"advantage/{agent}/std")[1]
            if len(values) < 2 * self.steps or (len(spread) and not spread.any()):
                continue
            first = float(np.median(values[: self.steps]))
            last = float(np.median(values[-self.steps :]))
            if last < self.collapse * first:
                what, over = "fell", values < self.collapse * first
            elif last > self.explosion * first and last > first + self.nats:
                what, over = "rose", values > max(self.explosion * first, first + self.nats)
            else:
                continue
            since = int(steps[over][0])
            because = (
                f"{name} {what} from {first:.3g} to {last:.3g} nats, and the reward did not rise"
            )
            policy = history.policies.get(agent)
            rows = [row for row in episodes if agent in row["agents"]]
            yield Alarm(since, because, agent, policy, cited(rows))


PLUGIN = Entropy
