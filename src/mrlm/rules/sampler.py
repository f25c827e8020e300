"""The sampler is not the trainer.

The divergence between the distributions that sampled and that are trained, at the same weights,
is above what rounding explains and far above that of the first step: the engine has old weights,
another precision or another temperature. Or it is above rounding from the first step on, and in
the recorded tokens of the last steps far larger late in completions than early: a cache of the
engine is wrong, and errors add up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.recent import RecentEpisodes, Rows, training
from mrlm.doctor.rule import Rule
from mrlm.doctor.tokens import TokenTurn, token_turns

LONG = 12
"""Tokens of a completion whose thirds are compared."""
UNSURE = -0.1
"""Log-prob of a sampled token below which rounding can show: both sides agree on a certain one."""


@dataclass(frozen=True)
class Sampler(Rule):
    """A mismatch of engine and trainer.

    Args:
        steps: consecutive steps in which it holds.
        floor: divergence, in nats per token, that rounding explains in float32.
        growth: multiple of the first step's value, and of that early in completions, above which
            it is more than rounding.
        most: value that nothing explains, also in 16 bits.
        tokens: tokens, early and late ones, that a step needs to be compared by position.
    """

    steps: int = 3
    floor: float = 1e-4
    growth: float = 10.0
    most: float = 0.05
    tokens: int = 16

    do: ClassVar[str] = (
        "check whether the engine has the trained weights (load_weights after every update), the "
        "same precision and temperature, and no stale cache; see training.checks and engines.md"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"mismatch_kl(/.+)?", self.steps)

    def __call__(self, history: History, episodes: RecentEpisodes) -> Iterator[Alarm]:
        for agent in history.agents:
            name = history.of_agent("mismatch_kl", agent)
            steps, values = history.known(name)
            if len(values) < self.steps:
                continue
            limit = min(self.most, max(self.floor, self.growth * float(values[0])))
            (under,) = np.nonzero(values <= limit)
            start = under[-1] + 1 if len(under) else 0
            if len(values) - start >= self.steps:
                because = f"{name} is {values[-1]:.3g}, and rounding explains {limit:.3g}"
                finding = int(steps[start]), because
            elif values[-self.steps :].min() > self.floor:
                finding = self._late(history, episodes, agent)
            else:
                continue
            if finding is not None:
                rows = [row for row in training(episodes) if agent in row["agents"]]
                yield Alarm(finding[0], finding[1], agent, history.policies.get(agent), cited(rows))

    def _late(
        self, history: History, episodes: RecentEpisodes, agent: str
    ) -> tuple[int, str] | None:
        """Whether late tokens differ far more than early ones in each of the last steps."""
        taken = history.known(f"optimizer_steps/{history.policies.get(agent)}")
        if not len(taken[0]):
            taken = history.known("optimizer_steps")
        updates = dict(zip(*taken, strict=True))
        medians: dict[int, tuple[float, float]] = {}
        for step, agents in episodes.by_step(_differences).items():
            before, after = agents.get(agent, ([], []))
            pairs = before or (after if updates.get(step) == 1 else [])
            early, late = (np.concatenate([pair[k] for pair in pairs] or [NONE]) for k in (0, 1))
            if min(len(early), len(late)) >= self.tokens:
                medians[step] = float(np.median(early)), float(np.median(late))
        last = list(medians)[-self.steps :]
        if len(last) < self.steps:
            return None
        if any(medians[k][1] <= max(self.floor, self.growth * medians[k][0]) for k in last):
            return None
        early, late = medians[last[-1]]
        return last[0], (
            f"engine and trainer differ by {late:.2g} nats per token in the last third of "
            f"completions, and by {early:.2g} in the first"
        )


NONE = np.empty(0)
Thirds = list[tuple[np.ndarray, np.ndarray]]
"""Of completions: divergences of early tokens, and of late ones."""


def _differences(rows: Rows) -> dict[str, tuple[Thirds, Thirds]]:
    """agent -> divergences before the update, if recorded, and in its last pass. Of an update of
    several optimiser steps the last pass has other weights than the sampler had."""
    divergences: dict[str, tuple[Thirds, Thirds]] = {}
    for turn in token_turns(training(rows)):
        if turn.row["tokens"] < LONG or turn.row.get("lag"):
            continue
        thirds_pair = divergences.setdefault(turn.agent, ([], []))
        for thirds, name in zip(thirds_pair, ("old_logprobs", "last_logprobs"), strict=True):
            if (pair := _thirds(turn, name)) is not None:
                thirds.append(pair)
    return divergences


def _thirds(turn: TokenTurn, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Half the squared differences of log-probs, which is the divergence to second order: of the
    tokens in the first third and in the last one that the sampler was not sure of."""
    sampled, trained = turn.column("logprobs"), turn.column(name)
    if sampled is None or trained is None:
        return None
    squares, unsure = (trained - sampled) ** 2 / 2, sampled < UNSURE
    third = len(sampled) // 3
    return squares[:third][unsure[:third]], squares[-third:][unsure[-third:]]


PLUGIN = Sampler
