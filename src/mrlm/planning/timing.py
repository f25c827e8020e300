"""Seconds of a step, part by part, on one of several devices: each part takes as long as its
bottleneck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mrlm.planning import rates
from mrlm.planning.devices import Device
from mrlm.planning.memory import ADAPTER_BYTES, key_bytes, on_host
from mrlm.planning.model_shape import ModelShape
from mrlm.planning.plan import Plan
from mrlm.planning.policy_weights import WeightSizes
from mrlm.planning.rates import Took, added, attention_peak, reached, roofline


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths and delays that a config does not contain.

    Args:
        prompt: tokens of a prompt.
        mean: mean tokens of a completion.
        longest: tokens of the longest completion.
        latency: seconds the environment takes for a joint step.
        engine: `lean`, in the same process, or `vllm`, a server.
        again: observation tokens between two turns of an agent.
    """

    prompt: int
    mean: int
    longest: int
    latency: float = 0.0
    engine: str = "lean"
    again: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The work of one device.

    Args:
        device: its type.
        tasks: tasks of an iteration that it plays, or trains on.
        plan: the whole plan.
        lengths: lengths of prompts and completions.
    """

    device: Device
    tasks: float
    plan: Plan
    lengths: Lengths

    @property
    def part(self) -> float:
        """Its share of all tasks."""
        return self.tasks / max(1, self.plan.tasks)


# -- sampling --------------------------------------------------------------------------------------


def prefill(share: Share) -> Took:
    """Prefill of prompts, each once for all of its continuations."""
    plan, lengths = share.plan, share.lengths
    found = []
    for group in bases(plan.weights):
        shape = group[0].shape
        num_agents = sum(each.num_agents for each in group)
        shown = lengths.prompt + (plan.turns - 1) * lengths.again * plan.samples
        tokens = share.tasks * num_agents * shown
        if shape is not None and tokens:
            found.append(_forward(share, shape, tokens, lengths.prompt, heads=0))
    return added(found)


def decode(share: Share, room: float) -> Took:
    """Decoding of completions, with as many rows at once as the engine and `room` allow, the bytes
    for keys and values."""
    plan, lengths, device = share.plan, share.lengths, share.device
    job, found = plan.job, []
    for group in bases(plan.weights):
        shape = group[0].shape
        num_agents = sum(each.num_agents for each in group)
        if shape is None or not num_agents or plan.rows:
            continue
        asked = plan.model_calls * num_agents / plan.agents * share.part
        if not asked:
            continue
        rounds = max(plan.turns, 1)
        one_row = max(1, plan.tokens * key_bytes(shape, job.computed))
        held = max(1.0, min(max(1, job.rows), asked / rounds, room // one_row))
        steps = max(rounds * lengths.longest, asked * lengths.mean / held)
        rows = asked * lengths.mean / steps
        adapters = sum(each.adapter for each in group) * ADAPTER_BYTES
        context = lengths.prompt + plan.turns * lengths.mean / 2
        whole = shape.body + shape.vocab * shape.hidden
        read = whole * job.computed + adapters + rows * context * key_bytes(shape, job.computed)
        operations = 2 * whole * rows
        begun = rates.OPS_OF_A_BLOCK * shape.layers * device.launch
        took = roofline(
            {
                "memory": read / (device.bandwidth * rates.READ_SHARE),
                "compute": operations / reached(device, job.computed, rates.DECODE_SHARE),
                "overhead": rates.DRAW[lengths.engine]
                + begun * (1.0 if device.shared else rates.GRAPH),
            }
        )
        found.append(Took(steps * took.seconds, took.bound, steps * operations))
    return added(found)


def environments(share: Share) -> Took:
    """Rendering, stepping and records; and waiting for a slow environment."""
    plan, lengths = share.plan, share.lengths
    if plan.rows:
        return Took()
    own = plan.model_calls * share.part * rates.COMPLETION
    waited = plan.turns * lengths.latency
    return Took(own + waited, "latency" if waited > own else "overhead")


# -- training --------------------------------------------------------------------------------------


def learned_tokens(share: Share, weights: WeightSizes) -> tuple[float, float]:
    """Tokens of a policy that go through its model in an epoch, and the trained part of them;
    siblings share their prompt in the library's own forward pass."""
    plan, lengths = share.plan, share.lengths
    num_agents = weights.num_agents / max(1, plan.trained_agents)
    sequences = plan.sequences * share.part * min(1.0, num_agents)
    said = lengths.mean * (1 if plan.parts is not None else plan.turns)
    openings = sequences
    if plan.job.lean and not plan.rows:
        openings = min(sequences, share.tasks * weights.num_agents)
    between = sequences * (plan.turns - 1) * lengths.again
    return openings * lengths.prompt + sequences * said + between, sequences * said


def annotate(share: Share, needs: frozenset[str], reads_old: bool) -> Took:
    """Forward passes before credit: references, values, the policy's own log-probs."""
    found = []
    for each in share.plan.weights:
        if not each.trainable or each.shape is None:
            continue
        tokens, said = learned_tokens(share, each)
        passes = int(bool(needs & {"ref_logprobs", "full_kl"})) + int(each.critic > 0)
        passes += int(bool(needs & {"old_logprobs", "entropies"}) and reads_old)
        if "values" in needs and not each.critic:
            passes += int(not needs & {"old_logprobs", "entropies"})
        one = _forward(share, each.shape, tokens, share.plan.tokens, heads=said)
        found += [one] * passes
    return added(found)


def forward_backward(share: Share) -> Took:
    """Training, critics included, over all epochs."""
    plan = share.plan
    found = []
    for each in plan.weights:
        if not each.trainable or each.shape is None:
            continue
        tokens, said = learned_tokens(share, each)
        one = _both_ways(share, each.shape, tokens, said, each.lora is None)
        found += [one] * plan.epochs
        if each.critic and each.critic_learns:
            whole = each.lora is None or each.critic != each.trained
            one = _both_ways(share, each.shape, tokens, 0, whole)
            found += [one] * plan.epochs
    return added(found)


def optimizer(share: Share, shards: int) -> Took:
    """Reading and writing weights, gradients and moments, and the norm of the gradient."""
    plan = share.plan
    moved = 0.0
    for each in plan.weights:
        own = ADAPTER_BYTES if each.lora is not None else plan.job.width
        learned = each.trained + (each.critic if each.critic_learns else 0)
        moved += learned * own * (4 + 2 * plan.job.moments) / shards
    speed = share.device.bandwidth * rates.UPDATE_SHARE
    hosts = sum(on_host(each, plan.job) for each in plan.weights)
    if hosts:  # there and back
        seconds = moved / speed + 2 * hosts / rates.HOST_LINK
        return Took(plan.optimizer_steps * seconds, "link")
    return Took(plan.optimizer_steps * moved / speed, "memory" if moved else "nothing")


def _forward(share: Share, shape: ModelShape, tokens: float, length: int, heads: float) -> Took:
    """One pass without saved activations."""
    device, computed = share.device, share.plan.job.computed
    products = 2 * shape.body * tokens + 2 * shape.vocab * shape.hidden * heads
    looking = _looking(shape, tokens, length)
    rate = reached(device, computed, rates.FORWARD_SHARE, shape.hidden)
    seeing = attention_peak(device, computed) * rates.ATTENTION_SHARE
    passes = math.ceil(tokens / max(1, share.plan.job.tokens))
    return roofline(
        {
            "compute": products / rate + looking / seeing,
            "overhead": passes * rates.OPS_OF_A_BLOCK * shape.layers * device.launch,
        },
        products + looking,
    )


def _both_ways(share: Share, shape: ModelShape, tokens: float, said: float, whole: bool) -> Took:
    """Forward and backward; `whole`: all weights get gradients, not only adapters."""
    device, job = share.device, share.plan.job
    times = 3 if whole else 2
    products = 2 * times * (shape.body * tokens + shape.vocab * shape.hidden * said)
    looking = 3 * _looking(shape, tokens, share.plan.tokens)
    again = 2 * shape.body * tokens if job.checkpointing else 0.0
    once_more = looking / 3 if job.checkpointing else 0.0
    rate = reached(device, job.computed, rates.MATRIX_SHARE, shape.hidden)
    seeing = attention_peak(device, job.computed) * rates.ATTENTION_SHARE
    passes = math.ceil(tokens / max(1, job.tokens))
    begun = rates.OPS_OF_A_BLOCK * shape.layers * device.launch * (4 if job.checkpointing else 3)
    return roofline(
        {
            "compute": (products + again) / rate + (looking + once_more) / seeing,
            "overhead": passes * begun,
        },
        products + looking,
    )


def _looking(shape: ModelShape, tokens: float, length: int) -> float:
    """Operations of causal attention, forward."""
    return 4 * shape.query_width * shape.layers * tokens * length / 2


def bases(weights: Sequence[WeightSizes]) -> list[list[WeightSizes]]:
    """Policies grouped by the copy of the model they use."""
    groups: dict[str, list[WeightSizes]] = {}
    for each in weights:
        groups.setdefault(each.base, []).append(each)
    return list(groups.values())
