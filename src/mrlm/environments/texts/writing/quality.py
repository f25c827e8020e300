"""Measures against reward hacking by texts of the right length without content. Each measure is 1
for any genuine text and decreases to 0; they depend on words only and use no model."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from mrlm.core.content import content
from mrlm.environments.texts.writing.presets import LengthSpan, WritingRules
from mrlm.environments.texts.writing.words import (
    FUNCTION_WORDS,
    content_words,
    grams,
    sentences,
    stems,
    tokens,
    transitions,
    words_of,
)

END = "."
"""Token after the last word of a sentence."""


_ORDER = content(__file__, "words.yaml")["order"]

MEASURES = ("repetition", "language", "relevance", "own_words")
COPIED = 5
"""Number of consecutive words that count as copied."""
_PLAUSIBLE = re.compile(r"(?!.*(.)\1{2})(?:[^\W\d_]{1,20}|\d{1,9})(?:['\u2019][a-z]{1,4})?", re.I)
_VOWEL = re.compile(r"[aeiouy\u00c0-\u024f\d]", re.I)
_WORDS_OF_SENTENCE = (3, 60)
_DIFFERENT = LengthSpan(0.5, 0.85)
_DOUBLED = LengthSpan(-1.0, 0.0, 0.02, 0.2)
_REAL = LengthSpan(0.6, 0.85)
_FUNCTION = LengthSpan(0.15, 0.28, 0.7, 0.85)
_WHOLE = LengthSpan(0.5, 0.85)
_MISPLACED = LengthSpan(-1.0, 0.0, 0.1, 0.28)
_COPIES = LengthSpan(-1.0, 0.0, 0.4, 0.8)
_CROWDED = 1 / 3


def quality(
    text: str, source: str, around: Sequence[str], rules: WritingRules, others: Sequence[str] = ()
) -> dict[str, float]:
    """The measures of one text by name, each from 0 to 1, and their product as `quality`.

    Args:
        around: other texts shown to the writer, which must not be copied either.
        rules: required relevance and coverage of the source.
        others: texts of the other writers.
    """
    words = tokens(text)
    scores = {
        "repetition": _repetition(words),
        "language": _language(text, words),
        "relevance": _relevance(text, source, rules),
        "own_words": _own_words(words, [source, *around, *others]),
    }
    return scores | {"quality": math.prod(scores.values())}


def _repetition(words: Sequence[str]) -> float:
    """Fraction of unique runs of three words, times that of words not directly repeated."""
    runs = grams(words, 3)
    if not runs:
        return 0.0
    doubled = sum(a == b for a, b in pairwise(words)) / len(words)
    return min(_DIFFERENT(len(set(runs)) / len(runs)), _DOUBLED(doubled))


def _language(text: str, words: Sequence[str]) -> float:
    """Plausibility as English: plausible words, typical use of function words, and complete
    sentences that are more than transitions."""
    if not words:
        return 0.0
    real = sum(_is_word(word) for word in words) / len(words_of(text))
    joining = sum(word in FUNCTION_WORDS for word in words) / len(words)
    parts = sentences(text)
    low, high = _WORDS_OF_SENTENCE
    whole = sum(len(part) for part in parts if low <= len(part) <= high) / len(words)
    crowded = sum(_is_crowded(part) for part in parts) / len(parts)
    scores = (_REAL(real), _FUNCTION(joining), _WHOLE(whole), _MISPLACED(misplaced(parts)))
    return math.prod(scores) * max(0.0, 1.0 - 2.0 * crowded)


def _relevance(text: str, source: str, rules: WritingRules) -> float:
    """Content words shared with the source, as a fraction and as a number."""
    ours, theirs = stems(content_words(text)), stems(content_words(source))
    common = len(ours & theirs)
    if not ours:
        return 0.0
    share = common / len(ours) / rules.relevant if rules.relevant else 1.0
    number = common / rules.covered if rules.covered else 1.0
    return min(1.0, share, number)


def _own_words(words: Sequence[str], texts: Sequence[str]) -> float:
    """Fraction of runs of words that are in none of the other texts."""
    runs = grams(words, COPIED)
    seen_runs = {run for other in texts for run in grams(tokens(other), COPIED)}
    return _COPIES(sum(run in seen_runs for run in runs) / len(runs)) if runs else 0.0


def _is_word(word: str) -> bool:
    return bool(_PLAUSIBLE.fullmatch(word) and _VOWEL.search(word))


def _is_crowded(part: Sequence[str]) -> bool:
    """Whether more than a third of a sentence is transitions (one is always allowed)."""
    counted = [size for _, size in transitions(" ".join(part))]
    return len(counted) > 1 and sum(counted) > _CROWDED * len(part)


def _words(text: str) -> frozenset[str]:
    """A set of words, some of which are names of sets, in capital letters."""
    sets = (
        _words(_ORDER["sets"][name]) if name in _ORDER["sets"] else {name} for name in text.split()
    )
    return frozenset().union(*sets)


_NEVER: dict[str, frozenset[str]] = {
    word: _words(rule["never"]) - _words(rule.get("but", ""))
    for rule in _ORDER["rules"]
    for word in _words(rule["after"])
}
"""Word -> words that do not follow it."""


def misplaced(parts: Sequence[Sequence[str]]) -> float:
    """Fraction of the function words in tokenised sentences whose next word cannot follow them."""
    flags = [
        following in _NEVER[word]
        for part in parts
        for word, following in pairwise([*part, END])
        if word in _NEVER
    ]
    return sum(flags) / len(flags) if flags else 0.0
