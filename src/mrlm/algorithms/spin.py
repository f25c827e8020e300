"""SPIN: self-play fine-tuning; a given answer is preferred to one of an earlier policy.

- **Kind** learning from data
- **Paper** arXiv 2401.01335, eq. 4.7.
- **Formula** DPO's loss with a row's answer chosen, the opponent's answer rejected and the opponent
  as the reference; the opponent is the policy at the end of the round before, so that the loss is
  log 2 at the beginning of a round.
- **Differs** from the authors' code: AdamW and not RMSProp, pairs whose answer is the data's own
  are dropped, and a round is one pass over the rows by default.
- **Knobs** plan: rows, each answered once a round by the policies themselves; loss: preference
  (sigmoid, hinge); schedule: an outer loop, an epoch being a round; pairs: real against generated,
  of this round and the one before (`use_previous`); `rows_per_round`.
- **Use it** to improve further on the rows of supervised learning. `scripts/run_spin.sh` takes a
  file of questions and answers.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.dpo import DPO
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.rounds import Rounds
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.preference import PreferencePair, row_pairs
from mrlm.learn.bases.spec import SamplingPlan, Spec


@settings
class SPIN(DPO):
    """Train a policy to distinguish given answers from its own (arXiv 2401.01335, eq. 4.7): in
    round k, for each row `(x, y)`, an answer `y'` is sampled from the opponent, the policy at the
    end of round k - 1; then `DPO`'s loss is minimised with `y` chosen, `y'` rejected and the
    opponent as the reference. The loss is log 2 (or 1, `hinge`) at the start of a round.

    Rows have `messages`, or `prompt` and `completion`; of a conversation, the last answer is
    compared. Both answers end with the same end token. Pairs with identical or empty answers are
    dropped (`frac_dropped_pairs`). Where `training.num_iterations` is not set, an epoch
    (`training.num_epochs`) is a round. Optimiser and learning rate schedule continue across rounds.

    Args:
        loss_type: `sigmoid` or `hinge`.
        rows_per_round: rows per round, the next ones in every round; `None` is all of them.
        passes_per_round: epochs over the pairs of a round.
        use_previous: from the second round on, also train on the answers of the round before, as
            the authors do; such a round is twice as long.
    """

    loss_type: Literal["sigmoid", "hinge"] = "sigmoid"  # pyright: ignore[reportIncompatibleVariableOverride]
    rows_per_round: int | None = Field(default=None, ge=1)
    passes_per_round: int = Field(default=1, ge=1)
    use_previous: bool = True

    default_learning_rate: ClassVar[float] = 5e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ref_update_freq:
            raise ConfigError(
                f"ref_update_freq={self.ref_update_freq}: the reference of spin is its opponent, "
                "which changes with the round; leave it at 0 and set rows_per_round, or use "
                "OnlineDPOTrainer (online_dpo), which verl's recipe of this name is"
            )

    @property
    def spec(self) -> Spec:
        rows = self.rows_per_round or 0
        rounds = Rounds(rows, passes=self.passes_per_round, previous=self.use_previous)
        return replace(super().spec, sampling=SamplingPlan(rows=True, rounds=rounds))

    def pairs_of(self, group: Group) -> tuple[int, list[PreferencePair]]:
        return len(group.agents), [pair for pair in row_pairs(group) if _told_apart(pair)]


def _told_apart(pair: PreferencePair) -> bool:
    """Whether both sides are non-empty and differ."""
    sides = [[_text(turn) for turn in turns] for turns in (pair.chosen, pair.rejected)]
    return all(map(any, sides)) and sides[0] != sides[1]


def _text(turn: Turn) -> str:
    return str(turn.completion_ids) if turn.message is None else turn.message.content.strip()


PLUGIN = SPIN
