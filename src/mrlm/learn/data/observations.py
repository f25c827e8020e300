"""Observations as turns, for training a model of the environment."""

from collections.abc import Sequence
from itertools import zip_longest

from mrlm.core.types import Turn

OBSERVATION = "observation"
"""The `finish_reason` of a turn that holds an observation."""


def is_observation(turn: Turn) -> bool:
    """Whether a turn holds an observation, added by `with_observations`."""
    return turn.finish_reason == OBSERVATION


def with_observations(turns: Sequence[Turn], tail_ids: Sequence[int]) -> list[Turn]:
    """Turns of a rollout, each followed by one whose completion is the agent's next observation:
    the tokens up to the next prompt, and after the last turn `tail_ids`. Where a prompt does not
    continue the preceding tokens, nothing is added."""
    extended: list[Turn] = []
    for turn, following in zip_longest(turns, turns[1:]):
        history = [*turn.prompt_ids, *turn.completion_ids]
        if following is None:
            seen = list(tail_ids)
        elif following.prompt_ids[: len(history)] == history:
            seen = list(following.prompt_ids[len(history) :])
        else:
            seen = []
        extended.append(turn)
        if seen and turn.trained:
            kept = {name: getattr(turn, name) for name in ("step", "index", "version", "sampling")}
            observed = Turn(
                turn.agent, turn.policy, history, seen, finish_reason=OBSERVATION, **kept
            )
            extended.append(observed)
    return extended
