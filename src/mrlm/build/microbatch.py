"""The tokens of a micro-batch, where `training.max_tokens_per_microbatch` is `auto`."""

from collections.abc import Iterator, Mapping
from typing import Any

from mrlm.build.policies import PlayPlan
from mrlm.core.log import log
from mrlm.learn.policy.loading import free_memory
from mrlm.learn.policy.policy import Policy
from mrlm.planning.memory import MOST_TOKENS, tokens_in
from mrlm.planning.model_shape import shape_in


def microbatch_tokens(
    plan: PlayPlan, policies: Mapping[str, Any], state: Mapping[str, Any] | None
) -> int:
    """Tokens of a micro-batch: as set; else those of the checkpoint that is continued (`state`), so
    that its sums have the same order; else what fits into half of the free memory, of the loaded
    `policies`; proxies of workers are not measured."""
    training = plan.config.training
    if training.max_tokens_per_microbatch != "auto":
        return training.max_tokens_per_microbatch
    rows = [row for kind in ("learners", "critics") for row in (state or {}).get(kind, {}).values()]
    if before := [row["max_tokens"] for row in rows if "max_tokens" in row]:
        return min(before)
    trained = [name for name, policy in plan.assignment.policies.items() if policy.trainable]
    here = [policies[name] for name in trained if isinstance(policies[name], Policy)]
    most = min(_fitting(here, training.gradient_checkpointing), default=MOST_TOKENS)
    most = min(plan.peers.from_all(most))
    if most < MOST_TOKENS:
        log.info(
            "micro-batches have at most %d tokens, whose activations fit into half of the free "
            "memory (training.max_tokens_per_microbatch sets another number)",
            most,
        )
    return most


def _fitting(policies: list[Policy], checkpointing: bool) -> Iterator[int]:
    """For each policy whose shape is known, the tokens that fit."""
    for policy in policies:
        shape = shape_in(policy.model.config.to_dict())
        if shape is None:
            continue
        free = free_memory(policy.device)
        computed = policy.model.dtype.itemsize if policy.precision == "fp32" else 2
        yield tokens_in(free // 2, shape, computed, checkpointing, policy.packed)
