"""Completions grow for the sake of length, or are cut off.

Longer completions have higher advantages in the recorded episodes, completions grow steadily and
the reward does not; or most completions are suddenly stopped by `max_new_tokens`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.progress import gained
from mrlm.doctor.recent import Rows
from mrlm.doctor.rule import Rule
from mrlm.doctor.trends import slope


@dataclass(frozen=True)
class LengthBias(Rule):
    """Length without use.

    Args:
        steps: steps of the window.
        growth: growth of an agent's completions over the window that counts.
        correlation: correlation of length and advantage that counts.
        cut: share of completions that are cut off.
    """

    steps: int = 12
    growth: float = 1.5
    correlation: float = 0.2
    cut: float = 0.5

    do: ClassVar[str] = (
        "use loss_type=dr_grpo or an overlong penalty, and raise max_new_tokens if answers are cut"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"completion_length/.+", self.steps)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        cut, steps = self._cut(history), min(8, self.steps)
        if cut is not None and not gained(history, steps):
            since, because = cut
            short = [row for row in episodes if _is_cut(row)]
            yield Alarm(since, because, evidence=cited(short))
        for agent in history.agents:
            name = f"completion_length/{agent}/mean"
            name = name if len(history.agents) > 1 else "completion_length/mean"
            known_steps, lengths = history.known(name, self.steps)
            if len(lengths) < self.steps or gained(history, steps):
                continue
            if lengths[-4:].mean() < self.growth * lengths[:4].mean() or slope(lengths)[1] < 4:
                continue
            value = _correlation(episodes, agent)
            if value > self.correlation:
                because = (
                    f"completions grow from {lengths[:4].mean():.0f} to {lengths[-4:].mean():.0f} "
                    f"tokens, longer ones have higher advantages (correlation {value:.2f}), and "
                    "the reward does not rise"
                )
                policy = history.policies.get(agent)
                rows = [row for row in episodes if agent in row["agents"]]
                yield Alarm(int(known_steps[0]), because, agent, policy, cited(rows))

    def _cut(self, history: History) -> tuple[int, str] | None:
        steps, shares = history.known("completion_length/cut")
        if len(shares) < 8 or shares[-4:].min() < self.cut or shares[:4].mean() > self.cut / 2:
            return None
        (under,) = np.nonzero(shares < self.cut)
        return int(steps[under[-1] + 1]), (
            f"{shares[-4:].mean():.0%} of completions are stopped by max_new_tokens, "
            f"{shares[:4].mean():.0%} were at the start, and the reward does not rise"
        )


def _is_cut(row: Mapping[str, Any]) -> bool:
    turns = (turn for agent in row["agents"].values() for turn in agent["turns"])
    return any(turn.get("finish_reason") == "length" for turn in turns)


def _correlation(episodes: Rows, agent: str) -> float:
    """Of length and advantage, over an agent's trained turns."""
    turns = [turn for row in episodes for turn in row["agents"].get(agent, {}).get("turns", ())]
    pairs = [(t["tokens"], t["advantage"]) for t in turns if t["advantage"] is not None]
    if len(pairs) < 16:
        return 0.0
    lengths, advantages = np.asarray(pairs, float).T
    if not lengths.std() or not advantages.std():
        return 0.0
    return float(np.corrcoef(lengths, advantages)[0, 1])


PLUGIN = LengthBias
