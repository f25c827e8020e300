"""The base of engines for policies that are trained here."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mrlm.learn.policy.policy import Policy


class PolicyEngine:
    """An engine of policies with learners in this run, which may share a base model and a
    tokenizer."""

    rounding: ClassVar[tuple[float, float]] = (1e-3, 1.0)
    """Tolerances of log-probs against the trainer's, in 32 and in 16 bits, for another order of
    computation: the logits of a pretrained model are large, and bfloat16 moves the log-prob of a
    token by .15 nats on average and seldom by .6. Set `engine.tolerance` for a server that computes
    in another precision."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self.policies: dict[str, Policy] = dict(policies)
        first = next(iter(self.policies.values()))
        self.tokenizer: Any = first.tokenizer
        self.max_context: int = min(policy.max_context for policy in self.policies.values())
        self.versions: dict[str, int] = dict.fromkeys(self.policies, 0)

    async def load_weights(self, policy: str, weights: Policy, version: int) -> None:
        """Record the version; the weights are the learner's own."""
        self.policies[policy] = weights
        self.versions[policy] = version

    def tolerance(self, policy: str) -> float | None:
        return self.rounding[self.policies[policy].coarse]
