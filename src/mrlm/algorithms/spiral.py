"""SPIRAL: self-play, with a moving average of each role's rewards as its baseline.

- **Kind** teams without a critic
- **Paper** arXiv 2506.24119.
- **Formula** `A = gamma^k (R - b(role))`, `k` turns before the agent's last, with `b` a moving
  average per role (decay .95); in the first iteration the mean of the other rewards.
- **Differs** from the authors' code: the average is corrected for its start at 0 (`debias`) and
  moved by the mean of a batch; truncated answers stay (`ignore_no_eos`).
- **Knobs** plan: self-play; credit: own, at the end; group: a moving average per role; baseline:
  that.
- **Use it** for zero-sum games that one policy plays against itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from mrlm.core.episodes import Group
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import Member, all_members, trained_turns


@settings
class SPIRAL(PolicyGradient):
    """`A = gamma^k (R - b)`, with `R` the agent's return of the episode, `k` the number of its
    later turns, and `b` a moving average of `R` per environment and agent (role-conditioned
    advantage estimation, arXiv 2506.24119), which removes the advantage of one role over the other;
    no siblings are needed. Then a clipped surrogate.

    The baseline is read before it is updated, once, by the mean of an iteration over all processes,
    `b <- decay b + (1 - decay) mean(R)`: an order among concurrent episodes would be arbitrary. The
    first rewards of a role are compared with the mean of the other rewards of the iteration. The
    average starts at 0 and is divided by `1 - decay^n` after n updates, so that it is an unbiased
    mean from the first one on.

    Decay, gamma, two epochs and no KL penalty are the authors' settings. They also set
    `ignore_no_eos`; it is off here, so that a short `max_new_tokens` does not silently remove all
    training data.

    Args:
        decay: of the moving average.
        gamma: discount for each later turn of the agent.
        debias: correct the average for its start at 0.
        per_sample_update: update the baseline after every episode.
        ignore_no_eos: leave turns that hit the token limit out of the loss.
        drop_zeros: leave turns whose advantage is exactly 0 out of the loss and its denominators.
    """

    decay: float = Field(default=0.95, ge=0, lt=1)
    gamma: float = Field(default=1.0, ge=0, le=1)
    debias: bool = True
    per_sample_update: bool = False
    ignore_no_eos: bool = False
    drop_zeros: bool = True
    update_epochs: int = Field(default=2, ge=1)

    @property
    def spec(self) -> Spec:
        return replace(super().spec, leaves_out="cut" if self.ignore_no_eos else None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.averages: dict[str, tuple[float, int]] = {}

    def baseline(self, role: str) -> float:
        if role not in self.averages:
            return 0.0
        average, moves = self.averages[role]
        return average / (1 - self.decay**moves) if self.debias else average

    def credit_batch(self, groups: Sequence[Group]) -> None:
        by_role: dict[str, list[Member]] = {}
        for agent, members in all_members(groups).items():
            for member in members:
                role = f"{member[0].environment}/{agent}" if member[0].environment else agent
                by_role.setdefault(role, []).append(member)
        rewards = {role: [rollout.reward for _, rollout in x] for role, x in by_role.items()}
        read = self._in_order(rewards) if self.per_sample_update else self._at_once(rewards)
        for role, members in by_role.items():
            for (_, rollout), baseline in zip(members, read[role], strict=True):
                self._assign(rollout.reward, baseline, trained_turns(rollout))
        self.metrics.update(
            (f"baseline/{role}", self.baseline(role)) for role in sorted(self.averages)
        )

    def _assign(self, reward: float, baseline: float, turns: Sequence[Turn]) -> None:
        for following, turn in enumerate(reversed(turns)):
            advantage = self.gamma**following * (reward - baseline)
            cut = self.ignore_no_eos and turn.finish_reason == "length"
            if not cut and not (self.drop_zeros and advantage == 0.0):
                turn.advantages = float(advantage)
                less = reward - baseline
                because(turn, "{} - average of this role {} = {:+}", reward, baseline, less)
                if following and self.gamma != 1:
                    because(turn, "* {}^{} = {:+}", self.gamma, following, advantage)

    def _at_once(self, rewards: dict[str, list[float]]) -> dict[str, list[float]]:
        """The baseline of every reward, per role; then one update of it."""
        sums = ops.global_sum({role: [sum(x), len(x)] for role, x in rewards.items()})
        read = {role: [self.baseline(role)] * len(x) for role, x in rewards.items()}
        if self.debias:
            for role in rewards.keys() - self.averages.keys():
                total, count = sums[role]
                others = count - 1
                read[role] = [(total - x) / others if others else x for x in rewards[role]]
        for role, (total, count) in sums.items():
            self._move(role, total / count)
        return read

    def _in_order(self, rewards: dict[str, list[float]]) -> dict[str, list[float]]:
        """The same with an update after each reward; processes one after the other."""
        read: dict[str, list[float]] = {}
        rank = ops.global_rank()
        for index, part in enumerate(ops.global_gather(rewards)):
            for role, row in part.items():
                baselines = []
                for reward in row:
                    baselines.append(self.baseline(role))
                    self._move(role, reward)
                if index == rank:
                    read[role] = baselines
        return read

    def _move(self, role: str, reward: float) -> None:
        average, moves = self.averages.get(role, (0.0, 0))
        self.averages[role] = (self.decay * average + (1 - self.decay) * reward, moves + 1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"averages": {k: list(v) for k, v in self.averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.averages = {role: (float(b), int(n)) for role, (b, n) in state["averages"].items()}


PLUGIN = SPIRAL
