"""Requirements of an algorithm as data, derived from its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mrlm.config.policy_sections import EndpointConfig
from mrlm.core.errors import ConfigError
from mrlm.core.replayed import Replays
from mrlm.core.rounds import Rounds
from mrlm.core.types import ANNOTATED
from mrlm.learn.critics.mixers import Mixing
from mrlm.learn.schedule import Order

Topology = Literal["shared", "separate", "central", "mixed"]
"""Estimator of values. `shared`: a head on the policy. `separate`: a network per policy with the
policy's input. `central`: one network for the team, which reads the conversations of all agents as
text. `mixed`: one for the team that values every agent separately and mixes the values into the
team's."""

UNCORRECTED = (
    "{name} assumes samples of the current policy and has no correction for those of older "
    "weights; set training.max_lag=0"
)
ROUNDED = (
    "engine.int8=true samples from rounded weights, and {name} does not correct for them; set "
)


@dataclass(frozen=True, slots=True)
class Collection:
    """Collection of episodes for an algorithm that trains on them as on a data set.

    Args:
        demonstrate: the environments' experts act instead of the policies.
        every: iterations between two collections.
        min_reward: minimum reward of an episode to keep; `None` keeps all.
    """

    demonstrate: bool = False
    every: int = 1
    min_reward: float | None = None


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The episodes that get credit.

    Args:
        siblings: several episodes per task, compared with each other.
        greedy: one additional greedy episode per task as a baseline, never trained on.
        tree: several answers to every state.
        rows: a data set instead of rollouts.
        pairs: the rows are preference pairs.
        credits: supported episodes: `chains`; also `trees`, whose episodes were forked from one
            another; or also `pruned_trees`, in which only some answers to a state were continued.
        cross: run every combination of the agents' answers to a task, at most this number of joint
            actions; `None`: not combined.
        replays: replays of each episode with a decision changed; `None`: none are played.
        refills: how often an iteration may sample further tasks to replace groups that a
            `GroupFilter` drops.
        others: who plays a share of the tasks in place of the policies, `expert` or `teacher`, and
            that share; their tokens are trained on.
        collection: of episodes before training on them; `None`: train once on each episode.
        rounds: outer loop in which the policies answer rows and are trained on the answers, over
            all rows unless it has a number; each round starts with the policy as its own reference.
    """

    siblings: bool = False
    greedy: bool = False
    tree: bool = False
    rows: bool = False
    pairs: bool = False
    credits: Literal["chains", "trees", "pruned_trees"] = "chains"
    cross: int | None = None
    replays: Replays | None = None
    refills: int = 0
    others: tuple[str, float] | None = None
    collection: Collection | None = None
    rounds: Rounds | None = None


@dataclass(frozen=True, slots=True)
class CriticPlan:
    """The estimates of values, where `values` is a column.

    Args:
        topology: the estimator.
        per_turn: a turn has a single value, that of its prompt: its completion need not be read.
        passes: epochs of a critic with its own network; `None`: those of the policy.
        mixing: settings of a `mixed` critic.
    """

    topology: Topology = "shared"
    per_turn: bool = False
    passes: int | None = None
    mixing: Mixing = field(default_factory=Mixing)

    @property
    def of_team(self) -> bool:
        """True if one critic values the whole team."""
        return self.topology in ("central", "mixed")


@dataclass(frozen=True, slots=True)
class Spec:
    """The requirements of an algorithm.

    Args:
        sampling: the episodes to train on.
        columns: names of `ANNOTATED` columns, computed before credit.
        critic: estimator of values.
        scalar_head: every policy gets a scalar head, regardless of `columns`.
        reference: model that a policy's reference is loaded from, for all policies or by policy;
            `None`: the policy as it is at the start.
        endpoint: server that scores in place of a reference; `None`: none.
        top_k: tokens of the server's distributions that the loss compares.
        compares: the loss reads the distributions of the reference over the whole vocabulary.
        reveals: what the reference reads beyond the prompts of the policy (`data/privileged.py`).
        distils: the distance from a teacher is trained on, whatever the rewards are.
        unit: samples that micro-batches never split.
        orders: supported update orders of policies; the first is the default.
        swap_every: iterations after which agents exchange their policies; `None`: never.
        renew_reference: iterations between updates of the reference to the policy; 0 is never.
        reads_old: the loss reads `batch.old_logprobs`: it trains on samples of the policies, not on
            data set rows.
        rescores_lagged: samples of older weights are rescored before the update, so that the ratio
            is to the current policy and a weight corrects for the lag.
        refuses_lag: reason why it cannot train on samples of older weights, and the fix, with
            `{name}` for the algorithm; `None`: it can.
        refuses_rounded: the same for samples of rounded weights (`engine.int8`).
        entropy: the loss differentiates the entropy.
        leaves_out: completions that were `cut` at the token limit, or `truncated` episodes, are not
            trained on.
        trains_answers: the agents' own tokens are trained on; else only what they read next.
        ignores_zero: samples with only zero advantages do not change the loss, so the forward pass
            may skip them; they still count in its denominators.
    """

    sampling: SamplingPlan = SamplingPlan()
    columns: frozenset[str] = frozenset()
    critic: CriticPlan = CriticPlan()
    scalar_head: bool = False
    reference: str | Mapping[str, str] | None = None
    endpoint: EndpointConfig | None = None
    top_k: int = 0
    compares: bool = False
    reveals: tuple[str, ...] = ()
    distils: bool = False
    unit: Literal["turn", "rollout", "pair", "joint_step"] = "turn"
    orders: tuple[Order, ...] = ("simultaneous", "alternating", "sequential")
    swap_every: int | None = None
    renew_reference: int = 0
    reads_old: bool = True
    rescores_lagged: bool = True
    refuses_lag: str | None = UNCORRECTED
    refuses_rounded: str | None = ROUNDED + "engine.int8=false"
    entropy: bool = False
    leaves_out: Literal["cut", "truncated"] | None = None
    trains_answers: bool = True
    ignores_zero: bool = False

    def __post_init__(self) -> None:
        for name in {*self.columns} - {*ANNOTATED}:
            raise ConfigError(f"Spec.columns: {name} is none of {', '.join(ANNOTATED)}")

    @property
    def has_reference(self) -> bool:
        """Whether every policy has a frozen reference with weights here."""
        return self.endpoint is None and self.reads_reference

    @property
    def reads_reference(self) -> bool:
        """Whether a reference, here or elsewhere, scores the policies' tokens."""
        return self.compares or bool(self.columns & {"ref_logprobs", "full_kl"})

    def reference_of(self, policy: str) -> str | None:
        """The model that the reference of a policy is loaded from."""
        source = self.reference
        return source.get(policy) if isinstance(source, Mapping) else source

    def renews_reference(self, step: int, tasks: int | None, batch_size: int) -> bool:
        """True if the reference is set to the policy before iteration `step` (from 0), which takes
        `batch_size` of so many `tasks`."""
        if self.sampling.rounds is not None:
            assert tasks is not None
            return step > 0 and self.sampling.rounds.over(tasks, batch_size).at(step)[1] == 0
        return bool(self.renew_reference and step and step % self.renew_reference == 0)
