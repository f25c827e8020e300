"""SFT: supervised fine-tuning on given messages, good episodes, or observations.

- **Kind** learning from data
- **Paper** Rejection sampling as in STaR, arXiv 2203.14465.
- **Formula** `-w l`, averaged over all trained tokens; `w` weights the agent's tokens and the
  environment's.
- **Differs** from STaR: a wrong answer is not retried with the solution as a hint, and the policy
  continues from its current weights instead of the base model; `preset: sft` is InstructGPT's
  supervised stage.
- **Knobs** plan: rows, or collected episodes (of the policy, or of the environment's expert);
  every `collect_every` iterations; baseline none (A = 1); loss: no ratio, token mean.
- **Use it** to train a format before rewards become informative, to clone good episodes
  (`filter_low_reward`), or to predict the environment's next observation (`mode: world_model`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ChatTemplateError
from mrlm.core.matters import PLAYED, Matters
from mrlm.core.types import SamplingParams, Turn
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.spec import Collection, SamplingPlan, Spec
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import members, trained_turns
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs
from mrlm.learn.data.observations import is_observation, with_observations


@settings
class SFT(Algorithm):
    """Cross-entropy `-w log pi` of given tokens, averaged over all; credit sets the weights `w`.

    `behavioral_cloning` trains on the agent's own messages, `world_model` on the text of the next
    observation given the history and the action, `combined` on both: each kind is averaged over its
    own tokens first. Tokens are scored at temperature 1, regardless of the sampling temperature. In
    environments, episodes are collected by the policy (or an expert) and cloned if they were good
    (rejection sampling, as in STaR, arXiv 2203.14465).

    Args:
        mode: text that is trained on.
        bc_weight, world_model_weight: weights of the two kinds in `combined`.
        filter_low_reward: keep only episodes whose reward is at least `min_reward_threshold`.
        min_reward_threshold: see there.
        collect_every: iterations between two collections; 0 collects once.
        teacher: who acts in collected episodes: the `policy` itself, or the environment's `expert`.
        aggregation: how per-token losses become one number (`ops.aggregate`).
    """

    mode: Literal["behavioral_cloning", "world_model", "combined"] = "behavioral_cloning"
    bc_weight: float = Field(default=1.0, ge=0)
    world_model_weight: float = Field(default=1.0, ge=0)
    filter_low_reward: bool = False
    min_reward_threshold: float = 0.0
    collect_every: int = Field(default=1, ge=0)
    teacher: Literal["policy", "expert"] = "policy"
    aggregation: ops.Aggregation = "token_mean"

    default_learning_rate: ClassVar[float] = 2e-5

    matters: ClassVar[Mapping[str, Matters]] = {
        **dict.fromkeys(
            ("bc_weight", "world_model_weight"),
            Matters(
                lambda s, run: s.mode == "combined",
                "only mode=combined weighs its two kinds; remove it, or set that",
            ),
        ),
        **dict.fromkeys(("filter_low_reward", "collect_every", "teacher"), PLAYED),
        "min_reward_threshold": Matters(
            lambda s, run: not run.rows and s.filter_low_reward,
            "it filters collected episodes, and filter_low_reward is off; set that, or remove this",
        ),
    }

    @property
    def spec(self) -> Spec:
        collection = Collection(
            demonstrate=self.teacher == "expert",
            every=self.collect_every,
            min_reward=self.min_reward_threshold if self.filter_low_reward else None,
        )
        plan, answers = SamplingPlan(collection=collection), self.mode != "world_model"
        return Spec(plan, reads_old=False, trains_answers=answers)

    def credit(self, groups: Sequence[Group]) -> None:
        """Write the weights on copies, which replace the episodes in the groups: an episode that is
        kept for later iterations is not changed."""
        self.metrics: dict[str, float] = {}
        words: dict[str, list[Turn]] = {}
        rewritten: defaultdict[str, bool] = defaultdict(bool)
        for group in groups:
            group.episodes = [self._copied(episode) for episode in group]
            for _, rollout in chain.from_iterable(members(group).values()):
                for turn in trained_turns(rollout):
                    kind = "world" if is_observation(turn) else "agent"
                    words.setdefault(f"{kind}:{turn.policy}", []).append(turn)
                    rewritten[f"rewritten:{turn.policy}"] |= rollout.rewritten
        lengths = {key: sum(map(len, turns)) for key, turns in words.items()}
        sums = ops.global_sum({key: [n] for key, n in {**lengths, **rewritten}.items()})
        counts = {key: count for key, (count,) in sums.items()}
        if self.mode != "behavioral_cloning":
            self._check_observed(counts)
        for key, turns in words.items():
            weight = self._weight(key, counts)
            for turn in turns:
                turn.advantages = weight
                if weight is not None:
                    because(turn, "weight {:+}", weight)

    def _check_observed(self, counts: Mapping[str, float]) -> None:
        """Stop if a chat template leaves a policy no observation to train on. Raises
        `ChatTemplateError`: no observation of its agents continues one of their turns."""
        for key, count in counts.items():
            kind, _, policy = key.partition(":")
            if kind == "rewritten" and count and not counts.get(f"world:{policy}"):
                raise ChatTemplateError(
                    f"sft.mode={self.mode} found no observation to train policy {policy!r} on: its "
                    "chat template rewrites earlier turns (for example, drops reasoning), so "
                    "that no observation of this iteration continues the tokens before it; set "
                    "tokenizer.chat_template to one that keeps earlier turns, or "
                    "sft.mode=behavioral_cloning"
                )

    def _copied(self, episode: Episode) -> Episode:
        """The episode with copied turns, to be scored at temperature 1, and with observation turns
        where they are trained on."""
        rollouts = {}
        for agent, rollout in episode.rollouts.items():
            turns = [turn for turn in rollout.turns if not is_observation(turn)]
            if self.mode != "behavioral_cloning":
                turns = with_observations(turns, rollout.tail_ids)
            bare = {"advantages": None, "returns": None}
            copies = [replace(turn, sampling=_plain(turn.sampling), **bare) for turn in turns]
            rollouts[agent] = replace(rollout, turns=copies)
        return replace(episode, rollouts=rollouts)

    def _weight(self, key: str, totals: dict[str, float]) -> float | None:
        kind, _, policy = key.partition(":")
        if self.mode != "combined":
            trained_kind = "agent" if self.mode == "behavioral_cloning" else "world"
            return 1.0 if kind == trained_kind else None
        share = self.bc_weight if kind == "agent" else self.world_model_weight
        both = sum(totals.get(f"{name}:{policy}", 0.0) for name in ("agent", "world"))
        return share * both / totals[key]

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        per_token = -batch.advantages * outputs.logprobs
        parts = per_token * ops.token_weights(per_token, batch, self.aggregation)
        total, entropy = parts.sum(), outputs.entropy.detach()
        mean = entropy.sum() / batch.totals.tokens
        metrics: dict[str, Tensor | float] = {"policy_loss": total.detach(), "entropy": mean}
        return Loss(total, metrics, {PART: parts.detach(), "entropy": entropy})


_plain = lru_cache(maxsize=64)(SamplingParams.untruncated)


PLUGIN = SFT
