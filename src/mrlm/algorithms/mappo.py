"""MAPPO: a centralised critic for the team, and a clipped surrogate for every agent.

- **Kind** teams with critics
- **Paper** arXiv 2103.01955; of language models 2601.21972.
- **Formula** GAE over joint steps from the team's reward and `V(joint state)`, the same `A` for all
  agents that acted in the step; `clip(A)`. The critic predicts returns less their running mean,
  over their running deviation (`value_normalization`), the paper's first recommendation: one
  learning rate fits rewards of any size.
- **Knobs** credit: team; baseline: GAE over joint steps, whitened; critic: `central`; loss: token
  ratio.
- **Differs** from the paper: the mean and deviation are those of all returns so far; the critic's
  error is squared and not Huber's; it is a language model that reads the team's conversation; four
  epochs, no entropy bonus, gamma 1 (`preset: mappo`).
- **Use it** for long or sparse joint tasks, with agents of any tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.learn import ops
from mrlm.learn.bases.actor_critic import ActorCritic, Level
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import Topology
from mrlm.learn.credit.explain import explain_estimate
from mrlm.learn.credit.groups import state_value
from mrlm.learn.credit.joint_steps import JointStep, joint_steps
from mrlm.learn.critics.critic import TEAM


@settings
class MAPPO(ActorCritic, PolicyGradient):
    """Generalised advantage estimates over the joint steps of an episode, from the team's rewards
    and the values of a central critic; every agent that acted in a joint step gets the same
    advantage, for each of its tokens (arXiv 2103.01955; a central critic of language models in
    arXiv 2601.21972). Then each policy minimises PPO's clipped token surrogate.

    The critic, needed in training only, reads the observations and messages of all agents so far,
    and the environment's `state` where it has one, but nothing of the joint step it values: a value
    that depends on the actions is not a baseline. Advantages are whitened over the joint steps in
    which a trained agent acted. The KL to a reference, if `kl_coef` is set, is part of the loss.
    With one agent this is PPO.
    """

    critic: Topology = "central"

    topologies: ClassVar[tuple[Topology, ...]] = ("central", "mixed")
    levels: ClassVar[tuple[Level, ...]] = ("turn",)
    normalizes: ClassVar[bool] = True

    also: ClassVar[Mapping[str, Mapping[str, Any]]] = {"MAAC": {"loss_type": "reinforce"}}

    def credit_batch(self, groups: Sequence[Group]) -> None:
        credit_joint_steps(self, groups, partial(trainable_steps, gamma=self.gamma))


def credit_joint_steps(
    algorithm: ActorCritic,
    groups: Sequence[Group],
    steps_of: Callable[[Episode], list[JointStep]],
) -> None:
    """Writes the estimates over joint steps on the turns of groups: the same for all agents that
    acted in a step.

    Args:
        algorithm: the actor-critic, whose critic values the whole team.
        groups: the groups.
        steps_of: the joint steps of an episode; empty if it cannot be trained on.
    """
    played = [(episode, steps_of(episode)) for group in groups for episode in group.valid]
    played = [(episode, steps) for episode, steps in played if steps]
    steps = [step for _, episode_steps in played for step in episode_steps]
    mean, std = algorithm.units_of(TEAM)
    values = np.array([state_value(step.turns[0]) for step in steps]) * std + mean
    lengths = [len(episode_steps) for _, episode_steps in played]
    after = values[np.cumsum(lengths, dtype=np.int64) - 1]  # the last value of each episode
    goes_on = [episode.status == "truncated" for episode, _ in played]
    advantages = ops.gae(
        np.array([step.reward for step in steps]),
        values,
        lengths,
        np.array([step.discount for step in steps]),
        algorithm.gae_lambda,
        after * goes_on if algorithm.bootstrap_on_truncation else 0.0,
    )
    returns = advantages + values
    algorithm.observe_returns({TEAM: returns})
    algorithm.explain({TEAM: returns}, {TEAM: advantages})
    scaled = _scaled(advantages, steps) if algorithm.whiten_advantages else advantages
    for step, advantage, target, value in zip(steps, scaled, returns, values, strict=True):
        for turn in step.turns:
            turn.returns = float(target)
        for turn in step.trained:
            turn.advantages = float(advantage)
            explain_estimate(turn, target, value)


def trainable_steps(episode: Episode, gamma: float) -> list[JointStep]:
    """The joint steps of an episode; empty if it cannot be trained on."""
    steps = joint_steps(episode, gamma)
    finite = all(math.isfinite(step.reward) for step in steps)
    return steps if finite and any(step.trained for step in steps) else []


def _scaled(advantages: np.ndarray, steps: Sequence[JointStep]) -> np.ndarray:
    acted = np.array([bool(step.trained) for step in steps], dtype=bool)
    moments = ops.global_moments({"team": advantages[acted]})
    return ops.whiten(advantages, moments=moments["team"]) if steps else advantages


PLUGIN = MAPPO
