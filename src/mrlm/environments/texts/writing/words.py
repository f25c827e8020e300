"""Words of an English text: transitions in twelve categories, function words, content words,
sentences."""

import re
from collections.abc import Iterator, Sequence

from mrlm.core.content import content

_LISTS = content(__file__)
TRANSITIONS: dict[str, list[str]] = _LISTS["transitions"]
"""Category -> words and phrases that belong only to it."""

FUNCTION_WORDS = frozenset[str](_LISTS["function_words"].split())

_UNSPACED = re.compile(  # Thai, Lao, Myanmar, Khmer, kana, and Chinese characters
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_TOKEN = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_SENTENCE = re.compile(r"[^.!?\n;]+")
_PHRASES = {phrase: name for name, phrases in TRANSITIONS.items() for phrase in phrases}
_ANY_TRANSITION = re.compile(
    r"\b(?:"
    + "|".join(phrase.replace(" ", r"\s+") for phrase in sorted(_PHRASES, key=len, reverse=True))
    + r")\b",
    re.IGNORECASE,
)


def words_of(text: str) -> list[str]:
    """The words of a text between white space; in scripts without spaces every character is one."""
    return (text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)).split()


def unique_words(text: str) -> int:
    """Number of different words of a text, as `words_of` counts, ignoring case and surrounding
    punctuation."""
    stripped = (word.strip(".,;:!?\"'()[]{}*_`-").lower() for word in words_of(text))
    return len({word for word in stripped if word})


def tokens(text: str) -> list[str]:
    """Words and numbers in lower case, without punctuation, as `words_of` separates them."""
    text = text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)
    return [match.group().lower() for match in _TOKEN.finditer(text)]


def sentences(text: str) -> list[list[str]]:
    """The tokens of every non-empty sentence, line and part before a semicolon."""
    return [words for part in _SENTENCE.findall(text) if (words := tokens(part))]


def transitions(text: str) -> Iterator[tuple[str, int]]:
    """Every transition in a text, whole words only: its category, and its number of words."""
    for match in _ANY_TRANSITION.finditer(text):
        phrase = " ".join(match.group().lower().split())
        yield _PHRASES[phrase], phrase.count(" ") + 1


def categories(text: str) -> set[str]:
    """The categories of transitions that occur in a text."""
    return {name for name, _ in transitions(text)}


def content_words(text: str) -> set[str]:
    """The words of a text that are neither function words nor single-word transitions."""
    return {word for word in tokens(text) if word not in FUNCTION_WORDS and word not in _PHRASES}


def stems(words: set[str]) -> set[str]:
    """Words without endings of number and tense, approximately, so that `dogs` equals `dog`."""
    return {_stem(word) for word in words}


def jaccard(one: set[str], other: set[str]) -> float:
    """Jaccard index of two sets of words."""
    return len(one & other) / len(one | other) if one or other else 0.0


def grams(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """All runs of `size` words in order; the whole sequence if it is shorter."""
    if len(words) < size:
        return [tuple(words)] if words else []
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
