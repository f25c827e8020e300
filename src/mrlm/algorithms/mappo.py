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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mrlm.core.episodes import Group
from mrlm.learn.bases.actor_critic import ActorCritic, Level, credit_joint_steps, trainable_steps
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import Topology


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


PLUGIN = MAPPO
