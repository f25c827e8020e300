"""MALT: a tree of generators, verifiers and refiners; SFT on good answers and DPO on pairs.

- **Kind** learning from data
- **Paper** arXiv 2412.01928.
- **Formula** the value `V` of an answer is the mean of its leaves; `dpo_coef` times DPO's loss on
  siblings, that of higher `V` chosen, plus `sft_coef` times `-l` on answers with `V > threshold`.
- **Differs** from the paper: both parts in one loss instead of sequentially; any two siblings of
  different values are a pair (`pairing: threshold`, in `preset: malt`, is the paper's); whole
  models unless `policies.<name>.lora` is set.
- **Knobs** plan: `tree` (workflow `malt`: generator, verifier, refiner); credit: tree mean of the
  team's reward; group: role and node; loss: preference and imitation; pairs: values of a tree.
- **Use it** for pipelines of roles where only the last answer can be scored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.dpo import DPO
from mrlm.core.episodes import Group
from mrlm.core.matters import Matters
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.bases import preference
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs, Sample, merge


@settings
class MALT(DPO):
    """Credit by search (arXiv 2412.01928): the value of an answer is the mean reward of the leaves
    below it, and the answer is good if that is above `threshold`. Each role is trained to imitate
    its good answers and to prefer the better of two siblings (`DPO`):

        dpo_coef * mean over pairs of DPO + sft_coef * mean over tokens of -log pi(good answers)

    It needs a tree: the workflow `malt` (question, verdict, revision in a single-agent environment)
    or `tree` (any environment); without one, the siblings' first turns are compared. Identical
    siblings are not a pair. The threshold of one half is for rewards of 0 and 1; `sft_coef=0` and
    `dpo_coef=0` are the parts, which the paper trains one after the other.

    Args:
        threshold: value above which an answer is good.
        pairing: `order`: any two siblings of different value are a pair; `threshold`: only a good
            one with one that is not.
        sft_coef, dpo_coef: weights of the two parts.
        rewards: rewards of the leaves: the `team`'s or the agent's `own`.
    """

    threshold: float = 0.5
    pairing: Literal["order", "threshold"] = "order"
    sft_coef: float = Field(default=1.0, ge=0)
    dpo_coef: float = Field(default=1.0, ge=0)
    rewards: preference.Rewards = "team"

    matters: ClassVar[Mapping[str, Matters]] = {
        **dict.fromkeys(
            ("beta", "loss_type", "pairing"),
            Matters(lambda s, run: s.dpo_coef, "dpo_coef is 0; set it, or remove this"),
        ),
        "threshold": Matters(
            lambda s, run: s.sft_coef or (s.dpo_coef and s.pairing == "threshold"),
            "nothing compares with it: sft_coef is 0 and pairing is order; remove it",
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.good: list[Turn] = []

    @property
    def spec(self) -> Spec:
        return replace(super().spec, sampling=SamplingPlan(siblings=True, credits="trees"))

    def credit(self, groups: Sequence[Group]) -> None:
        self.good: list[Turn] = []
        super().credit(groups)
        self._weigh()

    def pairs_of(self, group: Group) -> tuple[int, list[preference.PreferencePair]]:
        possible, pairs = 0, []
        for answers in preference.answers_by_state(group, self.rewards).values():
            if self.sft_coef:
                self.good += [answer.turn for answer in answers if answer.value > self.threshold]
            for one, other in combinations(answers, 2):
                possible += 1
                better, worse = (one, other) if one.value >= other.value else (other, one)
                if self._differ(better, worse):
                    pairs.append(preference.PreferencePair([better.turn], [worse.turn]))
        return possible, pairs if self.dpo_coef else []

    def _differ(self, better: preference.ScoredAnswer, worse: preference.ScoredAnswer) -> bool:
        apart = better.value > worse.value
        if self.pairing == "threshold":
            apart = better.value > self.threshold >= worse.value
        return apart and better.turn.completion_ids != worse.turn.completion_ids

    # -- two losses in one -------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Set weights that turn the mean over units (pairs and good answers) into a mean over pairs
        and a mean over the tokens of good answers, for each policy."""
        counts: dict[str, list[float]] = {}
        for pair in self.pairs:
            counts.setdefault(pair.policy, [0.0, 0.0, 0.0])[0] += 1
        for turn in self.good:
            row = counts.setdefault(turn.policy, [0.0, 0.0, 0.0])
            row[1], row[2] = row[1] + 1, row[2] + len(turn)
        totals = ops.global_sum(counts)
        self.metrics["good_answers"] = sum(good for _, good, _ in totals.values())
        for pair in self.pairs:
            pairs, good, _ = totals[pair.policy]
            pair.weight = (pairs + good) / pairs
        for turn in self.good:
            pairs, good, tokens = totals[turn.policy]
            turn.returns = (pairs + good) / tokens

    def samples(self, groups: Sequence[Group], policy: str) -> list[Sample]:
        policy_samples = preference.pair_samples(self.pairs, policy)
        unit = len(self.pairs)
        for turn in self.good:
            if turn.policy == policy:
                policy_samples += merge([replace(turn, advantages=0.0)], unit, rollout=2 * unit)
                unit += 1
        return policy_samples

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        preferred = super().loss(batch, outputs)
        apart = (batch.advantages == 0).to(outputs.logprobs.dtype)
        imitated = -(apart * batch.returns * outputs.logprobs).sum() / batch.totals.units
        total = self.dpo_coef * preferred.total + self.sft_coef * imitated
        parts = {"dpo_loss": preferred.total.detach(), "sft_loss": imitated.detach()}
        good = apart * batch.returns * outputs.logprobs.detach() / batch.totals.units
        token_loss = self.dpo_coef * preferred.tokens[PART] - self.sft_coef * good
        return Loss(total, {**preferred.metrics, **parts}, {**preferred.tokens, PART: token_loss})


PLUGIN = MALT
