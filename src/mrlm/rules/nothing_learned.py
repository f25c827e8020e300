"""Nothing is learned.

In all of the last steps no agent has an advantage (all compared episodes had equal rewards), or
hardly one has and success is hardly above 0, or the gradient is 0; or no step so far had a token to
train on; or no step so far has moved the weights, although gradients are not 0; and the task is not
solved. Or success is hardly above 0 in all of many steps, and the reward does not rise any more. A
task is solved where success is 1, or the reward is at the top of the environment's range; where
neither is known, where it has risen to its best and is the same for all tasks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.progress import solved, success
from mrlm.doctor.recent import RecentEpisodes
from mrlm.doctor.rule import Rule
from mrlm.doctor.trends import difference


@dataclass(frozen=True)
class NothingLearned(Rule):
    """No signal, no gradient, or no movement.

    Args:
        steps: consecutive steps in which it holds.
        never: steps in which success stays below `rare` and the reward has stopped to rise.
        rare: see there.
        ties: share of advantages that are 0, from which a success below `rare` is never found.
        still: largest `weight_change` of a step that counts as none; a weight in float32 has no
            more digits.
    """

    steps: int = 8
    still: float = 1e-7
    never: int = 32
    rare: float = 0.02
    ties: float = 0.85

    do: ClassVar[str] = (
        "check whether the reward varies between episodes of a task; use easier or harder tasks, a "
        "larger group_size, a higher temperature or an entropy_coef, a reward for part of a "
        "solution, a higher learning rate, or weights in float32"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"grad_norm(/.+)?", self.steps)

    def __call__(self, history: History, episodes: RecentEpisodes) -> Iterator[Alarm]:
        finding = self._no_signal(history, episodes) or self._no_gradient(history)
        finding = finding or self._still(history)
        if finding is not None and not solved(history, episodes, self.steps):
            yield Alarm(*finding, evidence=cited(episodes))
        elif (finding := self._never(history, episodes)) is not None:
            advice = (
                "give easier tasks, a first stage of imitation (sft), or a reward for what leads "
                "to success"
            )
            yield Alarm(*finding, evidence=cited(episodes), do=advice)

    def _never(self, history: History, episodes: RecentEpisodes) -> tuple[int, str] | None:
        """Success that never came, while nothing else is learned any more either."""
        name, rates = success(history, episodes)
        steps, rewards = history.known("reward/mean", self.never)
        if min(len(rates), len(rewards)) < self.never or rates.max() > self.rare:
            return None
        half = self.never // 2
        gain, error = difference(rewards[-half:], rewards[:half])
        if gain > 2 * error:
            return None
        return int(steps[0]), (
            f"{name} was at most {rates.max():.2g} in {len(rates)} steps, and the reward has not "
            f"risen in the last {self.never} ({rewards[-half:].mean():.3g})"
        )

    def _no_signal(self, history: History, episodes: RecentEpisodes) -> tuple[int, str] | None:
        steps, trained = history.known("tokens/trained")
        if len(trained) >= self.steps and not trained.any():
            return int(steps[0]), f"no token was trained in {len(trained)} steps"
        zeros = [history.known(f"advantage/{agent}/zero", self.steps) for agent in history.agents]
        if not zeros or any(len(values) < self.steps for _, values in zeros):
            return None
        rewards = history.known("reward/mean", self.steps)[1]
        level = f", {rewards.mean():.3g} on average" if len(rewards) else ""
        name, rates = success(history, episodes)
        level += f" ({name} {rates[-self.steps :].mean():.2g})" if len(rates) else ""
        if any(values.min() < 1 for _, values in zeros):
            ties = min(float(values.mean()) for _, values in zeros)
            if ties < self.ties or not len(rates) or rates[-self.steps :].mean() > self.rare:
                return None
            return int(zeros[0][0][0]), (
                f"hardly anything is learned in {self.steps} steps: {ties:.0%} of all advantages "
                f"are 0, since in these groups all rewards are equal{level}"
            )
        names = (f"advantage/{agent}/zero" for agent in history.agents)
        since = min(_since(history, name) for name in names)
        return since, (
            f"nothing is learned since step {since}: all advantages are 0, since in every group "
            f"all rewards are equal{level}"
        )

    def _no_gradient(self, history: History) -> tuple[int, str] | None:
        steps, norms = history.known("grad_norm", self.steps)
        if len(norms) < self.steps or norms.max() > 0:
            return None
        return int(steps[0]), f"the norm of the gradient is 0 in {self.steps} steps"

    def _still(self, history: History) -> tuple[int, str] | None:
        """Weights that never moved: of all policies, or of one."""
        for name in ("weight_change", *history.names(r"weight_change/(.+)")):
            steps, changes = history.known(name)
            norms = history.known(name.replace("weight_change", "grad_norm"), self.steps)[1]
            if min(len(changes), len(norms)) < self.steps or changes.max() > self.still:
                continue
            rates = history.known(name.replace("weight_change", "learning_rate"), self.steps)[1]
            if norms.all() and not (len(rates) and rates[-1] > rates[0]):  # it is no warm-up
                rate = f" (learning rate {rates[-1]:.3g})" if len(rates) else ""
                return int(steps[0]), (
                    f"{name} was at most {changes.max():.2g} in {len(changes)} steps{rate}, and "
                    f"the gradient is not 0"
                )
        return None


def _since(history: History, name: str) -> int:
    """The first of the last steps in which a metric has been 1 throughout."""
    steps, values = history.known(name)
    (others,) = np.nonzero(values != 1)
    return int(steps[others[-1] + 1 if len(others) else 0])


PLUGIN = NothingLearned
