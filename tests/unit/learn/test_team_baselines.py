"""The family of MAGRPO, and REINFORCE++: who is compared with whom, to the published numbers."""

from typing import Any

import numpy as np
import pytest

from mrlm.algorithms.magrpo import MAGRPO
from mrlm.algorithms.mareinforce import MAREINFORCE
from mrlm.algorithms.maremax import MAREMAX
from mrlm.algorithms.marloo import MARLOO
from mrlm.algorithms.reinforce_pp import ReinforcePP
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn

FAMILY = {
    MAREINFORCE: [1.0, 2.0, 6.0],
    MAGRPO: [-2.0, -1.0, 3.0],
    MARLOO: [-3.0, -1.5, 4.5],
    MAREMAX: [-5.0, -4.0, 0.0],
}


def episode(name: str, said: dict[str, list[tuple[int, float]]], path: tuple[int, ...]) -> Episode:
    """Agents whose turns have so many tokens and are paid so much; the team gets the mean."""
    rollouts, steps = {}, max(map(len, said.values()))
    for agent, turns in said.items():
        made = [
            Turn(agent, agent, [1], [2] * size, logprobs=[-1.0] * size, step=step, index=step)
            for step, (size, _) in enumerate(turns)
        ]
        for turn, (_, paid) in zip(made, turns, strict=True):
            turn.reward = paid
        rollouts[agent] = Rollout(agent, agent, "t", made)
    paid = [float(np.mean([turns[step][1] for turns in said.values()])) for step in range(steps)]
    return Episode(name, Task("t"), rollouts, sum(paid), paid, "done", path=path)


def group(*rewards: float, size: int = 1) -> Group:
    """Siblings of one agent and one turn."""
    return Group([episode(str(i), {"a": [(size, r)]}, (i,)) for i, r in enumerate(rewards)])


def advantages(groups: list[Group]) -> list[Any]:
    return [turn.advantages for each in groups for episode in each for turn in episode.turns]


@pytest.mark.parametrize(("algorithm", "expected"), FAMILY.items())
def test_answers_to_one_state_against_their_baseline(
    algorithm: type[MAGRPO], expected: list[float]
) -> None:
    siblings = group(1.0, 2.0, 6.0)
    algorithm().credit([siblings])
    np.testing.assert_allclose(advantages([siblings]), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "root"), [(MAGRPO, 0.275), (MARLOO, 0.55), (MAREMAX, 0.0), (MAREINFORCE, 1.45)]
)
def test_in_a_tree_an_answer_returns_what_its_continuations_return_on_average(
    algorithm: type[MAGRPO], root: float
) -> None:
    """Rewards 1 and 0 at the root, then {0, 1} and {1, 1}: returns 1.45 and 0.9."""
    leaves = {(0, 0): (1.0, 0.0), (0, 1): (1.0, 1.0), (1, 0): (0.0, 1.0), (1, 1): (0.0, 1.0)}
    tree = Group(
        [episode(str(path), {"a": [(1, r), (1, s)]}, path) for path, (r, s) in leaves.items()]
    )
    algorithm(gamma=0.9).credit([tree])
    first, last = (tree.episodes[i].rollouts["a"].turns[0] for i in (0, -1))
    assert first.returns == pytest.approx(1.45) and last.returns == pytest.approx(0.9)
    assert first.advantages == pytest.approx(root, abs=1e-6)


# -- REINFORCE++ -----------------------------------------------------------------------------------


def test_returns_of_tokens_are_whitened_over_the_batch() -> None:
    """Token rewards [-.1, -.1, .8] and [-.1, .1]: a divergence of 1 per token at weight .1."""
    alone = [group(0.9, size=3), group(0.2, size=2)]
    for each in alone:
        for turn in each.episodes[0].turns:
            turn.ref_logprobs = [-2.0] * len(turn)
    ReinforcePP(kl_coef=0.1).credit(alone)
    first, second = advantages(alone)
    (turn,) = alone[0].episodes[0].turns
    np.testing.assert_allclose(turn.returns, [0.6, 0.7, 0.8], atol=1e-9)
    np.testing.assert_allclose(first, [0.438727, 0.712931, 0.987135], atol=1e-5)
    np.testing.assert_allclose(second, [-1.206499, -0.932294], atol=1e-5)


def test_against_siblings_first_and_then_over_the_batch() -> None:
    groups = [group(1.0, 0.0, size=2), group(2.0, 6.0, size=2)]
    ReinforcePP(baseline="group", group_size=2).credit(groups)
    found = [float(row[0]) for row in advantages(groups)]
    np.testing.assert_allclose(found, [0.320844, -0.320844, -1.283378, 1.283378], atol=1e-5)
    assert all(row[0] == row[1] for row in advantages(groups))


def test_the_divergence_of_tokens_is_discounted_like_what_is_paid() -> None:
    """Of the second turn 4 - .1 * .25 is left, and half of what follows; half of all that comes to
    the first's last token."""
    played = episode("e", {"a": [(2, 1.0), (1, 4.0), (1, 8.0)]}, (0,)).rollouts["a"]
    for turn, row in zip(played.turns, ([0.5, 2.0], [0.25], [0.0]), strict=True):
        turn.ref_logprobs = [-1.0 - x for x in row]
    found = ReinforcePP(kl_coef=0.1, gamma=0.5).token_returns(played)
    last = 1.0 - 0.1 * 2.0 + 0.5 * 7.975
    np.testing.assert_allclose(found, [last - 0.1 * 0.5, last, 7.975, 8.0])


def test_siblings_are_compared_by_all_that_a_rollout_returned() -> None:
    """Less its divergence: .75, -.2 and 2 with the mean .85, for every token."""
    siblings = group(1.0, 0.0, 2.0, size=2)
    for each, row in zip(siblings, ([0.5, 2.0], [1.0, 1.0], [0.0, 0.0]), strict=True):
        each.rollouts["a"].turns[0].ref_logprobs = [-1.0 - x for x in row]
    ReinforcePP(baseline="group", group_size=3, kl_coef=0.1).credit([siblings])
    found = [turn.returns for each in siblings for turn in each.turns]
    np.testing.assert_allclose(found, [[-0.1, -0.1], [-1.05, -1.05], [1.15, 1.15]])


def test_what_follows_a_turn_is_discounted_and_agents_do_not_mix() -> None:
    both = {"a": [(2, 1.0), (1, 4.0)], "b": [(1, 100.0), (1, 200.0)]}
    groups = [Group([episode("e", both, (0,))])]
    ReinforcePP(gamma=0.5).credit(groups)
    turns = groups[0].episodes[0].rollouts
    np.testing.assert_allclose(turns["a"].turns[0].returns, [3.0, 3.0])
    np.testing.assert_allclose(turns["b"].turns[0].returns, [200.0])
    np.testing.assert_allclose(np.concatenate([t.advantages for t in turns["b"].turns]), [0, 0])
