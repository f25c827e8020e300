"""The parameters of learners and critics, in this process or on a worker."""

from dataclasses import dataclass
from pathlib import Path

from mrlm.learn.bases.algorithm import Algorithm


@dataclass(frozen=True, slots=True)
class LearningJob:
    """Credit and loss of a run, its iterations, its folder, and the tokens of a micro-batch."""

    algorithm: Algorithm
    total: int
    folder: Path
    max_tokens: int
