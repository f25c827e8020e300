"""QMIX: VDN with a monotone mixer whose weights depend on the joint state.

- **Kind** teams with critics
- **Paper** arXiv 1803.11485; modes as `vdn`.
- **Formula** `Q_tot = elu(u |W1(s)| + b1(s)) |w2(s)| + V(s)`, monotone in every `u_i`; `A_i =
  Q_tot(u) - Q_tot(u with u_i replaced by v_i)`.
- **Differs** from the paper as `vdn` does; hypernetworks have two layers, as in PyMARL, and one in
  the paper (`hypernet_layers: 1`).
- **Knobs** as `vdn`, with `mixing_size`, `hypernet_layers`, `state_size`. A team of one agent is
  refused, for `vdn` too.
- **Use it** if the value of an agent's part depends on the joint state.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.vdn import VDN
from mrlm.core.matters import Matters
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.critics.mixers import Mixing


@settings
class QMIX(VDN):
    """`VDN` with a monotone mixer instead of a sum: `Q_tot = elu(u |W1(s)| + b1(s)) |w2(s)| + V(s)`
    (arXiv 1803.11485), whose weights hypernetworks compute from the joint state `s`. To first order
    the advantage of an agent is `dQ_tot/du_i (u_i - v_i)`.

    The joint state, needed in training only, is the observations and messages of all agents before
    the round, and the environment's own `state` where it has one, encoded as text by the frozen
    network, reduced to `state_size` numbers and normalised. Rewards that need a combination of
    actions (`xor`) are not monotone either.

    Args:
        mixing_size: hidden units of the mixer.
        hypernet_layers: 1 (as in the paper) or 2.
        hypernet_size: hidden units of a hypernetwork with 2 layers.
        state_size: dimension of the reduced joint state.
    """

    mixing_size: int = Field(default=32, ge=1)
    hypernet_layers: Literal[1, 2] = 2
    hypernet_size: int = Field(default=64, ge=1)
    state_size: int = Field(default=64, ge=2)

    matters: ClassVar[Mapping[str, Matters]] = {
        "hypernet_size": Matters(
            lambda s, run: s.hypernet_layers == 2, "hypernet_layers is 1; set 2, or remove this"
        )
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
