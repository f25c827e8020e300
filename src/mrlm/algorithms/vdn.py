"""VDN: the team's value is the sum of the agents' values, which give individual credit.

- **Kind** teams with critics
- **Paper** arXiv 1706.05296; counterfactuals 1705.08926 and 2007.12322, `vdac` 2007.12306. The
  design for language models is MRLM's.
- **Formula** `Q_tot = sum_i u_i`, fitted to lambda-returns of the team's reward over rounds; `u_i`
  is computed from an agent's messages, `v_i` from its context before them; `factored`: `A_i = u_i -
  v_i`, centred per agent and divided by one deviation for the team (`whiten_by: agent`: each
  agent's own, which amplifies the noise of an agent whose messages hardly matter); `vdac`: `A = y -
  sum_i v_i`; `bon`: the best of `group_size` answers is imitated, or preferred to the worst.
- **Differs** from the paper strongly: values are computed from text by heads on a frozen network,
  the default mode learns counterfactual advantages instead of Q, and there is no replay, no random
  exploration and no maximum over a table of actions. `mode: bon`, in `preset: vdn`, is nearest.
- **Knobs** credit: team; baseline: counterfactual, whitened over the team (`vdac`: the mixed
  value); critic: `mixed`, learned first on whole episodes; loss: token ratio (`bon`: cross-entropy,
  or DPO's).
- **Use it** for teams with a joint reward and separate parts. No sum, and no monotone mixture, can
  represent the reward of `xor` (`tests/unit/learn/test_mixing.py` has both at one half everywhere);
  policies may still find its optimum, because their samples leave the tie, not by the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from mrlm.algorithms.dpo import DPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.learn.bases.actor_critic import ActorCritic, Level, credit_joint_steps, trainable_steps
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec, Topology
from mrlm.learn.bases.steps import Refinement
from mrlm.learn.credit.joint_steps import JointStep, as_one, in_rounds
from mrlm.learn.credit.team_values import assign_counterfactuals, rank_answers
from mrlm.learn.critics.critic import TEAM
from mrlm.learn.critics.mixers import Mixing, MixingMode
from mrlm.learn.critics.mixing_critic import MixedCritic
from mrlm.learn.data.batch import Batch, Loss, Outputs


@settings
class VDN(ActorCritic, PolicyGradient, Refinement):
    """Value decomposition for agents that are language models: `Q_tot = sum_i u_i` (arXiv
    1706.05296), fitted to the team's rewards alone, gives each agent credit for its own messages.
    There is no table of action values to maximise over: values are predicted from text, `v_i` from
    an agent's input before its message, `u_i` from input and message. Three modes transfer classic
    methods.

    `factored` (default) fits `Q_tot(u_1..u_n)` to lambda-returns of the team's rewards and `v_i` to
    `u_i`. The advantage of an agent is the counterfactual `Q_tot(u) - Q_tot(u with u_i replaced by
    v_i)` (COMA, arXiv 1705.08926; DOP, arXiv 2007.12322), for a sum `u_i - v_i`: it does not depend
    on the actions of the others. Critic and mixer are trained on an iteration's episodes first.
    `vdac` mixes the `v_i` into a baseline `V_tot` for MAPPO's advantages, which all agents share
    (arXiv 2007.12306). `bon` is Q-learning over sampled answers: `group_size` answers of each agent
    to one prompt; the target takes the best utility of each, which for a monotone mixer is the best
    joint action of the whole grid, and the policy is trained on its best answer (`improve="sft"`),
    or on its best over its worst (`"dpo"`). Answers that share no prompt are not compared.

    Targets are `y_k = R_k + gamma ((1 - lambda) Q_{k+1} + lambda y_{k+1})` over rounds, in which
    every agent acts at most once, in `vdac` over joint steps: a baseline must not depend on earlier
    messages of the same round. Heads and mixer run on a frozen network (`training.critic_model`, or
    the initial weights of the first policy); 3e-4 is their learning rate unless
    `training.critic_learning_rate` is set. Where agents act in sequence, the effect of a message on
    its reader is credited to the reader's utility.

    Args:
        mode: see above.
        improve: how `bon` improves a policy.
        whiten_by: divisor of `factored` advantages: the standard deviation over the `team`, or that
            of each `agent`.
        target_rate: Polyak rate of the target network after each step (.01 is usual off-policy); 1:
            the network as it was before the iteration.
        critic_epochs: optimiser steps of critic and mixer in an iteration, each on all of it.
    """

    critic: Topology = "mixed"
    mode: MixingMode = "factored"
    improve: Literal["sft", "dpo"] = "sft"
    whiten_by: Literal["team", "agent"] = "team"
    target_rate: float = Field(default=1.0, gt=0, le=1)
    critic_epochs: int | None = Field(default=32, ge=1)

    topologies: ClassVar[tuple[Topology, ...]] = ("mixed",)
    levels: ClassVar[tuple[Level, ...]] = ("turn",)

    matters: ClassVar[Mapping[str, Matters]] = {
        "improve": Matters(
            lambda s, run: s.mode == "bon",
            "only mode=bon improves a policy by its best answer; remove it, or set mode=bon",
        ),
        **dict.fromkeys(
            ("clip_range", "clip_range_high"),
            Matters(
                lambda s, run: s.mode != "bon" and s.clips,
                "nothing is clipped with mode=bon, or with a loss_type without a ratio; remove it",
            ),
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.whiten_by != "team" and not (self.mode == "factored" and self.whiten_advantages):
            raise ConfigError(
                f"whiten_by={self.whiten_by!r} applies to whitened advantages of mode "
                f"'factored', and mode is {self.mode!r}, whiten_advantages "
                f"{self.whiten_advantages}; remove it"
            )
        self.preference: DPO = DPO()

    @property
    def mixing(self) -> Mixing:
        """Settings of the mixer that combines the agents' values into the team's."""
        return Mixing(
            "vdn",
            self.mode,
            target_rate=self.target_rate,
            epochs=self.critic_epochs or self.update_epochs,
        )

    @property
    def spec(self) -> Spec:
        spec = super().spec
        return replace(
            spec,
            sampling=SamplingPlan(siblings=self.mode == "bon"),
            columns=spec.columns | ({"ref_logprobs"} if self._prefers else set()),
            critic=replace(spec.critic, mixing=self.mixing),
            unit="pair" if self._prefers else "turn",
            refuses_lag="{name} imitates the best answers of the current policies, not those of "
            "older weights; set training.max_lag=0",
        )

    @property
    def _prefers(self) -> bool:
        return self.mode == "bon" and self.improve == "dpo"

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        super().check_agents(policy_of, num_agents)
        if num_agents < 2:
            raise ConfigError(
                f"{type(self).__name__} divides the value of a team among its agents, and there is "
                "one agent; use ppo or a2c, or an environment with several agents"
            )

    # -- credit -----------------------------------------------------------------------------------

    def credit_batch(self, groups: Sequence[Group]) -> None:
        credit_joint_steps(self, groups, self._steps)

    def _steps(self, episode: Episode) -> list[JointStep]:
        steps = trainable_steps(episode, self.gamma)
        return steps if self.mode == "vdac" else [as_one(part) for part in in_rounds(steps)]

    def explain(self, *columns: Any, **named: Any) -> None:
        if self.mode == "vdac":
            super().explain(*columns, **named)

    def refine(self, groups: Sequence[Group], critics: Sequence[MixedCritic]) -> None:
        if self.mode == "vdac":
            return
        (critic,) = critics
        returns, values = (np.zeros(0), np.zeros(0)) if critic.fit is None else critic.fit
        super().explain({TEAM: returns}, {TEAM: returns - values})
        if self.mode == "factored":
            by = self.whiten_by if self.whiten_advantages else None
            assign_counterfactuals(critic.counterfactuals(), by)
        else:
            self.metrics["frac_compared"] = rank_answers(critic.utilities(), self.improve == "dpo")

    # -- loss -------------------------------------------------------------------------------------

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        if self._prefers:
            return self.preference.loss(batch, outputs)
        return super().loss(batch, outputs)

    def _surrogate(
        self, batch: Batch, logprobs: Tensor, difference: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        if self.mode == "bon":  # cross-entropy of the answers that are kept
            return -batch.advantages * logprobs, None
        return super()._surrogate(batch, logprobs, difference)


PLUGIN = VDN
