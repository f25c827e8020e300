"""Seconds of a step, part by part, on one of several devices: each as long as its bottleneck."""

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
        apart: tokens of a prompt that differ between siblings: an agent reads what others wrote.
    """

    prompt: int
    mean: int
    longest: int
    latency: float = 0.0
    engine: str = "lean"
    again: int = 0
    apart: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The work of one device.

    Args:
        device: its type.
        tasks: tasks of an iteration that it plays, or trains on.
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
    passes = []
    for group in bases(plan.weights):
        shape = group[0].shape
        num_agents = sum(policy.num_agents for policy in group)
        prompt_tokens = lengths.prompt + (plan.turns - 1) * lengths.again * plan.samples
        tokens = share.tasks * num_agents * prompt_tokens
        if shape is not None and tokens:
            passes.append(_forward(share, shape, tokens, lengths.prompt, heads=0))
    return added(passes)


def decode(share: Share, room: float) -> Took:
    """Decoding of completions, with as many rows at once as the engine and `room` allow, the bytes
    for keys and values."""
    plan, lengths, device = share.plan, share.lengths, share.device
    job, phases = plan.job, []
    for group in bases(plan.weights):
        shape = group[0].shape
        num_agents = sum(policy.num_agents for policy in group)
        if shape is None or not num_agents or plan.rows:
            continue
        completions = plan.model_calls * num_agents / plan.agents * share.part
        if not completions:
            continue
        rounds = max(plan.turns, 1)
        one_row = max(1, plan.tokens * key_bytes(shape, job.computed))
        held = max(1.0, min(max(1, job.rows), completions / rounds, room // one_row))
        steps = max(rounds * lengths.longest, completions * lengths.mean / held)
        rows = completions * lengths.mean / steps
        adapters = sum(policy.adapter for policy in group) * ADAPTER_BYTES
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
        phases.append(Took(steps * took.seconds, took.bound, steps * operations))
    return added(phases)


def environments(share: Share) -> Took:
    """Rendering, stepping and records; and waiting for a slow environment."""
    plan, lengths = share.plan, share.lengths
    if plan.rows:
        return Took()
    overhead = plan.model_calls * share.part * rates.COMPLETION
    waited = plan.turns * lengths.latency
    return Took(overhead + waited, "latency" if waited > overhead else "overhead")


# -- training --------------------------------------------------------------------------------------


def learned_tokens(share: Share, weights: WeightSizes) -> tuple[float, float]:
    """Tokens of a policy that go through its model in an epoch, and the trained part of them;
    siblings share their prompt in the library's own forward pass, up to what others wrote."""
    plan, lengths = share.plan, share.lengths
    num_agents = weights.num_agents / max(1, plan.trained_agents)
    sequences = plan.sequences * share.part * min(1.0, num_agents)
    completion_tokens = lengths.mean * (1 if plan.parts is not None else plan.turns)
    openings = sequences
    if plan.job.lean and not plan.rows:
        openings = min(sequences, share.tasks * weights.num_agents)
    between = sequences * (plan.turns - 1) * lengths.again + (sequences - openings) * lengths.apart
    trained = sequences * completion_tokens
    return openings * lengths.prompt + trained + between, trained


def annotate(share: Share, needs: frozenset[str], reads_old: bool) -> Took:
    """Forward passes before credit: references, values, the policy's own log-probs."""
    forwards = []
    for policy in share.plan.weights:
        if not policy.trainable or policy.shape is None:
            continue
        tokens, completion_tokens = learned_tokens(share, policy)
        passes = int(bool(needs & {"ref_logprobs", "full_kl"})) + int(policy.critic > 0)
        passes += int(bool(needs & {"old_logprobs", "entropies"}) and reads_old)
        if "values" in needs and not policy.critic:
            passes += int(not needs & {"old_logprobs", "entropies"})
        one = _forward(share, policy.shape, tokens, share.plan.tokens, heads=completion_tokens)
        forwards += [one] * passes
    return added(forwards)


def forward_backward(share: Share) -> Took:
    """Training, critics included, over all epochs."""
    plan = share.plan
    costs = []
    for policy in plan.weights:
        if not policy.trainable or policy.shape is None:
            continue
        tokens, completion_tokens = learned_tokens(share, policy)
        one = _both_ways(share, policy.shape, tokens, completion_tokens, policy.lora is None)
        costs += [one] * plan.epochs
        if policy.critic and policy.critic_learns:
            whole = policy.lora is None or policy.critic != policy.trained
            one = _both_ways(share, policy.shape, tokens, 0, whole)
            costs += [one] * plan.epochs
    return added(costs)


def optimizer(share: Share, shards: int) -> Took:
    """Reading and writing weights, gradients and moments, and the norm of the gradient."""
    plan, moved = share.plan, 0.0
    for policy in plan.weights:
        bytes_each = ADAPTER_BYTES if policy.lora is not None else plan.job.width
        learned = policy.trained + (policy.critic if policy.critic_learns else 0)
        moved += learned * bytes_each * (4 + 2 * plan.job.moments) / shards
    speed = share.device.bandwidth * rates.UPDATE_SHARE
    hosts = sum(on_host(policy, plan.job) for policy in plan.weights)
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


def _both_ways(
    share: Share, shape: ModelShape, tokens: float, completion_tokens: float, whole: bool
) -> Took:
    """Forward and backward; `whole`: all weights get gradients, not only adapters."""
    device, job = share.device, share.plan.job
    times = 3 if whole else 2
    products = 2 * times * (shape.body * tokens + shape.vocab * shape.hidden * completion_tokens)
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
    for policy in weights:
        groups.setdefault(policy.base, []).append(policy)
    return list(groups.values())
