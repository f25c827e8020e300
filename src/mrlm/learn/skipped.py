"""Numbers of agents whose advantages are all 0: an update skips their samples."""

from __future__ import annotations

from collections.abc import Sequence

from mrlm.learn.agent_numbers import AgentNumbers, agent_means, policy_peaks
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Sample, Totals, pack
from mrlm.learn.data.samples import effective
from mrlm.learn.mismatch import FEW, FirstLook
from mrlm.learn.policy.policy import Policy


def read_skipped(
    policy: Policy, samples: Sequence[Sample], algorithm: Algorithm, look: FirstLook, main: bool
) -> dict[str, float]:
    """The metrics of agents without a gradient, from a pass over a few of their samples before the
    update. Every rank reads the same ones; empty if each agent has a gradient.

    Args:
        policy: the policy.
        samples: all samples of the update.
        algorithm: its loss gives the numbers.
        look: gets their log-probs on the main rank, unless it is done.
        main: whether this is the main rank.
    """
    with_gradient = effective(samples, algorithm.spec.ignores_zero)
    if len(with_gradient) == len(samples):
        return {}
    read = Totals.of(with_gradient).tokens_by_agent
    few: dict[str, list[Sample]] = {}
    for sample in samples:
        agent = sample.turns[0].agent
        if agent not in read and len(few.setdefault(agent, [])) < FEW:
            few[agent].append(sample)
    chosen = [sample for agent_samples in few.values() for sample in agent_samples]
    if not chosen:
        return {}
    numbers = AgentNumbers()
    with policy.scoring():
        batch = pack(chosen, None, policy.pad_id, policy.device)
        outputs = policy.forward(batch)
        loss = algorithm.loss(batch, outputs)
        numbers.add(batch, loss)
    if main and not look.done:
        look.add(batch, outputs.logprobs)
    table = numbers.table()
    metrics = {name: float(value) for name, value in loss.metrics.items()}
    return metrics | policy_peaks(table) | agent_means(table, 1)
