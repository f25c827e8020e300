"""The data is stale, or there is hardly any.

Trained tokens come from weights many updates old; or a large part of all episodes fails; or
nearly all groups that are played have equal rewards, for so long that hardly anything is trained,
in a run that has not solved its tasks; or training repeats one task or very few, while the tasks
of evaluations differ.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.progress import gained
from mrlm.doctor.recent import RecentEpisodes, Rows, is_evaluation, is_training, training
from mrlm.doctor.rule import Rule

ENCODE = json.JSONEncoder(sort_keys=True, default=str).encode


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a step.

    Args:
        groups: number of groups of training.
        trained, held_out: different tasks of training, and of an evaluation.
    """

    groups: int
    trained: frozenset[str]
    held_out: frozenset[str]


@dataclass(frozen=True)
class StaleData(Rule):
    """Old episodes, or too few with a signal.

    Args:
        steps: consecutive steps in which it holds.
        lag: mean staleness, in updates, of trained tokens.
        failed: share of episodes that fail.
        unused: share of groups that are dropped or have no signal.
        repeats: groups for each different task, in the recorded episodes of the latest steps.
    """

    steps: int = 12
    lag: float = 8.0
    failed: float = 0.25
    unused: float = 0.97
    repeats: int = 8

    do: ClassVar[str] = (
        "lower training.max_lag; look at the first error in run.log; choose tasks that are "
        "sometimes solved, or a larger group_size; check that the source gives more than one task"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"lag/mean|episodes/failed", 5) or history.has(
            "num_groups_trained", self.steps
        )

    def __call__(self, history: History, episodes: RecentEpisodes) -> Iterator[Alarm]:
        finding = self._lag(history) or self._failed(history) or self._unused(history)
        if finding is not None:
            since, because, status = finding
            rows = [row for row in episodes if status is None or row["status"] == status]
            yield Alarm(since, because, evidence=cited(rows))
            return
        for tasks_of in (_by_id, _by_text):
            steps = episodes.by_step(tasks_of)
            if not any(tasks.held_out for tasks in steps.values()):
                return  # nothing tells whether there are others
            few = self._few(steps)
            if few is not None:
                since, because = few
                yield Alarm(since, because, evidence=cited(training(episodes)))
                return

    def _few(self, steps: Mapping[int, Tasks]) -> tuple[int, str] | None:
        """Whether training repeats few tasks. Where those of evaluations are as few, the game has
        no others."""
        groups = sum(step_tasks.groups for step_tasks in steps.values())
        tasks = set().union(*(step_tasks.trained for step_tasks in steps.values()))
        if not groups or len(tasks) * self.repeats > groups:
            return None
        others = len(set().union(*(step_tasks.held_out for step_tasks in steps.values())))
        if others < 4 * len(tasks):
            return None
        what = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
        first = min(step for step, step_tasks in steps.items() if step_tasks.groups)
        return first, f"{groups} groups of training have {what}, and evaluations {others}"

    def _lag(self, history: History) -> tuple[int, str, str | None] | None:
        steps, lags = history.known("lag/mean", 5)
        if len(lags) < 5 or lags.min() <= self.lag:
            return None
        return int(steps[0]), f"trained tokens are {lags[-1]:.1f} updates old on average", None

    def _failed(self, history: History) -> tuple[int, str, str | None] | None:
        steps, shares = history.known("episodes/failed", 5)
        if len(shares) < 5 or shares.min() <= self.failed:
            return None
        return int(steps[0]), f"{shares.mean():.0%} of episodes fail", "error"

    def _unused(self, history: History) -> tuple[int, str, str | None] | None:
        unused = dict(zip(*history.known("frac_zero_variance", self.steps), strict=True))
        steps, counts = history.together(("num_groups_played", "num_groups_trained"))
        last = zip(steps[-self.steps :], *counts[:, -self.steps :], strict=True)
        for step, played, trained in last:
            dropped = 1 - trained / played if played else 0.0
            unused[step] = max(unused.get(step, 0.0), dropped)
        last_steps = sorted(unused)[-self.steps :]
        shares = [unused[step] for step in last_steps]
        low = len(shares) < self.steps or min(shares) < self.unused or min(shares) == 1
        if low or gained(history, 8):
            return None
        because = (
            f"{sum(shares) / len(shares):.0%} of the groups of {self.steps} steps have episodes of "
            "equal reward"
        )
        return int(last_steps[0]), because, None


def _by_id(rows: Rows) -> Tasks:
    return _tasks(rows, lambda row: str(row.get("task_id")))


def _by_text(rows: Rows) -> Tasks:
    """The tasks by what they ask; a row of a data set, whose task asks nothing, by its id."""

    def text(row: Mapping[str, Any]) -> str:
        task = row.get("task")
        return ENCODE(task) if task is None or task.get("prompt") else str(row.get("task_id"))

    return _tasks(rows, text)


def _tasks(rows: Rows, task_of: Callable[[Mapping[str, Any]], str]) -> Tasks:
    groups: dict[str, Mapping[str, Any]] = {}
    held_out = set()
    for row in rows:
        if is_evaluation(row):
            held_out.add(task_of(row))
        elif is_training(row):
            groups[row["id"].rpartition("/")[0]] = row
    return Tasks(len(groups), frozenset(map(task_of, groups.values())), frozenset(held_out))


PLUGIN = StaleData
