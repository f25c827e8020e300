"""BLEU (Papineni et al. 2002) and chrF (Popovic 2015) of one text and its references, as the
package sacrebleu computes them. The only importer of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from mrlm.core.errors import ConfigError

KINDS = ("bleu", "chrf", "chrf++")


def check_bleu() -> None:
    """Check that sacrebleu is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("sacrebleu") is None:
        raise ConfigError('BLEU and chrF need the package sacrebleu: pip install "mrlm[metrics]"')


def bleu(kinds: Sequence[str], text: str, references: Sequence[str]) -> dict[str, float]:
    """Kind -> its score from 0 to 1, a hundredth of the usual scale. BLEU is sentence BLEU over the
    orders that a text of its length has; `chrf++` also counts pairs of words."""
    score = _scorers()
    given = list(references)
    return {kind: min(1.0, score[kind](text, given).score / 100) for kind in kinds}


@cache
def _scorers() -> dict[str, Callable[[str, list[str]], Any]]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return {
        "bleu": BLEU(effective_order=True).sentence_score,
        "chrf": CHRF().sentence_score,
        "chrf++": CHRF(word_order=2).sentence_score,
    }
