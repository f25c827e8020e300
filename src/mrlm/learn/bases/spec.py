"""Requirements of an algorithm, as data: `Algorithm.spec` derives them from its settings, and the
builders and loops read them there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mrlm.core.rounds import Rounds
from mrlm.learn.critics.mixers import Mixing
from mrlm.learn.schedule import Order

ColumnName = Literal["values", "ref_logprobs", "old_logprobs", "full_kl", "entropies"]
"""A column of numbers that is computed for every turn before credit."""
Topology = Literal["shared", "separate", "central", "mixed"]
"""The estimator of values. `shared`: a head on the policy itself. `separate`: a network beside each
policy, reading what the policy reads. `central`: one network for the team, reading what everybody
read and said, as text. `mixed`: one for the team that values every agent by itself and mixes the
values into the team's."""

UNCORRECTED = (
    "{name} takes every answer for one of the policy as it is, and has no correction for what "
    "older weights sampled; set training.max_lag=0"
)


@dataclass(frozen=True, slots=True)
class Collection:
    """The collection of episodes for an algorithm that learns from them as from a data set.

    Args:
        demonstrate: the worlds' experts play instead of the policies.
        every: iterations between two collections.
        min_reward: least reward of an episode that is kept; `None` keeps all.
        most: how many episodes of a collection are kept; `None` is all.
    """

    demonstrate: bool = False
    every: int = 1
    min_reward: float | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The episodes that credit is given to.

    Args:
        siblings: several episodes of one task, which are compared.
        greedy: one more of each task, played greedily, that others are compared with and that is
            never trained.
        tree: several answers to every state.
        rows: a data set instead of play.
        pairs: where there are rows, they are preference pairs.
        credits: the episodes that it can give credit to: `chains`; `trees`, too, whose episodes
            were forked from one another; or also `pruned_trees`, in which only some answers to a
            state were followed up.
        cross: every combination of the agents' answers to a task is played, at most so many joint
            actions; `None`: they are not combined.
        refills: how often an iteration may take further tasks in the place of groups that a
            `GroupFilter` does not keep.
        collection: how episodes are collected before they are learned from; `None`: each is
            learned from once, as it was played.
        rounds: the outer loop in which the policies answer rows and learn from the answers, over
            all rows unless it has a number; a round begins with the policy as its own reference.
    """

    siblings: bool = False
    greedy: bool = False
    tree: bool = False
    rows: bool = False
    pairs: bool = False
    credits: Literal["chains", "trees", "pruned_trees"] = "chains"
    cross: int | None = None
    refills: int = 0
    collection: Collection | None = None
    rounds: Rounds | None = None


@dataclass(frozen=True, slots=True)
class CriticPlan:
    """The estimates of values, where `values` is a column.

    Args:
        topology: who computes them.
        per_turn: a turn has one value, that of what was read before it: what was said then need
            not be read to compute it.
        answers_alone: the critic beside a policy reads answers without what came before them.
        passes: times a critic with a network of its own goes over the played episodes; `None`: as
            often as the policy.
        mixing: how a `mixed` critic makes the team's value of its agents'.
    """

    topology: Topology = "shared"
    per_turn: bool = False
    answers_alone: bool = False
    passes: int | None = None
    mixing: Mixing = field(default_factory=Mixing)

    @property
    def of_team(self) -> bool:
        """True where one critic values the whole team."""
        return self.topology in ("central", "mixed")


@dataclass(frozen=True, slots=True)
class Spec:
    """The requirements of an algorithm.

    Args:
        sampling: the episodes that it learns from.
        columns: computed before credit.
        critic: estimates values.
        scalar_head: every policy gets a head for one number, whatever `columns` says.
        unit: what packing never splits.
        orders: how policies may take turns in learning; the first is the default.
        swap_every: iterations after which agents exchange their policies; `None`: they do not.
        renew_reference: iterations after which the policy becomes its own reference, again and
            again; 0 is never.
        reads_old: the loss reads `batch.old_logprobs`: it learns from what the policies themselves
            sampled, not from the rows of a data set.
        rescores_lagged: what older weights sampled is scored again before the update, so that the
            ratio is to the policy as it is then, and a weight makes up for the lag.
        refuses_lag: why it cannot learn from what older weights sampled, and the fix, with
            `{name}` for its own name; `None`: it can.
        entropy: the loss differentiates the entropy.
        ignores_zero: samples whose advantages are all 0 add nothing to the loss, so that they need
            not go through the model; they still count in its denominators.
    """

    sampling: SamplingPlan = SamplingPlan()
    columns: frozenset[ColumnName] = frozenset()
    critic: CriticPlan = CriticPlan()
    scalar_head: bool = False
    unit: Literal["turn", "pair", "joint_step"] = "turn"
    orders: tuple[Order, ...] = ("simultaneous", "alternating", "sequential")
    swap_every: int | None = None
    renew_reference: int = 0
    reads_old: bool = True
    rescores_lagged: bool = True
    refuses_lag: str | None = UNCORRECTED
    entropy: bool = False
    ignores_zero: bool = False

    def renews_reference(self, step: int, tasks: int | None, batch_size: int) -> bool:
        """True where the reference becomes the policy before iteration `step` (from 0), which takes
        `batch_size` of so many `tasks`."""
        if self.sampling.rounds is not None:
            assert tasks is not None
            return step > 0 and self.sampling.rounds.over(tasks, batch_size).at(step)[1] == 0
        return bool(self.renew_reference and step and step % self.renew_reference == 0)
