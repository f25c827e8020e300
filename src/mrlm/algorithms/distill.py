"""Distillation: a policy samples, and a teacher scores the same tokens.

- **Kind** one agent, or independent agents
- **Paper** on-policy distillation: GKD, arXiv 2306.13649, section 3; MiniLLM, 2306.08543.
- **Formula** at each sampled token, over the vocabulary: `KL(p || q)` (reverse), `KL(q || p)`
  (forward), or `JSD_b = b KL(q || m) + (1 - b) KL(p || m)` with `m = b q + (1 - b) p`, of policy p
  and teacher q, averaged over all tokens; `sampled`: `r (sg(log p - log q))`, with the ratio r.
- **Differs** from GKD: tasks are shared out evenly instead of at random (`lmbda`), and the student
  is sampled at its own temperature, which divides the teacher's logits too.
- **Knobs** plan: single episodes, or siblings with `reward_weight`; loss: divergence from a
  reference that is loaded; token mean.
- **Curves** [Distillation](distillation.md#what-it-costs)
- **Use it** to put a trained model, or a trained agent of a team, into a smaller or a fresh one.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mrlm.config.policy_sections import EndpointConfig, PriceConfig
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.matters import Matters
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.groups import assign, clear, members
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs
from mrlm.learn.data.privileged import Privilege
from mrlm.learn.fast.lm_head import compare


@settings
class Distill(Algorithm):
    """Lower the divergence of a policy from a teacher at the tokens that the policy samples (GKD,
    arXiv 2306.13649).

    The exact divergences are over the whole vocabulary, computed for a chunk of tokens at a time.
    Their gradient is that of each token given the tokens before it, as in GKD; the effect of a
    token on later ones is left out. `sampled` estimates the gradient of `reverse` from the sampled
    tokens alone, without bias. Tokens of environments, tools and other agents are never scored.

    Args:
        teacher_model: the model that scores, for all policies or policy -> model: a hub id, the
            folder of a model, of a run or of an adapter, or `stage:NAME` or `stage:NAME/POLICY` of
            an earlier stage. An adapter of the base that the policy's own adapter is on is loaded
            beside it, without a second model. `None`: the policy as it was at the start, which only
            keeps it there, unless it reads more.
        teacher_endpoint: a server that scores instead, with the keys of `policies.<name>.endpoint`:
            one that returns `prompt_logprobs` of token ids (vLLM, `mrlm serve`).
        privileged: what the teacher reads and the policy does not: the `answer` of the task, the
            messages of `partners` up to its turn, or the `feedback`: what the environment showed
            later, and the reward.
        divergence: `reverse`, `KL(policy || teacher)`, seeks a mode; `forward` covers all of them;
            `jsd` is between both; `sampled` is `reverse`, estimated from the sampled tokens;
            `top_k` is `forward` over the likeliest tokens of an endpoint, and all others as one.
        top_k: `divergence: top_k` only: number of these tokens.
        lmbda: share of the tasks that the policy plays; `sampler` plays the others in its place,
            and the policy is compared with the teacher at its tokens (lambda of GKD).
        sampler: `expert`, the environment's own, or `teacher`.
        beta: `jsd` only: weight of the teacher in the mixture; near 0 it is as `forward`, near 1 as
            `reverse`, each times `beta (1 - beta)`.
        reward_weight: weight of the policy gradient of the environment's rewards (each less the
            mean of its siblings'), in the same step; 0 leaves rewards out.
        aggregation: how per-token losses become one number (`ops.aggregate`).
    """

    teacher_model: str | dict[str, str] | None = None
    teacher_endpoint: EndpointConfig | None = None
    privileged: list[Privilege] = Field(default_factory=list)
    divergence: Literal["reverse", "forward", "jsd", "sampled", "top_k"] = "reverse"
    top_k: int = Field(default=20, ge=1)
    lmbda: float = Field(default=1.0, ge=0, le=1)
    sampler: Literal["expert", "teacher"] = "expert"
    beta: float = Field(default=0.5, gt=0, lt=1)
    reward_weight: float = Field(default=0.0, ge=0)
    aggregation: ops.Aggregation = "token_mean"

    face: ClassVar[str] = "Distillation"
    default_learning_rate: ClassVar[float] = 1e-5

    matters: ClassVar[Mapping[str, Matters]] = {
        "beta": Matters(
            lambda s, run: s.divergence == "jsd", "only divergence=jsd has a mixture; remove it"
        ),
        "top_k": Matters(
            lambda s, run: s.divergence == "top_k", "only divergence=top_k reads it; remove it"
        ),
        "sampler": Matters(
            lambda s, run: s.lmbda < 1, "lmbda=1 plays all tasks with the policy; remove it"
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_weight and self.group_size < 2:
            raise ConfigError(
                f"reward_weight={self.reward_weight:g} compares the rewards of siblings, and "
                "group_size is 1; set group_size to 2 or more (8 is usual), or remove reward_weight"
            )
        if len({*self.privileged}) < len(self.privileged):
            raise ConfigError(f"privileged={self.privileged} names one twice; remove it")
        named = self.teacher_model
        if named == {} or "" in (named.values() if isinstance(named, dict) else [named]):
            raise ConfigError(f"teacher_model={named!r} names no model; name one, or remove it")
        far = self.teacher_endpoint
        if far and (far.price != PriceConfig() or far.token_limit != "max_tokens"):
            text = "a price or token_limit, which the scores of a teacher do not have; remove them"
            raise ConfigError(f"teacher_endpoint has {text}")
        if self.teacher_endpoint is not None and self.teacher_model is not None:
            raise ConfigError("set either teacher_model or teacher_endpoint; remove one of them")
        if self.teacher_endpoint is not None and self.divergence not in ("sampled", "top_k"):
            raise ConfigError(
                f"divergence={self.divergence!r} needs the teacher's logits, and an endpoint gives "
                "none; set divergence to sampled or top_k, or teacher_model"
            )
        if self.teacher_endpoint is None and self.divergence == "top_k":
            raise ConfigError(
                "divergence='top_k' is for a teacher_endpoint, and a teacher with weights here has "
                "all tokens; set divergence=forward"
            )
        if self.lmbda < 1 and (self.reward_weight or self.divergence == "sampled"):
            raise ConfigError(
                f"lmbda={self.lmbda:g}: reward_weight and divergence=sampled have a gradient at "
                "the policy's own tokens only; remove them, or set lmbda=1"
            )
        if self.lmbda < 1 and self.sampler == "teacher" and self.teacher_model is None:
            raise ConfigError(
                "sampler='teacher' samples from teacher_model, which is not set; set it, or "
                "sampler=expert"
            )

    @property
    def spec(self) -> Spec:
        sampled = self.divergence == "sampled"
        others = None if self.lmbda == 1 else (self.sampler, 1 - self.lmbda)
        return Spec(
            SamplingPlan(siblings=self.reward_weight > 0, others=others),
            columns=frozenset({"ref_logprobs"} if sampled else ()),
            compares=not sampled,
            distils=True,
            reveals=tuple(self.privileged),
            reference=self.teacher_model,
            endpoint=self.teacher_endpoint,
            top_k=self.top_k if self.divergence == "top_k" else 0,
        )

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        if "partners" in self.privileged and num_agents < 2:
            raise ConfigError(
                "distill.privileged: the one agent has no partners; remove it, or add agents"
            )
        none = self.teacher_model is None and self.teacher_endpoint is None
        if none and not (self.reward_weight or self.privileged):
            log.warning(
                "distill has no teacher: distill.teacher_model is not set, so that each policy is "
                "compared with itself at the start and learns nothing"
            )
        named = {*policy_of.values()}
        if isinstance(self.teacher_model, dict) and named != {*self.teacher_model}:
            raise ConfigError(
                f"distill.teacher_model names teachers of {', '.join(self.teacher_model)}, and the "
                f"trained policies are {', '.join(sorted(named))}; give each of them one"
            )

    def credit(self, groups: Sequence[Group]) -> None:
        clear(groups)
        super().credit(groups)

    def credit_group(self, group: Group) -> None:
        for rollouts in members(group).values():
            rewards = np.array([rollout.reward for _, rollout in rollouts])
            advantages = self.reward_weight * (rewards - rewards.mean())
            if not self.reward_weight:  # every turn is trained on, and none by its reward
                advantages = np.ones_like(rewards)
            for (_, rollout), advantage in zip(rollouts, advantages, strict=True):
                assign(rollout, float(advantage))

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        difference = ops.log_ratio(outputs.logprobs, batch.old_logprobs)
        advantages = batch.advantages if self.reward_weight else 0.0
        if self.divergence == "sampled":
            gap = (outputs.logprobs - batch.ref_logprobs).detach()
            per_token = difference.exp() * (gap - advantages)
        else:
            assert outputs.distributions is not None and batch.reference is not None
            distance = compare(outputs.distributions, batch.reference, self._measure)
            gap, per_token = distance.detach(), distance
            if self.reward_weight:
                per_token = per_token - difference.exp() * advantages
        parts = per_token * ops.token_weights(per_token, batch, self.aggregation)
        tokens = {
            "divergence": gap,
            "entropy": outputs.entropy.detach(),
            "approx_kl": ops.approx_kl(difference.detach()),
        }
        total = parts.sum()
        metrics = {name: x.sum() / batch.totals.tokens for name, x in tokens.items()}
        by_token = {PART: parts.detach(), **tokens}
        return Loss(total, {"policy_loss": total.detach(), **metrics}, by_token)

    def _measure(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The divergence (M,) of a policy and a teacher with log-probs (M, V), and the weights of
        its gradient (`Measure`): all of them exactly 0 where policy and teacher are equal."""
        if self.divergence == "top_k":
            return _of_the_likeliest(p, q)
        gap, beta = p - q, self.beta
        if self.divergence == "reverse":
            weights = p.exp() * gap
            return weights.sum(-1), weights
        if self.divergence == "forward":
            return (q.exp() * -gap).sum(-1), p.exp() - q.exp()
        # log p - log m, in the form that does not overflow
        below = torch.log1p(beta * torch.expm1(-gap.clamp(min=0)))
        above = torch.log(beta + (1 - beta) * torch.exp(gap.clamp(max=0))) - gap
        from_p = -torch.where(gap < 0, above, below)
        own = (1 - beta) * p.exp() * from_p
        return (own + beta * q.exp() * (from_p - gap)).sum(-1), own


def _of_the_likeliest(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """`KL(q || p)` (M,) where all tokens that q does not know (`-inf`) are one outcome, and the
    weights of its gradient."""
    known, mass = q > -torch.inf, q.exp()
    left = (1 - mass.sum(-1)).clamp(min=0)
    outside = p.exp().masked_fill(known, 0).sum(-1)
    inside = torch.where(known, mass * (q - p), 0.0).sum(-1)
    tiny = torch.finfo(p.dtype).tiny
    tail = torch.xlogy(left, left / outside.clamp(min=tiny))
    ratio = (left / outside.clamp(min=tiny))[:, None]
    return inside + tail, p.exp() - torch.where(known, mass, p.exp() * ratio)


PLUGIN = Distill
