"""QMIX: the team's value rises with each agent's, by as much as the joint state says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.vdn import VDN
from mrlm.config.paper_presets import PaperPreset
from mrlm.core.matters import Matters
from mrlm.learn.bases.algorithm import STRICT
from mrlm.learn.critics.mixers import Mixing


@dataclass(kw_only=True, config=STRICT)
class QMIX(VDN):
    """`VDN` with a mixer that is monotone instead of a sum: `Q_tot = elu(u |W1(s)| + b1(s)) |w2(s)|
    + V(s)` (arXiv 1803.11485), the weights made by hypernetworks from the joint state `s`. All
    three modes are VDN's; to first order the advantage of an agent is `dQ_tot/du_i (u_i - v_i)`.

    The joint state is what everybody has read and said before the round, and the world's own
    `state` where it has one, read as text by the frozen network, reduced to `state_size` numbers
    and normalised. It is needed while training only. Defaults are those of the common
    implementations. What only pays together (`xor`) is not monotone either.

    Args:
        mixing_size: hidden units of the mixer.
        hypernet_layers: 1 (as in the paper) or 2.
        hypernet_size: hidden units of a hypernetwork with 2.
        state_size: numbers that the joint state is reduced to.
    """

    mixing_size: int = Field(default=32, ge=1)
    hypernet_layers: Literal[1, 2] = 2
    hypernet_size: int = Field(default=64, ge=1)
    state_size: int = Field(default=64, ge=2)

    presets: ClassVar[Mapping[str, PaperPreset]] = {
        "qmix": PaperPreset(
            "QMIX, arXiv 1803.11485",
            {
                "mode": ("bon", "definition: Q-learning"),
                "gamma": (0.99, "authors' code, PyMARL, default.yaml"),
                "gae_lambda": (0.0, "definition: one-step targets"),
                "mixing_size": (32, "authors' code, PyMARL, qmix.yaml"),
                "hypernet_layers": (2, "authors' code, PyMARL, qmix.yaml"),
                "hypernet_size": (64, "authors' code, PyMARL, qmix.yaml"),
                "group_size": (4, "this library: answers that are compared"),
            },
            None,
            (
                "No paper trains a language model so: the best of the sampled answers stands for "
                "the best action, and the policy imitates it. There is no replay, no exploration "
                "by chance, and the target network follows every iteration and not every 200 "
                "episodes.",
                "The joint state is text that a frozen network reads, reduced to `state_size` "
                "numbers.",
                "The rate, 5e-4, is too high for a language model.",
            ),
        ),
    }

    matters: ClassVar[Mapping[str, Matters]] = {
        "hypernet_size": Matters(
            lambda s, run: s.hypernet_layers == 2, "hypernet_layers is 1; set 2, or remove this"
        ),
    }

    @property
    def mixing(self) -> Mixing:
        return replace(
            super().mixing,
            kind="qmix",
            embed=self.mixing_size,
            layers=self.hypernet_layers,
            hidden=self.hypernet_size,
            state_size=self.state_size,
        )


PLUGIN = QMIX
