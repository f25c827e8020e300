"""The critic of a team whose value is mixed from the values of its agents: a frozen network
computes text features, and heads and a mixer on top are trained. Which reward is mixed, and the use
of the value, is defined by the algorithm."""

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
from mrlm.learn.critics.critic import TEAM, Critic
from mrlm.learn.critics.mixers import Mixing, TeamValue, best_of, counterfactuals
from mrlm.learn.critics.text_features import FeatureReader, FeatureRows
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.fast.repeatable import repeatable
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.randomness import seeded

MIXER_LEARNING_RATE = 3e-4
"""Learning rate of heads and mixers, which start untrained; used if `training.critic_learning_rate`
is not set."""


class MixedCritic(Critic):
    """One critic for the team that values every agent separately and mixes the values.

    The network (`body`) is frozen: once per iteration it reads each agent's conversation and the
    joint states (`FeatureReader`) with its own tokenizer. The small trained part (`TeamValue`),
    which starts from `seed` and has a slot for each of the `agents`, is stepped on whole episodes.
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
        """Returns of the latest `update` and the values mixed for them before it, both (B,)."""
        self.chats: dict[str, Chat] = dict(chats)
        super().__init__(TEAM, body, settings)

    def equip(self) -> None:
        for weight in self.body.parameters():
            weight.requires_grad_(False)
        self.reader: FeatureReader = FeatureReader(
            self.body,
            lambda turn, ids: self.chats[turn.policy].decode(ids),
            self.agents,
            self.settings.max_tokens,
            # a baseline must not see the messages before it in its round
            rounds=self.mixing.mode != "vdac",
            states=self.mixing.kind != "vdn",
            peers=self.settings.peers,
        )
        with seeded(self.seed, torch.device("cpu")):
            team = TeamValue(len(self.agents), self.reader.width, self.mixing)
        self.team: TeamValue = team.to(self.body.device)
        self.learned = self.team
        self.target: TeamValue | None = None
        if self.mixing.target_rate < 1:
            self.target = copy.deepcopy(self.team).requires_grad_(False)

    def modules(self) -> list[torch.nn.Module]:
        target = [] if self.target is None else [self.target]
        return [*super().modules(), self.team, *target]

    def annotate(self, groups: Sequence[Group]) -> None:
        """Reads the groups; `values` become the target network's values of the joint steps."""
        with self.body.scoring(), span("values", self.title):
            self.rows = self.reader.rows(groups)
            if self.rows is None:
                return
            values = self._targets(self.rows).cpu().double().numpy()
        for step, value in zip(self.rows.steps, values, strict=True):
            for turn in step.turns:
                turn.values = float(value)

    @property
    def scale(self) -> Tensor:
        """Unit of the values; 1 until a non-zero return was seen."""
        scale = self.team.scale
        return torch.where(scale > 0, scale, torch.ones_like(scale))

    def _mixed(self, network: TeamValue, rows: FeatureRows) -> Tensor:
        """`Q_tot` or, as a baseline, `V_tot` of every row (B,), in the network's units."""
        baseline = self.mixing.mode == "vdac"
        q = network.expectations(rows.expected) if baseline else network.utilities(rows.chosen)
        return network.mix(q, rows.active, rows.state)

    def _targets(self, rows: FeatureRows) -> Tensor:
        """Values of the target (B,); with `bon`, for each agent's best answer to its prompt."""
        network = self.target or self.team
        if self.mixing.mode != "bon":
            return self._mixed(network, rows) * self.scale
        best = best_of(network.utilities(rows.chosen), rows.decision)
        return network.mix(best, rows.active, rows.state) * self.scale

    @torch.no_grad()
    def counterfactuals(self) -> list[tuple[str, list[Turn], float]]:
        """Counterfactual advantages of every active agent in every row: its name, its turns there,
        and `Q_tot(u) - Q_tot(u with u_i replaced by v_i)`."""
        rows, network = self._known(), self.team
        u, v = network.utilities(rows.chosen), network.expectations(rows.expected)
        table = counterfactuals(network.mix, u, v, rows.active, rows.state) * self.scale
        return list(self._spread(rows, table))

    @torch.no_grad()
    def utilities(self) -> list[tuple[str, list[Turn], float, int]]:
        """The same with the agent's utility, and the number of the prompt that it answered."""
        rows = self._known()
        entries = self._spread(rows, self.team.utilities(rows.chosen))
        chosen = rows.decision[rows.active].tolist()
        return [(*entry, number) for entry, number in zip(entries, chosen, strict=True)]

    def _spread(self, rows: FeatureRows, table: Tensor) -> Iterator[tuple[str, list[Turn], float]]:
        numbers = table.cpu().double().numpy()
        for row, taken in enumerate(rows.slots):
            for slot in sorted(taken):
                yield self.agents[slot], taken[slot], float(numbers[row, slot])

    def _known(self) -> FeatureRows:
        if self.rows is None:
            raise TrainingError("the mixed critic has no features yet; call annotate first")
        return self.rows

    def update(
        self, groups: Sequence[Group], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        """Trains on the returns of the turns that `annotate` has read: `mixing.epochs` steps, each
        on all rows. Arguments and result as for every critic."""
        pair = self.take_returns(groups)
        if pair is None:
            return {}
        (rows, returns), rate, history = pair, self.stepper.begin(step), []
        for _ in range(self.mixing.epochs):
            self.stepper.clear()
            with repeatable(returns.device):
                with span("forward", self.title):
                    loss = self._loss(rows, returns / self.scale)
                with span("backward", self.title):
                    self.stepper.backward(loss)
            number = float(loss.detach())
            with span("optimizer", self.title):
                history.append((number, self.finish_step({"loss": number})[0]))
            self._follow()
        self.settings.peers.spread(self._state().values())  # ranks may round differently
        means = np.mean([row for row in history if np.isfinite(row).all()] or [(0.0, 0.0)], axis=0)
        metrics = dict(zip(("value_loss", "critic_grad_norm"), map(float, means), strict=True))
        return metrics | {"critic_learning_rate": rate}

    def loss(
        self, groups: Sequence[Group], algorithm: Algorithm, across: Across | None = None
    ) -> Tensor:
        pair = self.take_returns(groups)
        if pair is None:
            return self.scale * 0.0
        self._follow()
        rows, returns = pair
        return self._loss(rows, returns / self.scale)

    def losses(
        self,
        groups: Sequence[Group],
        algorithm: Algorithm,
        rng: random.Random,
        across: Across | None = None,
    ) -> Iterator[Tensor]:
        pair = self.take_returns(groups)
        for _ in range(self.mixing.epochs if pair else 0):
            rows, returns = pair  # pyright: ignore[reportGeneralTypeIssues]
            yield self._loss(rows, returns / self.scale)
            self._follow()

    def take_returns(self, groups: Sequence[Group]) -> tuple[FeatureRows, Tensor] | None:
        """The rows read by `annotate` that have returns, and these returns (B,); stores in `fit`
        the values mixed for them. `None` if there are none."""
        self.fit, rows = None, self.rows
        has_return = [step.turns[0].returns is not None for step in rows.steps] if rows else []
        if rows is None or not any(has_return):
            return None
        selected = rows.where(has_return)
        numbers = [float(np.mean(step.turns[0].returns)) for step in selected.steps]  # pyright: ignore
        returns = torch.tensor(numbers, dtype=torch.float32, device=selected.chosen.device)
        scale = self.team.scale
        if not scale:
            scale.copy_(returns.square().mean().sqrt())
        with torch.no_grad():
            values = self._mixed(self.team, selected) * self.scale
        self.fit = (returns.cpu().double().numpy(), values.cpu().double().numpy())
        return selected, returns

    def _loss(self, rows: FeatureRows, returns: Tensor) -> Tensor:
        """Half the squared error of the mixed value; for counterfactual advantages plus that of
        each agent's expected value against its utility, `(v_i - sg(u_i))^2 / 2`."""
        network = self.team
        loss = (self._mixed(network, rows) - returns).square().mean() / 2
        if self.mixing.mode == "factored":
            chosen = network.utilities(rows.chosen).detach()
            errors = (network.expectations(rows.expected) - chosen).square()
            loss = loss + errors[rows.active].mean() / 2
        return loss

    @torch.no_grad()
    def _follow(self) -> None:
        """Polyak update of the target network."""
        if self.target is None:
            return
        for slow, fast in zip(self.target.parameters(), self.team.parameters(), strict=True):
            slow.lerp_(fast, self.mixing.target_rate)
        self.target.scale.copy_(self.team.scale)

    def save(self, folder: Path) -> None:
        """Writes heads, mixer and target; the network itself is frozen."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._state(), folder / "mixer.safetensors")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        state, saved = self._state(), load_file(folder / "mixer.safetensors")
        if state.keys() != saved.keys():
            raise TrainingError(
                f"{folder}: the saved mixer is of another kind; resume with the same mixer settings"
            )
        for name, tensor in state.items():
            tensor.copy_(saved[name])

    def _state(self) -> dict[str, Tensor]:
        parts: dict[str, Any] = {"team": self.team, "target": self.target}
        return dict(torch.nn.ModuleDict(parts).state_dict())
