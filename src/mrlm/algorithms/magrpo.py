"""MAGRPO: the team's return for every agent, relative to its own mean over sibling episodes.

- **Kind** teams without a critic
- **Paper** arXiv 2508.04652.
- **Formula** `A_t = G_t - mean over the siblings' turns t`, for each agent; in a tree `G = r +
  gamma mean(children)` and the mean over the answers to one state. With `joint_mode: cross` all `G
  ** N` combinations of N agents' answers are played (one joint step), and an answer returns the
  mean (`cross_credit: sum`: the sum) of those that contain it, up to `max_joint_actions` of them.
- **Differs** from the authors' code: advantages are not divided by their deviation (CoMLRL 1.4.3
  does so by default; `whiten_advantages`); one optimiser step per batch and
  not per two nodes of a tree; a `cross` answer returns a mean and not a sum; the last token of an
  answer is trained; gamma .9 and two siblings (`preset: magrpo`: 1 and four, as CoMLRL 1.4.3).
- **Knobs** plan: `chain(G)`, `tree` or `cross`; credit: team (or `independent`), to go; group:
  state; baseline: mean (`baseline`, known as `advantage_mode`: the next three and a greedy
  sibling); loss: no ratio.
- **Use it** first for teams: one return for all, no critic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import SEVERAL_AGENTS, Matters
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import LossType, PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.baselines import BaselineBy, Statistic, compare, compare_greedy, resolved
from mrlm.learn.credit.combinations import credit_combinations
from mrlm.learn.credit.groups import Member, greedy_metrics, members, trained_turns
from mrlm.learn.credit.returns import forked, tree_returns, turn_returns
from mrlm.learn.ops import Aggregation

Baseline = Literal["none", "mean", "leave_one_out", "group_max", "remax_greedy"]


@settings
class MAGRPO(PolicyGradient):
    """`A_t = G_t - b` with the team's return `G_t = sum_{k >= t} gamma^(k - t) R_k` over joint
    steps (arXiv 2508.04652), for every agent that acted in the step; `loss_type="reinforce"`,
    summed over a turn's tokens and averaged over turns.

    `b` is, for each agent, the mean over the sibling episodes of the return of that agent's turn of
    the same number (`baseline_by="turn"`). In the workflow `tree` the return of an answer is its
    reward plus gamma times the mean return of its children, and `b` the mean over the answers to
    the same state. Groups whose siblings all have the same returns get exactly 0.

    Args:
        baseline: subtracted from a return: `none`, the `mean` over the siblings, `leave_one_out`
            (the mean over the others), `group_max` (their maximum), or `remax_greedy`: the return
            of the agent's turn of the same number in one additional, greedy episode of the task
            (arXiv 2310.10505); needs no siblings, and skips tasks whose greedy episode failed.
            `mareinforce`, `marloo` and `maremax` are this algorithm with other defaults.
        baseline_by: which returns these are (`mrlm.learn.credit.baselines`); by default those of
            the same `turn`, and in trees those of the same state, `node`. `episode` is the mean
            return of an episode, `role` and `batch` are all returns of the agent in the group or
            the batch.
        whiten_advantages: centre the advantages of a comparison, whatever the baseline, and divide
            them by their deviation (CoMLRL's `advantage_normalization`).
        gamma: discount from one joint step to the next.
        returns: `joint`: the team's. `independent`: each agent's own rewards (one policy gradient
            per agent; identical where rewards are shared).
        joint_mode: `aligned` (or `align`): the g-th answers of all agents form one joint action, G
            in total. `cross`: every combination of the answers is executed, `G ** N` joint actions
            of N agents, in environments of one joint step; the return of an answer is taken over
            all joint actions that contain it.
        cross_credit: `mean` of those joint actions, or their `sum`, as in the reference
            implementation: `G ** (N - 1)` times as large.
        max_joint_actions: maximum number of joint actions per task.
    """

    loss_type: LossType = "reinforce"
    aggregation: Aggregation | None = "turn_mean_token_sum"
    baseline: Baseline = "mean"
    baseline_by: BaselineBy | None = None
    whiten_advantages: bool = False
    gamma: float = Field(default=0.9, ge=0, le=1)
    returns: Literal["joint", "independent"] = "joint"
    joint_mode: Annotated[
        Literal["align", "aligned", "cross"],
        AfterValidator(lambda mode: "aligned" if mode == "align" else mode),
    ] = "aligned"
    cross_credit: Literal["mean", "sum"] = "mean"
    max_joint_actions: int = Field(default=256, ge=1)
    group_size: int = Field(default=2, ge=1)

    matters: ClassVar[Mapping[str, Matters]] = {
        "returns": SEVERAL_AGENTS,
        "clip_range_high": Matters(
            lambda s, run: s.clips and s.baseline != "group_max",
            "with this loss_type, or advantages that are never above 0, nothing is clipped at it; "
            "remove it",
        ),
        "joint_mode": SEVERAL_AGENTS,
        **dict.fromkeys(
            ("cross_credit", "max_joint_actions"),
            Matters(
                lambda s, run: s.joint_mode == "cross",
                "joint_mode is aligned; set joint_mode=cross, or remove this",
            ),
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spec.sampling.siblings and self.group_size < 2:
            raise ConfigError(
                f"baseline={self.baseline!r} compares siblings, and group_size is "
                f"{self.group_size}; set it to 2 or more, or baseline to 'none' or 'remax_greedy' "
                "without whiten_advantages"
            )
        if self.baseline_by is not None and self.baseline == "none":
            raise ConfigError(
                f"baseline_by={self.baseline_by!r} selects the returns of the baseline, and "
                "baseline is 'none'; remove it, or set a baseline"
            )
        if self.baseline_by is not None and self.joint_mode == "cross":
            raise ConfigError(
                f"baseline_by={self.baseline_by!r}: joint_mode='cross' compares the answers that "
                "are combined; remove baseline_by, or set joint_mode=aligned"
            )
        if self.baseline == "remax_greedy" and self.baseline_by not in (None, "turn", "episode"):
            raise ConfigError(
                f"baseline_by={self.baseline_by!r}: a greedy episode is compared by 'turn' or by "
                "'episode'"
            )
        if self.whiten_advantages and self.baseline == "remax_greedy":
            raise ConfigError(
                "whiten_advantages divides by the deviation over siblings, and baseline="
                "'remax_greedy' has none; set baseline=mean, or remove it"
            )
        if self.joint_mode == "cross" and self.baseline == "remax_greedy":
            raise ConfigError(
                "joint_mode='cross' compares the answers that are combined with one another, and "
                "baseline='remax_greedy' whole episodes with a greedy one; set joint_mode=aligned, "
                "or another baseline"
            )

    @property
    def spec(self) -> Spec:
        siblings = self.whiten_advantages or self.baseline not in ("none", "remax_greedy")
        plan = SamplingPlan(
            siblings=siblings,
            greedy=self.baseline == "remax_greedy",
            tree=siblings and self.baseline_by == "node",
            credits="trees",
            cross=self.max_joint_actions if self.joint_mode == "cross" else None,
        )
        return replace(super().spec, sampling=plan)

    @property
    def statistic(self) -> Statistic:
        """The baseline among siblings."""
        if self.whiten_advantages:
            return "standard"
        return "none" if self.baseline == "remax_greedy" else self.baseline

    def credit_group(self, group: Group) -> None:
        if self.baseline == "remax_greedy":
            self._credit_greedy(group)
        elif self.joint_mode == "cross":
            independent = self.returns == "independent"
            credit_combinations(group, independent, self.cross_credit, self.statistic)
        elif self.baseline_by != "batch":
            tree = forked(group.valid)
            by = resolved(self.baseline_by, tree)
            for agent_members in members(group).values():
                compare(agent_members, self._returns(agent_members, tree), by, self.statistic)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        if self.baseline == "remax_greedy":
            self.metrics.update(greedy_metrics(groups))
        if self.baseline_by != "batch":
            return
        together: dict[str, list[tuple[Member, Sequence[float]]]] = {}
        for group in groups:
            tree = forked(group.valid)
            for agent, agent_members in members(group).items():
                rows = zip(agent_members, self._returns(agent_members, tree), strict=True)
                together.setdefault(agent, []).extend(rows)
        for pairs in together.values():
            agent_members, returns = [member for member, _ in pairs], [row for _, row in pairs]
            compare(agent_members, returns, "batch", self.statistic)

    def _returns(self, members: Sequence[Member], tree: bool) -> list[list[float]]:
        """Return of each trained turn of an agent's rollouts; `tree`: episodes were forked."""
        independent = self.returns == "independent"
        if tree:
            return tree_returns(members, self.gamma, independent)
        return [turn_returns(*x, trained_turns(x[1]), self.gamma, independent) for x in members]

    def _credit_greedy(self, group: Group) -> None:
        """Credit against the greedy episode; an agent that did not act in it has return 0 there."""
        reference, independent = group.greedy, self.returns == "independent"
        if reference is None:
            return
        by = "episode" if self.baseline_by == "episode" else "turn"
        for agent, agent_members in members(group).items():
            spoke, alone = reference.rollouts.get(agent), [0.0]
            if spoke is not None:
                alone = turn_returns(reference, spoke, spoke.turns, self.gamma, independent)
            compare_greedy(agent_members, self._returns(agent_members, tree=False), alone, by)


PLUGIN = MAGRPO
