"""Preference pairs: built from data set rows, from siblings that answered the same state, or from
trees; and the credit of algorithms that train on them. Independent of the loss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import clear, members, trained_turns
from mrlm.learn.data.batch import Sample, merge

Rewards = Literal["own", "team"]
State = tuple[str, str, tuple[int, ...]]
"""An agent, a node of a tree (`""` without forks) and the prompt read there."""

PAIRS = Spec(SamplingPlan(rows=True, pairs=True), unit="pair", reads_old=False)
"""Requirements of an algorithm whose pairs are data set rows."""


@dataclass(slots=True)
class PreferencePair:
    """Two answers of one policy to one prompt, each of one or several turns; `weight` is of the
    loss."""

    chosen: list[Turn]
    rejected: list[Turn]
    weight: float = 1.0

    @property
    def policy(self) -> str:
        return self.chosen[0].policy

    def mark(self) -> None:
        """Sets advantages of +1 on the chosen turns and -1 on the rejected ones."""
        for name, turns, sign in (("chosen", self.chosen, 1.0), ("rejected", self.rejected, -1.0)):
            for turn in turns:
                turn.advantages = sign
                because(turn, "{} of a pair {:+}", name, sign)


def credit_pairs(
    groups: Sequence[Group], pairs_of: Callable[[Group], tuple[int, list[PreferencePair]]]
) -> tuple[list[PreferencePair], dict[str, float]]:
    """Marks the preference pairs of groups; returns them, and the share of dropped ones as metrics.

    Args:
        pairs_of: the number of possible pairs of a group, and its usable pairs.
    """
    clear(groups)
    group_pairs = [pairs_of(group) for group in groups]
    pairs = [pair for _, usable in group_pairs for pair in usable]
    for pair in pairs:
        pair.mark()
    counts = [sum(count for count, _ in group_pairs), len(pairs)]
    ((possible, remaining),) = ops.global_sum({"pairs": counts}).values()
    return pairs, {"frac_dropped_pairs": 1.0 - remaining / possible if possible else 0.0}


def margins(good: Tensor, bad: Tensor) -> dict[str, Tensor]:
    """Metrics of pairs, from the scores of both sides (pairs,)."""
    return {
        "rewards/chosen": good,
        "rewards/rejected": bad,
        "rewards/margins": good - bad,
        "rewards/accuracies": ((good - bad).sign() + 1) / 2,  # ties are 1/2
    }


def pair_parts(losses: Tensor, pair: Tensor) -> Tensor:
    """The losses of pairs (pairs,) spread over their tokens (N,), detached; `pair` (N,) is the pair
    of a token."""
    losses = losses.detach()
    counts = ops.segment_sum(torch.ones_like(losses)[pair], pair, len(losses))
    return (losses / counts)[pair]


@dataclass(slots=True)
class ScoredAnswer:
    """An answer to a state, and the return from there on in each episode through it."""

    turn: Turn
    returns: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Mean of the returns."""
        return sum(self.returns) / len(self.returns)


def pair_samples(pairs: Sequence[PreferencePair], policy: str) -> list[Sample]:
    """The pairs of a policy as samples: a unit per pair, advantages of plus or minus its weight."""
    samples: list[Sample] = []
    for unit, pair in enumerate(pairs):
        if pair.policy != policy:
            continue
        for turns, sign in ((pair.chosen, 1.0), (pair.rejected, -1.0)):
            copies = [replace(turn, advantages=sign * pair.weight) for turn in turns]
            samples += merge(copies, unit, rollout=2 * unit + (sign < 0))
    return samples


def row_pairs(group: Group) -> list[PreferencePair]:
    """The pair of a group of two answers, one per agent: the better reward is chosen, with equal
    rewards the first. Identical or missing sides, or sides with different prompts, form no pair."""
    pairs = []
    for rollouts in members(group).values():
        ranked = sorted(rollouts, key=lambda member: -member[0].reward)
        (best, chosen), (worst, rejected) = ranked[0], ranked[-1]
        several = len(rollouts) == 2 or (len(rollouts) > 2 and best.reward != worst.reward)
        if several and comparable(chosen, rejected):
            pairs.append(PreferencePair(trained_turns(chosen), trained_turns(rejected)))
    return pairs


def comparable(chosen: Rollout, rejected: Rollout) -> bool:
    """Whether two rollouts are different answers to the same prompt."""
    a, b = trained_turns(chosen), trained_turns(rejected)
    completions = [[turn.completion_ids for turn in turns] for turns in (a, b)]
    return a[0].prompt_ids == b[0].prompt_ids and completions[0] != completions[1]


def answers_by_state(group: Group, rewards: Rewards) -> dict[State, list[ScoredAnswer]]:
    """The answers to each state of a group of siblings, in episode order, with their returns: of
    the answering agent alone, or the team's. Failed episodes and rewards that are not finite are
    skipped. Answers to different prompts are never grouped, so later turns of siblings that were
    not forked are usually alone."""
    answers: dict[State, list[ScoredAnswer]] = {}
    for agent, rollouts in members(group).items():
        for episode, rollout in rollouts:
            for turn in trained_turns(rollout):
                leaves = _through(group, episode, turn)
                returns = [_followed(leaf, agent, turn.step, rewards) for leaf in leaves]
                answer = ScoredAnswer(turn, [value for value in returns if math.isfinite(value)])
                if answer.returns:
                    state = (agent, turn.node, tuple(turn.prompt_ids))
                    answers.setdefault(state, []).append(answer)
    return answers


def _through(group: Group, episode: Episode, turn: Turn) -> list[Episode]:
    """The episodes that contain a turn of `episode`: that one, and those forked from it later."""
    depth = turn.depth + 1
    if len(episode.path) <= depth:
        return [episode]
    taken = episode.path[:depth]
    return [other for other in group.valid if other.path[:depth] == taken]


def _followed(episode: Episode, agent: str, step: int, rewards: Rewards) -> float:
    """The return from a joint step on."""
    if rewards == "team":
        return sum(episode.step_rewards[step:]) if episode.step_rewards else episode.reward
    rollout = episode.rollouts.get(agent)
    return sum(turn.reward for turn in rollout.turns if turn.step >= step) if rollout else 0.0


def scored(turns: Sequence[Turn]) -> Turn:
    """A conversation as a turn that is read to its last token, where a head scores it."""
    last = turns[-1]
    read = [*last.prompt_ids, *last.completion_ids]
    return Turn(last.agent, last.policy, read, last.completion_ids[-1:])
