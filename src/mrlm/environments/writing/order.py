"""Check of the order of function words in English text. It uses pairs of consecutive words and no
grammar, which suffices to distinguish a text from a permutation of its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrlm.environments.shared.content import content

END = "."
"""Token after the last word of a sentence."""


_ORDER = content(__file__, "words.yaml")["order"]


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
    flags = list(_judged(parts))
    return sum(flags) / len(flags) if flags else 0.0


def _judged(parts: Sequence[Sequence[str]]) -> Iterator[bool]:
    for part in parts:
        for word, following in zip(part, [*part[1:], END], strict=True):
            if word in _NEVER:
                yield following in _NEVER[word]
