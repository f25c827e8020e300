"""The size of a run's record before it starts: an upper bound from its settings."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from mrlm.config import ExperimentConfig
from mrlm.record.plan import SAMPLED_GROUPS

ALWAYS = 4
"""Numbers of a recorded token: its id, log-prob, and the last log-prob and entropy."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured bytes: of an episode and of a turn without texts and tokens, of the board that a
    turn changes, of the text of a token, and of one number of a token. Random words compress worse
    than sentences."""

    episode: float
    turn: float
    board: float
    text: float
    number: float


COMPRESSED = Rates(episode=120, turn=60, board=60, text=4.7, number=2.05)
PLAIN = Rates(episode=700, turn=600, board=900, text=12, number=2.7)


@dataclass(frozen=True, slots=True)
class RecordSize:
    """An upper bound of the size of a record, in bytes.

    Args:
        step: of a training step.
        evaluation: of an evaluation.
        evaluations: how many are played after training steps.
        first: whether one is played before them.
        iterations: training steps; `None` if they are not known.
        limit: the size from which training steps are thinned, if there is one.
    """

    step: float
    evaluation: float
    evaluations: int
    first: bool
    iterations: int | None
    limit: float | None

    @property
    def total(self) -> float | None:
        """The whole run without thinning."""
        if self.iterations is None:
            return None
        return self.iterations * self.step + (self.evaluations + self.first) * self.evaluation

    @property
    def thinned_from(self) -> int | None:
        """The step at which the limit may be reached; `None` if it is not."""
        total, count = self.total, self.iterations
        if total is None or count is None or self.limit is None or total <= self.limit:
            return None
        begun = self.first * self.evaluation
        return max(1, int((self.limit - begun) / max(1.0, (total - begun) / count)))

    def __str__(self) -> str:
        text = f"record: at most {_size(self.step)} a training step"
        if self.evaluation:
            text += f" and {_size(self.evaluation)} an evaluation"
        if self.total is not None:
            text += f", {_size(self.total)} in all"
        if self.thinned_from is not None and self.limit is not None:
            text += (
                f"; record.max_gb ({self.limit / 1e9:g}) may be reached at step "
                f"{self.thinned_from}: then every second training step is removed, and so on"
            )
        return text


def record_size(
    config: ExperimentConfig,
    columns: Collection[str],
    *,
    groups: int,
    episodes: int,
    calls: int,
    iterations: int | None,
) -> RecordSize:
    """Bounds the size of a record. Texts of prompts are counted as far as
    `generation.max_prompt_tokens` limits them.

    Args:
        columns: token columns that its algorithm computes.
        groups: groups of a training step.
        episodes: episodes of a group.
        calls: completions of an episode.
        iterations: training steps, if they are known.
    """
    record, section = config.record, config.evaluation
    rates = COMPRESSED if record.compress else PLAIN
    credit = 2 if "values" in columns else 0  # advantages and returns; else constant over a turn
    recorded = {"all": groups, "evaluations": 0}.get(str(record.keep))
    recorded = min(int(record.keep), groups) if recorded is None else recorded
    traced = {"all": recorded, "none": 0, "sample": min(recorded, SAMPLED_GROUPS)}[record.tokens]
    generation = config.generation
    prompt, written = generation.max_prompt_tokens or 0, generation.max_new_tokens

    def size(several: int, numbers: int) -> float:
        tokens = written * (rates.text + rates.number * numbers)
        read = prompt * (rates.text + rates.number * bool(numbers))
        turn = rates.turn + rates.board * bool(numbers)
        return several * (rates.episode + calls * (turn + tokens + read))

    bare = size((recorded - traced) * episodes, 0)
    played = section.episodes * section.samples
    count = 0
    if played and iterations:
        every = section.every or iterations
        count = iterations // every + bool(iterations % every)
    return RecordSize(
        step=bare + size(traced * episodes, ALWAYS + len(columns) + credit),
        evaluation=size(played, 0 if record.tokens == "none" else 2),
        evaluations=count,
        first=bool(played and section.at_start),
        iterations=iterations,
        limit=None if record.max_gb is None else record.max_gb * 1e9,
    )


def _size(count: float) -> str:
    """Bytes in the unit of `record.max_gb`."""
    units = ("B", "kB", "MB", "GB", "TB")
    exponent = min(len(units) - 1, max(0, int(math.log10(max(1.0, count)) // 3)))
    return f"{count / 1000**exponent:.3g} {units[exponent]}"
