"""Check of the order of function words in English text. It uses pairs of consecutive words and no
grammar, which suffices to distinguish a text from a permutation of its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrlm.environments.writing.words import FUNCTION_WORDS, word_set

END = "."
"""Token after the last word of a sentence."""


_AFTER_DETERMINERS = word_set(
    "first second next later other same few many most more much less own only very little such "
    "former latter above further mine one"
)
_VERBS = word_set(
    "is are was were am be been being do does did has have had having will would shall should can "
    "could may might must"
)
_SUBJECTS = word_set("i we he she they")
_JOINING = word_set("and but or nor because although though if unless whereas than")
_PREPOSITIONS = word_set("of at from into onto with during against to on in for by")
_DETERMINERS = word_set("a an the my your our their its")
_AFTER_SUBJECTS = _VERBS | word_set(
    "not no now then just also too only so once never even again further first still all both each "
    "therefore thus hence however who"
)
_NEVER: dict[str, frozenset[str]] = {
    word: never
    for words, never in [
        (_DETERMINERS, (FUNCTION_WORDS - _AFTER_DETERMINERS) | {END}),
        (_SUBJECTS, (FUNCTION_WORDS - _AFTER_SUBJECTS) | {END}),
        (
            word_set("of at from into onto"),
            _VERBS | _SUBJECTS | _JOINING | word_set("of to into onto at so not") | {END},
        ),
        (word_set("and or nor"), word_set("and or nor but than of") | {END}),
        (word_set("but"), word_set("and or nor than of am are were") | {END}),
        (
            word_set("because although though unless whereas if than"),
            _JOINING - {"if", "because"} | word_set("am are were be been has had") | {END},
        ),
        (word_set("is are was were am"), _VERBS - {"being", "having"} | {"of", "me"}),
        (word_set("has have had"), _VERBS - {"been", "had", "having", "being"}),
        (
            word_set("will would can could may might must should shall"),
            _VERBS - word_set("be have do") | _PREPOSITIONS | _JOINING - {"and", "or"},
        ),
        (word_set("to"), _VERBS - word_set("be have do") | _SUBJECTS | word_set("of at to")),
    ]
    for word in words
}
"""Word -> words that do not follow it."""


def misplaced(parts: Sequence[Sequence[str]]) -> float:
    """Fraction of the function words in tokenised sentences whose next word cannot follow them."""
    found = list(_judged(parts))
    return sum(found) / len(found) if found else 0.0


def _judged(parts: Sequence[Sequence[str]]) -> Iterator[bool]:
    for part in parts:
        for word, following in zip(part, [*part[1:], END], strict=True):
            if word in _NEVER:
                yield following in _NEVER[word]
