"""Overlap of a text with its references: ROUGE (Lin 2004), as the package rouge-score computes it,
with stemming; BLEU (Papineni et al. 2002) and chrF (Popovic 2015), as sacrebleu does."""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from mrlm.core.errors import ConfigError

ROUGE = ("rouge1", "rouge2", "rougeL")
BLEU = ("bleu", "chrf", "chrf++")
KINDS = (*ROUGE, *BLEU)


def check_installed(kinds: Collection[str]) -> None:
    """Check that the packages that compute these kinds are installed. Raises `ConfigError`: one of
    them is not."""
    install = 'pip install "mrlm[metrics]"'
    if set(kinds) & {*ROUGE} and find_spec("rouge_score") is None:
        raise ConfigError(f"ROUGE needs the package rouge-score: {install}")
    if set(kinds) & {*BLEU} and find_spec("sacrebleu") is None:
        raise ConfigError(f"BLEU and chrF need the package sacrebleu: {install}")


def overlap(kinds: Collection[str], text: str, references: Sequence[str]) -> dict[str, float]:
    """Kind -> its score from 0 to 1. ROUGE is the F1 against the best reference, where words are
    runs of a-z and digits: it is not meaningful for languages in other scripts. BLEU is sentence
    BLEU over the orders that a text of its length has; `chrf++` also counts pairs of words."""
    scores: dict[str, float] = {}
    if rouge := tuple(kind for kind in ROUGE if kind in kinds):
        scored = [_rouge(rouge).score(reference, text) for reference in references]
        scores = {kind: max(float(result[kind].fmeasure) for result in scored) for kind in rouge}
    for kind in (kind for kind in BLEU if kind in kinds):
        scores[kind] = min(1.0, _bleu()[kind](text, list(references)).score / 100)
    return scores


@cache
def _rouge(kinds: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(kinds), use_stemmer=True)


@cache
def _bleu() -> dict[str, Callable[[str, list[str]], Any]]:
    from sacrebleu.metrics.bleu import BLEU as Bleu
    from sacrebleu.metrics.chrf import CHRF

    return {
        "bleu": Bleu(effective_order=True).sentence_score,
        "chrf": CHRF().sentence_score,
        "chrf++": CHRF(word_order=2).sentence_score,
    }
