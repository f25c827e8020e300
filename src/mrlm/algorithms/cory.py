"""CORY: a pioneer and an observer answer in turn, share the reward, and swap roles at intervals.

- **Kind** teams with critics
- **Paper** arXiv 2410.06101.
- **Formula** the pioneer answers, the observer reads it and answers (workflow `pioneer_observer`);
  both get `r1 + r2`, scaled by the past rewards of their policies; PPO each, with a divergence in
  the reward (`kl_penalty`: k1 or full); every `swap_freq` iterations they exchange roles.
- **Differs** from the authors' code: values per turn and a sampled divergence (`preset: cory` has
  values per token and the full one); optimisers stay with their policies at a swap.
- **Knobs** plan: `chain`, roles in order; credit: team, k1 or full divergence in the reward;
  baseline: GAE, whitened; critic: per agent; schedule: role swap.
- **Use it** to train one model with a copy of itself as a partner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.matters import Matters
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.groups import Member, adaptive_kl_coef, column, trained_turns
from mrlm.learn.credit.running_stats import RunningStats


@settings
class CORY(PPO):
    """Sequential cooperative fine-tuning of two copies of a model (arXiv 2410.06101): the pioneer
    answers `y1 ~ pi_1(x)`, the observer `y2 ~ pi_2(x, y1)`, both get `r(x, y1) + r(x, y2)`, each is
    trained by its own PPO with a KL penalty, and every `swap_freq` iterations they exchange their
    policies. In environments of several agents each gets its own rewards, and after its last turn
    those of all others.

    Optimisers, KL coefficients and reward statistics move with the policies (the public code
    creates new optimisers at every swap and loses their moments). With one shared policy the swap
    has no effect; without swap and scaling, for one agent, it is PPO. Defaults are published ones.

    Args:
        swap_freq: iterations between two swaps; `None`: no swap.
        kl_penalty: KL subtracted from the reward of each token: `k1`, estimated from the sampled
            token, or `full`, over the whole vocabulary (as published: one more policy forward and
            output head; never negative, less noise).
        score_scaling: divide an agent's return of an episode by its running standard deviation.
        score_norm: subtract its running mean first (only with `score_scaling`).
    """

    swap_freq: int | None = Field(default=5, ge=1)
    kl_penalty: Literal["k1", "full"] = "k1"
    kl_coef: float = Field(default=0.4, ge=0)
    kl_target: float | None = Field(default=6.0, gt=0)
    score_scaling: bool = True
    score_norm: bool = True

    default_learning_rate: ClassVar[float] = 1.41e-5

    matters: ClassVar[Mapping[str, Matters]] = {
        "kl_penalty": Matters(lambda s, run: s.kl_coef, "kl_coef is 0; set it, or remove this"),
        "score_norm": Matters(lambda s, run: s.score_scaling, "score_scaling is off; remove it"),
    }

    def __post_init__(self) -> None:
        if not self.kl_coef:
            self.kl_target = None
        super().__post_init__()
        self.kl_coefs: dict[str, float] = {}
        self.scores: dict[str, RunningStats] = {}

    @property
    def spec(self) -> Spec:
        spec = super().spec
        columns = spec.columns
        if self.kl_coef and self.kl_penalty == "full":
            columns = columns - {"ref_logprobs"} | {"full_kl"}
        return replace(spec, columns=columns, swap_every=self.swap_freq)

    # -- rewards -----------------------------------------------------------------------------------

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        rewards, seen = self._shared(episode, rollout), self.scores.get(_policy(rollout))
        if seen is not None and self.score_scaling:
            scale = seen.std or 1.0
            rewards = [reward / scale for reward in rewards]
            rewards[-1] -= seen.mean / scale if self.score_norm else 0.0
        return rewards

    def _shared(self, episode: Episode, rollout: Rollout) -> list[float]:
        """Rewards of an agent's turns, with those of the other agents added to the last one."""
        rewards = super().turn_rewards(episode, rollout)
        others = [other for other in episode.rollouts.values() if other is not rollout]
        rewards[-1] += sum(other.reward for other in others)
        return rewards

    def credit_batch(self, groups: Sequence[Group]) -> None:
        scores_of: dict[str, list[float]] = {}
        for episode, rollout in chain.from_iterable(self.successions(groups).values()):
            score = sum(self._shared(episode, rollout))
            scores_of.setdefault(_policy(rollout), []).append(score)
        moments = ops.global_moments({policy: np.array(x) for policy, x in scores_of.items()})
        for policy, stats in sorted(moments.items()):
            seen = self.scores.setdefault(policy, RunningStats())
            seen.add(stats)
            self.metrics[f"score/{policy}/mean"] = stats.mean
            self.metrics[f"score/{policy}/running_std"] = seen.std
        super().credit_batch(groups)

    # -- KL to the reference -----------------------------------------------------------------------

    def kl_coef_of(self, policy: str) -> float:
        return self.kl_coefs.get(policy, self.kl_coef)

    def kl_column(self, turn: Turn) -> np.ndarray:
        return column(turn, "full_kl") if self.kl_penalty == "full" else super().kl_column(turn)

    def _adapt(self, members: list[Member]) -> None:
        sums: dict[str, list[float]] = {}
        for _, rollout in members:
            row = sums.setdefault(_policy(rollout), [0.0, 0.0])
            row[0] += sum(float(self.kl_column(turn).sum()) for turn in trained_turns(rollout))
            row[1] += 1
        for policy, (total, count) in sorted(ops.global_sum(sums).items()):
            coef, kl = self.kl_coef_of(policy), total / count
            self.metrics.update({f"kl/{policy}": kl, f"kl_coef/{policy}": coef})
            if self.kl_target is not None:
                self.kl_coefs[policy] = adaptive_kl_coef(
                    coef, kl, self.kl_target, int(count), self.kl_horizon
                )

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        scores = {policy: asdict(seen) for policy, seen in self.scores.items()}
        return super().state_dict() | {"kl_coefs": dict(self.kl_coefs), "scores": scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.kl_coefs = dict(state["kl_coefs"])
        self.scores = {policy: RunningStats(**seen) for policy, seen in state["scores"].items()}


def _policy(rollout: Rollout) -> str:
    return trained_turns(rollout)[-1].policy


PLUGIN = CORY
