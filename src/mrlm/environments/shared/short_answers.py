"""Scoring of short answers: exact match and F1 after SQuAD normalisation, and choice of one word
out of several."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = frozenset({"yes", "no", "noanswer"})


def normalised(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces (Rajpurkar et al. 2016, the
    official SQuAD script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """1.0 if the answer equals one of the accepted ones after normalisation and is not empty, else
    0.0."""
    return float(any(_same(answer, one) for one in accepted))


def _same(answer: str, gold: str) -> bool:
    """Whether two texts are equal after normalisation; before it, where nothing is left of the
    right one (`The`, `+`)."""
    left = normalised(gold)
    if not left:
        return bool(gold.strip()) and answer.strip().casefold() == gold.strip().casefold()
    return normalised(answer) == left


def f1(answer: str, accepted: Sequence[str]) -> float:
    """Best token F1 with any accepted answer, from 0 to 1; yes, no and noanswer count only as a
    whole."""
    scores = (
        _f1(normalised(answer), left) if (left := normalised(one)) else float(_same(answer, one))
        for one in accepted
    )
    return max(scores, default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _VERDICTS or gold in _VERDICTS):
        return 0.0
    ours, theirs = answer.split(), gold.split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def only_word(text: str, words: Sequence[str]) -> str | None:
    """The one of `words` that an answer names: the whole answer, ignoring case and surrounding
    punctuation, or the only one contained in it as a whole word; `None` if it names none or
    several."""
    plain = {word.casefold(): word for word in words}
    whole = text.strip(" \t\n\r.,:;!?\"'`()[]<>*").casefold()
    if whole in plain:
        return plain[whole]
    named = {word for word in re.findall(r"\w+", text) if word in words}
    return named.pop() if len(named) == 1 else None


def tagged(text: str) -> str | None:
    """The text of the last `<answer>` tag; `None` if there is none."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    return answer.strip() if closed and opened else None
