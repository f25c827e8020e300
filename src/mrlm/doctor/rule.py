"""The interface of rules."""

from collections.abc import Iterable
from typing import ClassVar

from mrlm.doctor.alarm import Alarm
from mrlm.doctor.history import History
from mrlm.doctor.recent import RecentEpisodes

WINDOW = 8
"""Steps whose episodes rules see."""


class Rule:
    """A test of a run for one kind of mistake: a frozen dataclass whose fields are its thresholds.

    It reads nothing but its arguments and keeps nothing, so that a run that is resumed, and the
    record of one that has ended, give the same alarms. It must not read metrics of time.
    """

    do: ClassVar[str] = ""
    """The advice, in a sentence."""

    def ready(self, history: History) -> bool:
        """Whether a history has what the rule needs before it can find anything."""
        return history.step > 0

    def __call__(self, history: History, episodes: RecentEpisodes) -> Iterable[Alarm]:
        """The alarms that hold at the last step of a history.

        Args:
            history: all metrics up to the step.
            episodes: recorded episodes of the latest steps, in order. What a rule needs of every
                row it computes in `RecentEpisodes.by_step`, once for each step.
        """
        raise NotImplementedError
