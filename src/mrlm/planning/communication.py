"""Communication between devices in a step: gradients, shards, new weights for engines."""

import math
from dataclasses import dataclass

from mrlm.planning import rates
from mrlm.planning.devices import Device
from mrlm.planning.rates import Took, added, roofline
from mrlm.planning.timing import Share, learned_tokens


@dataclass(frozen=True, slots=True)
class Ring:
    """Devices of one collective.

    Args:
        device: type of the devices.
        inside: devices of a node.
    """

    device: Device
    inside: int
    nodes: int

    @property
    def members(self) -> int:
        return self.inside * self.nodes

    def gather(self, count: float, times: int = 1) -> Took:
        """All-gather, or reduce-scatter, of so many bytes in total: all of them pass each node's
        network once, and each device's link."""
        link = (self.inside - 1) / self.inside * count / (self.device.link * rates.LINK_SHARE)
        network = (self.nodes - 1) / self.nodes * count / (self.device.network * rates.LINK_SHARE)
        waits = rates.COLLECTIVE * math.log2(self.members) if self.members > 1 else 0.0
        took = roofline({"link": link, "network": network})
        bound = took.bound if took.seconds else "nothing"
        return Took(times * (link + network + waits), bound)

    def reduce(self, count: float) -> Took:
        """All-reduce: a reduce-scatter and an all-gather."""
        return added([self.gather(count)] * 2)


def communication(share: Share, strategy: str, ring: Ring, computing: float) -> Took:
    """Communication of gradients, and of weights if they are sharded (`fsdp`, `fsdp-hybrid`),
    between the training devices: the part that devices wait for. `computing` is the seconds of
    `forward_backward`, which overlap with the transfer of weights."""
    plan, steps = share.plan, share.plan.optimizer_steps
    if ring.members == 1:
        return Took()
    inner = Ring(ring.device, ring.inside, 1 if strategy == "fsdp-hybrid" else ring.nodes)
    outer = Ring(ring.device, 1, ring.nodes)
    moving, reducing = [], []
    for policy in plan.weights:
        if not policy.trainable:
            continue
        # gradients in 16 bit are added up in float32
        count = 4.0 * (policy.trained + (policy.critic if policy.critic_learns else 0))
        if strategy == "ddp":
            reducing += [ring.reduce(count)] * steps
            continue
        tokens, _ = learned_tokens(share, policy)
        passes = plan.epochs * max(1, math.ceil(tokens / plan.job.tokens))
        layers = policy.shape.layers if policy.shape else 1
        block = policy.count * plan.job.computed / layers
        moving.append(inner.gather(block, 2 * passes * layers))
        reducing += [inner.gather(count)] * steps
        if strategy == "fsdp-hybrid" and ring.nodes > 1:
            reducing += [outer.reduce(count)] * steps
    moved = added(moving)
    left = max(moved.seconds * (1 - rates.OVERLAP), moved.seconds - rates.OVERLAP * computing)
    return added([Took(left, moved.bound), *reducing])


def hand_over(share: Share, strategy: str, ring: Ring, apart: bool) -> Took:
    """New weights for the engines: copied in the same process, gathered if they are sharded, sent
    to separate engines."""
    plan, device, transfers = share.plan, share.device, []
    for policy in plan.weights:
        if not policy.trainable or plan.rows:
            continue
        count = policy.trained
        sent = count * plan.job.computed
        if strategy != "ddp" and ring.members > 1:
            transfers.append(ring.gather(sent))
        if apart and share.lengths.engine == "vllm":
            transfers.append(Took(sent / rates.SERVER, "network"))
        elif apart:
            transfers.append(Took(sent / (device.network * rates.LINK_SHARE), "network"))
        else:
            moved = count * (plan.job.width + plan.job.computed)
            transfers.append(Took(moved / (device.bandwidth * rates.UPDATE_SHARE), "memory"))
    return added(transfers)
