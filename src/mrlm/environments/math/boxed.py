"""A reward over rollouts: whether the last message of the model boxes the right answer."""

import math
from collections.abc import Sequence
from typing import Any

from mrlm.core.errors import ConfigError, RewardError
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Role, Rollout
from mrlm.data.final_answer import boxed
from mrlm.environments.math.reading import gold_of, stated
from mrlm.environments.math.verifier import TIMEOUT, verify


class BoxedReward:
    r"""A reward function for answers in `\boxed{}`, checked as in the math environment.

    Only the last message with role `MODEL` counts, and of it only the last box. A number outside a
    box counts as an answer only if `plain` is set.

    Args:
        correct: reward for the right answer.
        wrong: reward for another answer.
        unparseable: reward for a missing answer, or one that cannot be parsed.
        plain: also accept an answer outside a box, as the math environment does.
        timeout: time limit of computer algebra for one answer, in seconds.

    Raises:
        ConfigError: a reward is not a finite number.

    Examples:
        >>> answer = Message("It is \boxed{5}", MessageType.MODEL)
        >>> BoxedReward()([Rollout().add_messages(Message("2+3?"), answer)], ["5"])
        [1.0]
    """

    __name__ = "boxed"

    def __init__(
        self,
        correct: float = 1.0,
        wrong: float = 0.0,
        unparseable: float = 0.0,
        plain: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        for name, value in (("correct", correct), ("wrong", wrong), ("unparseable", unparseable)):
            if not math.isfinite(value):
                raise ConfigError(f"BoxedReward: {name} must be a finite number, not {value!r}")
        values = (float(correct), float(wrong), float(unparseable))
        self.rewards: dict[bool | None, float] = dict(zip((True, False, None), values, strict=True))
        self.plain = plain
        self.timeout = timeout

    def __call__(self, rollouts: Sequence[Rollout], answers: Sequence[Any]) -> list[float]:
        """One reward per rollout. Raises `RewardError`: answers and rollouts differ in number."""
        if len(rollouts) != len(answers):
            raise RewardError(f"BoxedReward: {len(rollouts)} rollouts but {len(answers)} answers")
        golds = map(gold_of, answers)
        return [self._one(rollout, gold) for rollout, gold in zip(rollouts, golds, strict=True)]

    def _one(self, rollout: Rollout, gold: str) -> float:
        replies = [stated_text(m) for m in rollout.messages if m.role is Role.ASSISTANT]
        replies = replies or [stated_text(turn.message) for turn in rollout.turns]
        if not replies:
            return self.rewards[None]
        question = "\n".join(m.content for m in rollout.messages if m.role is Role.USER)
        answer = stated(replies[-1]) if self.plain else boxed(replies[-1])
        return self.rewards[verify(answer, gold, question=question, timeout=self.timeout)]
