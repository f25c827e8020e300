"""Mixers: modules that combine the values of agents into a value of the team."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from mrlm.learn.policy.storage import Storage

MixingMode = Literal["vdac", "factored", "bon"]
"""Quantity to mix, and its use: see `Mixing`."""


class VDNMixer(nn.Module):
    """`Q_tot = sum_i q_i` (VDN, arXiv 1706.05296)."""

    reads_state: bool = False

    def forward(self, q: Tensor, active: Tensor, state: Tensor | None = None) -> Tensor:
        """Q_tot (B,) of the agents' values `q` (B, n); those that are not `active` (B, n)
        contribute 0 and get no gradient. The state is unused."""
        return q.where(active, 0.0).sum(-1)


class QMIXMixer(nn.Module):
    """`Q_tot = elu(q |W1(s)| + b1(s)) |w2(s)| + V(s)` (QMIX, arXiv 1803.11485): hypernetworks of
    the joint state give non-negative weights, so Q_tot is monotone in every agent's value and the
    agents' greedy actions maximise it.

    The value of an inactive agent is 0, so its row of W1 contributes nothing and gets zero
    gradient. `b1` is linear in s, `V` has one hidden layer of `embed` units.

    Args:
        num_agents: number of agent slots.
        state_size: size of the joint state vector.
        embed: hidden units of the mixer (32 in the paper).
        layers: of the hypernetworks of W1 and w2: 1 as in the paper, or 2 with `hidden` units as in
            later implementations.
        hidden: units of a hypernetwork with 2 layers.
    """

    reads_state: bool = True

    def __init__(
        self, num_agents: int, state_size: int, embed: int = 32, layers: int = 2, hidden: int = 64
    ) -> None:
        super().__init__()
        if layers not in (1, 2):
            raise ValueError(f"layers={layers}: give 1 or 2, the layers of a hypernetwork")
        self.num_agents: int = num_agents
        self.embed: int = embed

        def hypernet(width: int) -> nn.Module:
            if layers == 1:
                return nn.Linear(state_size, width)
            return nn.Sequential(nn.Linear(state_size, hidden), nn.ReLU(), nn.Linear(hidden, width))

        self.rows: nn.Module = hypernet(num_agents * embed)
        self.bias: nn.Linear = nn.Linear(state_size, embed)
        self.final: nn.Module = hypernet(embed)
        self.offset: nn.Sequential = nn.Sequential(
            nn.Linear(state_size, embed), nn.ReLU(), nn.Linear(embed, 1)
        )

    def forward(self, q: Tensor, active: Tensor, state: Tensor | None = None) -> Tensor:
        """Q_tot (B,) of `q` (B, n) in joint states (B, state_size); `active` as in `VDNMixer`."""
        if state is None:
            raise ValueError("QMIX needs the joint state: give state=(B, state_size)")
        rows = self.rows(state).abs().unflatten(-1, (self.num_agents, self.embed))  # (B, n, E)
        together = torch.einsum("bn,bne->be", q.where(active, 0.0), rows)
        hidden = elu(together + self.bias(state))  # (B, E)
        return (hidden * self.final(state).abs()).sum(-1) + self.offset(state)[:, 0]


Mix = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A mixer, or any callable with its signature."""


def counterfactuals(
    mixer: Mix, chosen: Tensor, expected: Tensor, active: Tensor, state: Tensor | None = None
) -> Tensor:
    """`A_i = Q_tot(u) - Q_tot(u with u_i replaced by v_i)` (B, n): counterfactual advantages, the
    contribution of each agent's choice to the team's value with all others fixed (COMA, arXiv
    1705.08926; with a mixed critic DOP, arXiv 2007.12322). 0 for inactive agents.

    Args:
        mixer: of utilities.
        chosen, expected: (B, n) values `u` of the chosen actions, and `v` expected before acting.
        active, state: (B, n) and (B, S), as for mixers.
    """
    count, agents = chosen.shape
    one = torch.eye(agents, dtype=torch.bool, device=chosen.device)
    replaced = torch.where(one, expected[:, None], chosen[:, None]).flatten(0, 1)  # (B * n, n)
    others = active.repeat_interleave(agents, 0)
    states = None if state is None else state.repeat_interleave(agents, 0)
    without = mixer(replaced, others, states).view(count, agents)
    return (mixer(chosen, active, state)[:, None] - without).where(active, 0.0)


def best_of(values: Tensor, decision: Tensor) -> Tensor:
    """For each of the values (B, n), the largest among those with the same `decision` (B, n)."""
    flat, index = values.flatten(), decision.flatten()
    top = flat.new_full((int(index.max()) + 1,), -torch.inf)
    top = top.scatter_reduce(0, index, flat, "amax")
    return top[index].view_as(values)


@dataclass(frozen=True, slots=True)
class Mixing:
    """Settings of a mixed critic.

    Args:
        kind: `vdn`: sum of the agents' values. `qmix`: a monotone function that depends on the
            joint state.
        mode: `vdac`: mix the expected values before each completion into a baseline `V_tot(s)`
            (arXiv 2007.12306). `factored`: mix utilities of the completions into `Q_tot`, whose
            counterfactuals are the advantages. `bon`: the same `Q_tot`, trained towards the best of
            several answers.
        embed, layers, hidden: of `QMIXMixer`.
        state_size: size of the reduced joint state.
        head_size: hidden units of the agents' heads.
        target_rate: Polyak rate of the target network after each step; 1: the target is the network
            before the iteration's steps.
        epochs: optimiser steps per iteration, each on all episodes.
    """

    kind: Literal["vdn", "qmix"] = "qmix"
    mode: MixingMode = "vdac"
    embed: int = 32
    layers: int = 2
    hidden: int = 64
    state_size: int = 64
    head_size: int = 64
    target_rate: float = 1.0
    epochs: int = 32

    def mixer(self, num_agents: int) -> Any:
        """Creates the mixer of a team: a `VDNMixer` or a `QMIXMixer`."""
        if self.kind == "vdn":
            return VDNMixer()
        return QMIXMixer(num_agents, self.state_size, self.embed, self.layers, self.hidden)


class TeamValue(nn.Module):
    """The trained part on top of frozen features: a head per agent and kind of value, the reduction
    of the joint state, and the mixer. An agent keeps its slot in steps without it.

    Values are in units of `scale`, the root mean square of the first returns, so that learning
    rates do not depend on the scale of rewards.
    """

    scale: Tensor
    value_head: None = None
    precision: str = "fp32"

    def __init__(self, num_agents: int, features: int, mixing: Mixing) -> None:
        super().__init__()
        self.mixing = mixing

        def heads() -> nn.ModuleList:
            return nn.ModuleList(_head(features, mixing.head_size) for _ in range(num_agents))

        self.expected: nn.ModuleList | None = heads() if mixing.mode != "bon" else None
        self.chosen: nn.ModuleList | None = heads() if mixing.mode != "vdac" else None
        self.mixer: VDNMixer | QMIXMixer = mixing.mixer(num_agents)
        self.reduce: nn.Sequential | None = None
        if self.mixer.reads_state:
            size = mixing.state_size
            self.reduce = nn.Sequential(nn.Linear(features, size), nn.LayerNorm(size))
        self.register_buffer("scale", torch.zeros(()))

    @property
    def device(self) -> torch.device:
        return self.scale.device

    @property
    def storage(self) -> "Storage[TeamValue]":
        """Its weights, which are never sharded."""
        return Storage(self, self.parameters)

    def utilities(self, read: Tensor) -> Tensor:
        """Utilities `u` (B, n) of completions with features (B, n, F)."""
        return _apply(self.chosen, read)

    def expectations(self, read: Tensor) -> Tensor:
        """Expected values `v` (B, n) of prompts with features (B, n, F)."""
        return _apply(self.expected, read)

    def mix(self, q: Tensor, active: Tensor, state: Tensor | None) -> Tensor:
        """`Q_tot` (B,) of `q` (B, n) in joint states with features (B, F)."""
        return self.mixer(q, active, None if self.reduce is None else self.reduce(state))


def _head(features: int, hidden: int) -> nn.Sequential:
    """A head that starts at zero, as every value head."""
    last = nn.Linear(hidden, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), last)


def _apply(heads: nn.ModuleList | None, read: Tensor) -> Tensor:
    assert heads is not None, "this mode has no such head"
    columns = [head(part) for head, part in zip(heads, read.unbind(1), strict=True)]
    return torch.cat(columns, dim=-1)
