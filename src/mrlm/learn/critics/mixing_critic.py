"""The critic of a team whose value is mixed from what its agents are worth: a frozen network reads
texts, and heads and a mixer on top of it learn. Whose reward is mixed, and what becomes of it, is
the algorithm's business."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.chat import Chat
from mrlm.core.episodes import Group
from mrlm.core.errors import TrainingError
from mrlm.core.timing import span
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.critics.critic import CentralCritic
from mrlm.learn.critics.mixers import Mixing, TeamValue, best_of, counterfactuals
from mrlm.learn.critics.text_features import FeatureReader, FeatureRows
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.lora import BASE
from mrlm.learn.policy.policy import Policy

MIXER_LEARNING_RATE = 3e-4
"""Of heads and mixers, which begin from nothing; used when `training.critic_learning_rate` is not
set."""


class MixedCritic(CentralCritic):
    """One critic for the team that values every agent by itself and mixes the values.

    The network is frozen: it reads, with a tokenizer of its own, each agent's conversation and the
    joint states (`FeatureReader`), once an iteration. What is learned on top of it (`TeamValue`) is
    small, and is stepped on whole episodes.

    Args:
        body: the network, with its tokenizer; it is frozen here.
        settings: how heads and mixer are optimised, with `critic_learning_rate`.
        chats: policy -> renderer of its conversations, to read tokens of any policy as text.
        agents: the team; each has a slot of its own, by name.
        mixing: how values are mixed.
        seed: decides how heads and mixer begin.
    """

    def __init__(
        self,
        body: Policy,
        settings: LearnerSettings,
        chats: Mapping[str, Chat],
        agents: Sequence[str],
        mixing: Mixing,
        seed: int = 0,
    ) -> None:
        self.agents: list[str] = sorted(agents)
        self.mixing = mixing
        self.seed = seed
        self.rows: FeatureRows | None = None
        self.fit: tuple[np.ndarray, np.ndarray] | None = None
        """Returns of the latest `update` and what was mixed for them before it, both (B,)."""
        super().__init__(body, settings, chats)

    def equip(self) -> None:
        for weight in self.body.parameters():
            weight.requires_grad_(False)
        self.reader: FeatureReader = FeatureReader(
            self.body,
            self._text_of,
            self.agents,
            self.settings.max_tokens,
            # a baseline must not see what was said before it in its round
            rounds=self.mixing.mode != "vdac",
            states=self.mixing.kind != "vdn",
            peers=self.settings.peers,
        )
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            team = TeamValue(len(self.agents), self.reader.width, self.mixing)
        self.team: MixerModule = MixerModule(team.to(self.body.device))
        self.target: TeamValue | None = None
        if self.mixing.target_rate < 1:
            self.target = copy.deepcopy(self.team.network).requires_grad_(False)

    @property
    def learned(self) -> MixerModule:
        return self.team

    def modules(self) -> list[torch.nn.Module]:
        target = [] if self.target is None else [self.target]
        return [*super().modules(), self.team.network, *target]

    # -- what it reads -----------------------------------------------------------------------------

    def annotate(self, groups: Sequence[Group]) -> None:
        """Read the groups, and write `values` on the turns: the target network's value of the joint
        step they are part of."""
        with self.body.scoring(), span("values", self.title):
            self.rows = self.reader.rows(groups)
            if self.rows is None:
                return
            values = self._targets(self.rows).double().cpu().numpy()
        for step, value in zip(self.rows.steps, values, strict=True):
            for turn in step.turns:
                turn.values = float(value)

    # -- what it computes --------------------------------------------------------------------------

    @property
    def scale(self) -> Tensor:
        """Units of what is learned; 1 as long as nobody was ever paid."""
        scale = self.team.network.scale
        return torch.where(scale > 0, scale, torch.ones_like(scale))

    def _mixed(self, network: TeamValue, rows: FeatureRows) -> Tensor:
        """`Q_tot` or, as a baseline, `V_tot` of every row (B,), in the network's units."""
        if self.mixing.mode == "vdac":
            return network.mix(network.expectations(rows.expected), rows.active, rows.state)
        return network.mix(network.utilities(rows.chosen), rows.active, rows.state)

    def _targets(self, rows: FeatureRows) -> Tensor:
        """What is bootstrapped from (B,): the target network's value of every row; with `bon`, of
        the best answer that each agent gave to the same question."""
        network = self.target or self.team.network
        if self.mixing.mode != "bon":
            return self._mixed(network, rows) * self.scale
        best = best_of(network.utilities(rows.chosen), rows.decision)
        return network.mix(best, rows.active, rows.state) * self.scale

    @torch.no_grad()
    def counterfactuals(self) -> list[tuple[str, list[Turn], float]]:
        """What each agent's own words added, for every agent that spoke in every row: its name, its
        turns there, and `Q_tot(u) - Q_tot(u with u_i replaced by v_i)`."""
        rows, network = self._known(), self.team.network

        def mixer(q: Tensor, active: Tensor, state: Tensor | None) -> Tensor:
            assert state is not None
            return network.mix(q, active, state)

        u, v = network.utilities(rows.chosen), network.expectations(rows.expected)
        table = counterfactuals(mixer, u, v, rows.active, rows.state) * self.scale
        return list(self._spread(rows, table))

    @torch.no_grad()
    def utilities(self) -> list[tuple[str, list[Turn], float, int]]:
        """The same with the agent's utility, and the number of the question it answered."""
        rows = self._known()
        found = self._spread(rows, self.team.network.utilities(rows.chosen))
        chosen = rows.decision[rows.active].tolist()
        return [(*entry, number) for entry, number in zip(found, chosen, strict=True)]

    def _spread(self, rows: FeatureRows, table: Tensor) -> Iterator[tuple[str, list[Turn], float]]:
        numbers = table.double().cpu().numpy()
        for row, taken in enumerate(rows.slots):
            for slot in sorted(taken):
                yield self.agents[slot], taken[slot], float(numbers[row, slot])

    def _known(self) -> FeatureRows:
        if self.rows is None:
            raise TrainingError("the mixed critic has read nothing yet; annotate comes first")
        return self.rows

    # -- how it learns -----------------------------------------------------------------------------

    def update(
        self, groups: Sequence[Group], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        """Learn the returns on the turns that `annotate` has read: `mixing.epochs` steps, each on
        all rows. Arguments and result as for every critic."""
        found = self.take_returns(groups)
        if found is None:
            return {}
        (kept, returns), rate, history = found, self.stepper.begin(step), []
        for _ in range(self.mixing.epochs):
            self.stepper.clear()
            with span("forward", self.title):
                loss = self._loss(kept, returns / self.scale)
            with span("backward", self.title):
                self.stepper.backward(loss)
            history.append((float(loss.detach()), self._step(float(loss.detach()))))
            self._follow()
        self.settings.peers.spread(self._state().values())  # other machines round differently
        means = np.mean([row for row in history if np.isfinite(row).all()] or [(0.0, 0.0)], axis=0)
        metrics = dict(zip(("value_loss", "critic_grad_norm"), map(float, means), strict=True))
        return metrics | {"critic_learning_rate": rate}

    def loss(
        self, groups: Sequence[Group], algorithm: Algorithm, across: Across | None = None
    ) -> Tensor:
        found = self.take_returns(groups)
        if found is None:
            return self.scale * 0.0
        self._follow()
        kept, returns = found
        return self._loss(kept, returns / self.scale)

    def losses(
        self,
        groups: Sequence[Group],
        algorithm: Algorithm,
        rng: random.Random,
        across: Across | None = None,
    ) -> Iterator[Tensor]:
        found = self.take_returns(groups)
        for _ in range(self.mixing.epochs if found else 0):
            kept, returns = found  # pyright: ignore[reportGeneralTypeIssues]
            yield self._loss(kept, returns / self.scale)
            self._follow()

    def take_returns(self, groups: Sequence[Group]) -> tuple[FeatureRows, Tensor] | None:
        """The rows that `annotate` has read and credit gave returns to, with these returns (B,);
        notes in `fit` what was mixed for them. `None` where there are none."""
        self.fit, rows = None, self.rows
        paid = [] if rows is None else [step.turns[0].returns is not None for step in rows.steps]
        if rows is None or not any(paid):
            return None
        kept = rows.where(paid)
        numbers = [float(np.mean(step.turns[0].returns)) for step in kept.steps]  # pyright: ignore
        returns = torch.tensor(numbers, dtype=torch.float32, device=kept.chosen.device)
        scale = self.team.network.scale
        if not scale:
            scale.copy_(returns.square().mean().sqrt())
        with torch.no_grad():
            known = self._mixed(self.team.network, kept) * self.scale
        self.fit = (returns.double().cpu().numpy(), known.double().cpu().numpy())
        return kept, returns

    def _loss(self, rows: FeatureRows, returns: Tensor) -> Tensor:
        """Half the squared error of what is mixed; and, where advantages are counterfactuals, of
        what each agent expects against what it then did, `(v_i - sg(u_i))^2 / 2`."""
        network = self.team.network
        loss = (self._mixed(network, rows) - returns).square().mean() / 2
        if self.mixing.mode == "factored":
            chosen = network.utilities(rows.chosen).detach()
            errors = (network.expectations(rows.expected) - chosen).square()
            loss = loss + errors[rows.active].mean() / 2
        return loss

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the target network a little towards the one that learns."""
        if self.target is None:
            return
        pairs = zip(self.target.parameters(), self.team.network.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, self.mixing.target_rate)
        self.target.scale.copy_(self.team.network.scale)

    # -- state -------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Heads, mixer and target; the network itself never changes."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._state(), folder / "mixer.safetensors")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        known, saved = self._state(), load_file(folder / "mixer.safetensors")
        if known.keys() != saved.keys():
            raise TrainingError(f"{folder} holds a mixer of another kind than this run's")
        for name, tensor in known.items():
            tensor.copy_(saved[name])

    def _state(self) -> dict[str, Tensor]:
        parts: dict[str, Any] = {"team": self.team.network, "target": self.target}
        return {
            f"{part}.{name}": tensor
            for part, network in parts.items()
            if network is not None
            for name, tensor in network.state_dict().items()
        }


class MixerModule:
    """A team's value as something that is stepped: all of it at the critic's learning rate."""

    value_head: None = None
    precision: str = "fp32"
    shards: None = None

    def __init__(self, network: TeamValue) -> None:
        self.network = network

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self.network.scale.device

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """What is stepped."""
        return self.network.parameters()


def frozen_beside(policy: Policy) -> Policy:
    """A network that reads as a policy does now and never learns: the base under an adapter, or a
    copy of the model."""
    adapter = None if policy.adapter is None else BASE
    model = policy.model if adapter is not None else copy.deepcopy(policy.model)
    return Policy(
        policy.name,
        model,
        policy.tokenizer,
        adapter=adapter,
        precision=policy.precision,
        chat=policy.chat,
        lean=policy.lean,
    )
