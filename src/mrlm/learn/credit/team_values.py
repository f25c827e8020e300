"""Individual credit from the values of a team (`learn/critics/mixing_critic.py`): counterfactual
advantages with one scale, and the best of several answers."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.credit.explain import because


def whiten_together(
    tables: Mapping[str, np.ndarray], by: Literal["team", "agent"]
) -> dict[str, np.ndarray]:
    """Numbers by agent (n,), each agent's with mean 0, divided by the deviation of the centred
    numbers of the whole team, or by each agent's own."""
    moments = ops.global_moments(tables)
    if by == "agent":
        return {agent: ops.whiten(x, moments=moments[agent]) for agent, x in tables.items()}
    centred = {
        agent: x - moments[agent].mean if moments[agent].variance else np.zeros_like(x)
        for agent, x in tables.items()
    }
    pooled = np.concatenate([*centred.values(), np.zeros(0)])
    team = ops.global_moments({"team": pooled})["team"]
    return {agent: ops.whiten(x, moments=team) for agent, x in centred.items()}


def assign_counterfactuals(
    counterfactuals: Sequence[tuple[str, list[Turn], float]], by: Literal["team", "agent"] | None
) -> None:
    """Writes counterfactual advantages, centred per agent and divided by the standard deviation of
    the team or of each agent; as they are if `by` is `None`.

    Args:
        counterfactuals: agent, its turns, and their advantage (`MixedCritic.counterfactuals`).
        by: whose deviation divides.
    """
    columns: dict[str, list[tuple[list[Turn], float]]] = {}
    for agent, turns, value in counterfactuals:
        if taught := _taught(turns):
            columns.setdefault(agent, []).append((taught, value))
    tables = {agent: np.array([x for _, x in rows]) for agent, rows in columns.items()}
    if by is not None:
        tables = whiten_together(tables, by)
    for agent, rows in columns.items():
        for (turns, value), advantage in zip(rows, tables[agent].tolist(), strict=True):
            for turn in turns:
                turn.advantages = advantage
                because(turn, "counterfactual {:+}", value)
                if by is not None:
                    because(turn, "whitened = {:+}", advantage)


def rank_answers(utilities: Sequence[tuple[str, list[Turn], float, int]], worst: bool) -> float:
    """Writes an advantage of +1 for the best of several answers to one prompt, and -1 for the worst
    if `worst`; none for the others.

    Args:
        utilities: agent, turns of an answer, its value, and the number of its prompt
            (`MixedCritic.utilities`).
        worst: whether the worst answers are trained against.

    Returns:
        The share of prompts whose answers were compared, over all processes.
    """
    answers: dict[int, list[tuple[float, list[Turn]]]] = {}
    for _, turns, value, question in utilities:
        taught = _taught(turns)
        for turn in taught:
            turn.advantages = None
        if taught:
            answers.setdefault(question, []).append((value, taught))
    compared = 0
    for several in answers.values():
        high, low = (best(several, key=lambda answer: answer[0]) for best in (max, min))
        completions = [[turn.completion_ids for turn in turns] for _, turns in (high, low)]
        if high[0] == low[0] or completions[0] == completions[1]:
            continue
        compared += 1
        for turn in high[1]:
            turn.advantages = 1.0
            because(turn, "best of {} answers: {}", len(several), "+1")
        for turn in low[1] if worst else ():
            turn.advantages = -1.0
            because(turn, "worst of {} answers: {}", len(several), "-1")
    ((number, total),) = ops.global_sum({"": [compared, len(answers)]}).values()
    return number / total if total else 0.0


def _taught(turns: Sequence[Turn]) -> list[Turn]:
    """The turns to which `credit` gave an advantage."""
    return [turn for turn in turns if turn.trained and turn.advantages is not None]
