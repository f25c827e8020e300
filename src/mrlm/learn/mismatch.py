"""Mismatch between the sampler's and the trainer's log-probs at the weights that sampled.

The measure is `KL(sampler || trainer)`, estimated on sampled tokens: the mean of `r - 1 - log r`
with `r` the ratio of the trainer's to the sampler's token probability (k3 of
http://joschu.net/blog/kl-approx.html). It is 0 if both agree, and never negative.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Outputs, as_column
from mrlm.learn.fast.double import double
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.meter import Key, Mean, Meter, Number
from mrlm.learn.policy.digest import digest
from mrlm.learn.policy.policy import Policy, random_forward

MISMATCH = "mismatch_kl"
MOST = 1e9
"""Value of a token with a log-prob that is not finite on one side."""

Tally = dict[tuple[str, str], Mean]
"""(policy, agent) -> the mean over its tokens."""


def comparable(turn: Turn, version: int) -> bool:
    """Whether the log-probs of a turn are those of the full distribution at a weight version:
    sampled by an engine, neither truncated nor greedy, with no older weights."""
    sampling = turn.sampling
    has_logprobs = turn.logprobs is not None and len(turn) > 0
    return has_logprobs and not (sampling.truncates or sampling.greedy) and turn.version == version


class FirstLook:
    """The mismatch per agent in the first pass of an update, with the weights of `version`."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.done = False
        """Whether it has seen all it needs."""
        self._means: dict[str, Mean] = {}

    @torch.no_grad()
    def add(self, batch: Batch, logprobs: Tensor) -> None:
        """Adds a batch with the trainer's log-probs (N,); `tally` has turns with `old_logprobs`."""
        turns = [t.old_logprobs is None and comparable(t, self.version) for t in batch.turns]
        if not any(turns):
            return
        counted = np.array(turns)[batch.host["turn"]]
        divergences = divergence(batch.behaviour_logprobs, logprobs)
        for number, agent in enumerate(batch.agents):
            indices = np.flatnonzero(counted & (batch.host["agent"] == number))
            total = divergences[to_device(indices, divergences.device)].sum()
            mean = self._means.get(agent, Mean())
            self._means[agent] = mean + Mean(total, float(len(indices)))

    def table(self) -> Meter:
        """The numbers of this rank."""
        means = self._means.items()
        return Meter({(MISMATCH, agent): Mean(float(x.total), x.weight) for agent, x in means})


def divergence(sampler: Tensor, trainer: Tensor) -> Tensor:
    """`r - 1 - log r` (N,) in float64, from the log-probs (N,) of both."""
    gap = double(trainer.detach()) - double(sampler)
    return torch.nan_to_num(torch.expm1(gap) - gap, nan=MOST).clamp(max=MOST)


def _divergence_of(turn: Turn) -> Tensor:
    one, two = (as_column(column, len(turn)) for column in (turn.logprobs, turn.old_logprobs))
    return divergence(torch.as_tensor(one), torch.as_tensor(two))


def tally(turns: Iterable[Turn], versions: Mapping[str, int]) -> Tally:
    """Mismatch from the `old_logprobs` columns, which were computed before the update. `versions`
    has those of the weights by policy; turns of other policies are skipped."""
    sums: Tally = {}
    for turn in turns:
        known = turn.old_logprobs is not None and turn.policy in versions and turn.trained
        if known and comparable(turn, versions[turn.policy]):
            value = float(_divergence_of(turn).sum())
            key = (turn.policy, turn.role)
            sums[key] = sums.get(key, Mean()) + Mean(value, len(turn))
    return sums


def first_passes(updates: Mapping[str, Mapping[Key, Number]]) -> Tally:
    """Mismatch from the first passes of updates: policy -> its numbers."""
    return {
        (policy, agent): number
        for policy, numbers in updates.items()
        for (name, agent), number in numbers.items()
        if name == MISMATCH and isinstance(number, Mean)
    }


def mismatch_metrics(tallies: Sequence[Tally], policies: Sequence[str]) -> dict[str, float]:
    """`mismatch_kl` over all tokens; `mismatch_kl/<policy>` with several trained policies, and
    `mismatch_kl/<agent>` with several agents, except for agents with a policy's name."""
    sums: dict[str, Mean] = {}
    agents = {agent for tally in tallies for _, agent in tally}
    for tally in tallies:
        for (policy, agent), mean in tally.items():
            names = [""] + [policy] * (len(policies) > 1)
            names += [agent] * (len(agents) > 1 and agent not in policies)
            for name in names:
                sums[name] = sums.get(name, Mean()) + mean
    numbers = {name: float(mean.value) for name, mean in sums.items() if mean.weight}
    return {f"{MISMATCH}/{name}".rstrip("/"): value for name, value in numbers.items()}


def lag_kl(turns: Iterable[Turn]) -> dict[str, float]:
    """`lag/kl`: divergence of policies from the older weights that sampled, if known."""
    aged = (x for x in turns if x.lag > 0 and x.trained and x.old_logprobs is not None)
    gaps = [_divergence_of(turn).numpy() for turn in aged if comparable(turn, turn.version)]
    return {"lag/kl": float(np.concatenate(gaps).mean())} if gaps else {}


def content_version(policy: Policy) -> int:
    """A version of a policy's weights from their bits, for custom loops without an update counter.
    Heads are excluded: engines do not sample with them."""
    named = policy.named_parameters().items()
    return digest(value for name, value in named if not name.startswith("value_head."))


def loss_mismatch(policy: Policy, batch: Batch, outputs: Outputs) -> dict[str, float]:
    """`mismatch_kl` of a loss in a custom loop from existing log-probs: those kept at the first
    loss, else its own. Empty if no turn is comparable, or dropout changes the loss."""
    if not any(turn.logprobs is not None for turn in batch.turns):
        return {}
    version = content_version(policy)
    tallies = [tally(batch.turns, {policy.name: version})]
    if not (policy.model.training and random_forward(policy, dropout=True)):
        look = FirstLook(version)
        look.add(batch, outputs.logprobs)
        tallies.append(first_passes({policy.name: look.table()}))
    metrics = mismatch_metrics(tallies, [policy.name])
    return {name: value for name, value in metrics.items() if name == MISMATCH}
