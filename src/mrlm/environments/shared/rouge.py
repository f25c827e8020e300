"""ROUGE (Lin 2004) of a text and its references, as the package rouge-score computes it, with
stemming. The only importer of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from mrlm.core.errors import ConfigError

KINDS = ("rouge1", "rouge2", "rougeL")


def check_rouge() -> None:
    """Check that rouge-score is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("rouge_score") is None:
        raise ConfigError('ROUGE needs the package rouge-score: pip install "mrlm[metrics]"')


def rouge(kinds: Sequence[str], text: str, references: Sequence[str]) -> dict[str, float]:
    """Kind -> its F1 against the best reference, from 0 to 1. Words are runs of a-z and digits, so
    that it is not meaningful for languages in other scripts."""
    scorer = _scorer(tuple(kinds))
    scored = [scorer.score(reference, text) for reference in references]
    return {kind: max(float(each[kind].fmeasure) for each in scored) for kind in kinds}


@cache
def _scorer(kinds: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(kinds), use_stemmer=True)
