"""Rewards of texts: four gates in sequence, of which a gate at zero stops; at most 3.0. Measures
against reward hacking are in `quality.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mrlm.environments.writing.presets import WritingRules
from mrlm.environments.writing.words import (
    categories,
    content_words,
    jaccard,
    unique_words,
    words_of,
)

LENGTH, RATIO, VARIETY, STYLE = 0.5, 1.0, 0.5, 1.0
"""Maximum reward of each gate."""
GATES = ("length", "ratio", "variety", "style")
_TRANSITIONS, _OVERLAP = 0.4, 0.6


def transition_score(count: int, rules: WritingRules) -> float:
    """Score of a number of categories of transitions, from 0 to 1."""
    return min(1.0, rules.first + rules.step * (count - 1)) if count else 0.0


def gates(texts: Sequence[str], rules: WritingRules, own: int | None = None) -> dict[str, float]:
    """Reward of each gate by name.

    Length: every text has its number of words. Ratio: characters of a text over those of the one
    before it. Variety: the same of different words. Style: transitions, and content words that two
    texts have in common. With more than two texts, the worst pair counts.

    Args:
        texts: one per writer, in their order.
        own: score only this writer: its own length and transitions, and the pairs that it belongs
            to; all writers together when `None`.
    """
    rewards: dict[str, float] = dict.fromkeys(GATES, 0.0)
    mine = list(texts) if own is None else [texts[own]]
    low, high = rules.words
    if not all(low <= len(words_of(text)) <= high for text in mine):
        return rewards
    rewards["length"] = LENGTH
    pairs = [
        (before, after)
        for index, (before, after) in enumerate(pairwise(texts))
        if own is None or own in (index, index + 1)
    ]
    fit = min(rules.characters(_over(len(after), len(before))) for before, after in pairs)
    rewards["ratio"] = RATIO * fit
    if not fit:
        return rewards
    counted = [(unique_words(before), unique_words(after)) for before, after in pairs]
    varied = min(rules.unique(_over(after, before)) for before, after in counted)
    rewards["variety"] = VARIETY * varied
    if not varied:
        return rewards
    common = min(jaccard(content_words(one), content_words(two)) for one, two in pairs)
    kinds = len(set().union(*map(categories, mine)))
    joined = _TRANSITIONS * transition_score(kinds, rules)
    rewards["style"] = STYLE * (joined + _OVERLAP * min(common, rules.overlap) / rules.overlap)
    return rewards


def _over(after: float, before: float) -> float:
    return after / before if before else 0.0
