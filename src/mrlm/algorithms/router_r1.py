"""Router-R1: PPO with the settings of a model that learns whom to ask."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.ppo import PPO
from mrlm.config.words import FlatWords
from mrlm.learn.algorithm import STRICT, Topology
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class RouterR1(PPO):
    """PPO (`PPO`) as Router-R1 has it (arXiv 2506.09033): gamma 1, lambda 1, the divergence from
    the reference in the reward (.001), an entropy bonus (.001), values clipped at .5 by a critic
    with a network of its own, one epoch of two mini-batches.

    The router is an agent that is trained; the models it asks are agents with frozen policies, or
    part of the world. What they answered is in the router's prompts only: it is neither trained
    on, nor valued, nor part of the divergence (the reference implementation leaves it in the value
    loss and the whitening). With gamma and lambda 1 the advantages of what the router wrote are the
    same but for the whitening.

    The reward is the world's: form before outcome before cost.
    """

    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    value_clip_range: float | None = Field(default=0.5, gt=0)
    entropy_coef: float = 0.001
    kl_coef: float = Field(default=0.001, ge=0)
    critic: Topology = "separate"
    update_epochs: int = Field(default=1, ge=1)
    num_minibatches: int = Field(default=2, ge=1)


@dataclass(kw_only=True, config=STRICT)
class RouterR1Config(FlatWords, RouterR1):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Router-R1 with the flat words of its trainer."""


class RouterR1Trainer(Trainer):
    """Train with `RouterR1` in one call."""

    algorithm = "router_r1"


PLUGIN = RouterR1
