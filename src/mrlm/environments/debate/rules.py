"""A rule-based judge: scores the length, evidence, reasoning, structure and relevance of a speech
from its words. Only new sentences count."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from mrlm.core.content import content
from mrlm.environments.debate.judging import DebateRecord, DebateVerdict, Judge, Speech, scored
from mrlm.environments.debate.topics import SIDES
from mrlm.environments.shared.rows import at_least

WEIGHTS = {"length": 0.2, "evidence": 0.25, "reasoning": 0.25, "structure": 0.15, "relevance": 0.15}
"""Weights of the components of an argument's score."""
ARGUMENTS, CONSISTENCY, COVERAGE = 0.6, 0.2, 0.2
"""Weights of the components of a debater's score; without key points the first two share the
last."""

ENOUGH_WORDS, TOO_MANY = 30, 250
"""Number of distinct words for the full length score, and total number of words from which it
decreases (to 0 at twice as many)."""
ENOUGH = 3
"""Numbers of sentences with evidence, with reasoning, and on the topic for their full scores."""
SAME = 0.6
"""Fraction of common words from which two sentences count as the same."""
MAX_TEXT, MAX_SENTENCES = 6000, 40
"""Maximum numbers of characters and sentences of a speech that are read."""

_READ = content(__file__)
SMALL: frozenset[str] = frozenset(_READ["function_words"].split())
"""Function words, which carry no topic."""


def _phrases(alternatives: Iterable[str]) -> re.Pattern[str]:
    """A pattern of alternatives, whole words only, longest first."""
    listed = sorted(alternatives, key=len, reverse=True)
    return re.compile(r"\b(?:" + "|".join(map(re.escape, listed)) + r")\b")


_EVIDENCE, _REASONING, _CONCEDES = (
    _phrases(_READ[kind]) for kind in ("evidence", "reasoning", "concessions")
)
_SIGNPOSTS = tuple(map(_phrases, _READ["signposts"]))
_PAID = _phrases([*_READ["evidence"], *_READ["reasoning"], *chain(*_READ["signposts"])])
_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence in lower case, its words, and the stems of its content words."""

    text: str
    words: tuple[str, ...]
    stems: frozenset[str]

    @property
    def speaks(self) -> bool:
        """Whether it is a plausible sentence instead of a list of words: 5 to 60 words, at least
        three content words, at least one function word in seven, and at most half of the words
        repeated."""
        count = len(self.words)
        small = sum(word in SMALL for word in _WORD.findall(_PAID.sub(" ", self.text)))
        few = len(set(self.words)) * 2 < count
        return 5 <= count <= 60 and len(self.stems) >= 3 and small * 7 >= count and not few

    def like(self, other: "Sentence") -> bool:
        """Whether it has mostly the same words as another sentence."""
        common = len(self.stems & other.stems)
        within = 0 < common == len(self.stems)
        return within or common >= SAME * len(self.stems | other.stems) > 0


def sentences(text: str) -> list[Sentence]:
    """The sentences of a text."""
    result = []
    for piece in re.split(r"(?<=[.!?])\s|\n", text[:MAX_TEXT].lower())[:MAX_SENTENCES]:
        words = tuple(_WORD.findall(piece))
        if words:
            result.append(Sentence(piece, words, stems(words)))
    return result


def stems(words: Iterable[str]) -> frozenset[str]:
    """Stems of the content words."""
    return frozenset(_stem(word) for word in words if word not in SMALL)


def _stem(word: str) -> str:
    word = word.removesuffix("'s")
    for ending in ("ing", "ies", "ed", "es", "ly", "s", "y", "e"):
        if len(word) - len(ending) >= 4 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


def new_sentences(text: str, earlier: Sequence[Sentence]) -> list[Sentence]:
    """The plausible sentences of a text that are not in `earlier`, each of them once."""
    fresh: list[Sentence] = []
    for sentence in sentences(text):
        if sentence.speaks and not any(sentence.like(other) for other in (*earlier, *fresh)):
            fresh.append(sentence)
    return fresh


def argument(
    text: str, about: frozenset[str], earlier: Sequence[Sentence] = ()
) -> dict[str, float]:
    """Scores of a speech by name, each from 0 to 1.

    Args:
        about: stems of the topic and its key points.
        earlier: earlier sentences, which score nothing.

    Returns:
        `length`, `evidence`, `reasoning`, `structure`, `relevance`, and `argument`, their mean by
        `WEIGHTS`.
    """
    fresh = new_sentences(text, earlier)
    different = len({word for sentence in fresh for word in sentence.words})
    spent = len(_WORD.findall(text[: 10 * MAX_TEXT]))
    long = max(0.0, min(1.0, 2.0 - spent / TOO_MANY))
    relevant = sum(bool(sentence.stems & about) for sentence in fresh)
    of_all = relevant / len(fresh) if fresh else 0.0
    parts = {
        "length": min(1.0, different / ENOUGH_WORDS) * long,
        "evidence": min(1.0, _markers(fresh, _EVIDENCE) / ENOUGH),
        "reasoning": min(1.0, _markers(fresh, _REASONING) / ENOUGH),
        "structure": sum(any(post.search(s.text) for s in fresh) for post in _SIGNPOSTS) / 3,
        "relevance": of_all * min(1.0, relevant / ENOUGH),
    }
    if len(fresh) < ENOUGH:
        parts["structure"] *= len(fresh) / ENOUGH
    return parts | {"argument": sum(WEIGHTS[name] * value for name, value in parts.items())}


def _markers(fresh: Sequence[Sentence], phrases: re.Pattern[str]) -> int:
    """Number of sentences with a phrase not used before; one phrase of each sentence counts."""
    used: set[str] = set()
    for sentence in fresh:
        new = [phrase for phrase in phrases.findall(sentence.text) if phrase not in used]
        used.update(new[:1])
    return len(used)


class RuleBasedJudge(Judge):
    """A rule-based judge. The score of a debater is 0.6 x the mean of its arguments + 0.2 x
    consistency + 0.2 x coverage of its side's key points.

    The score of an argument is 0.20 x length + 0.25 x evidence + 0.25 x reasoning + 0.15 x
    structure + 0.15 x relevance. Phrases match whole words only. A sentence counts if it is
    plausible and differs enough from all earlier ones and from the topic; it counts for one phrase
    of a kind and for one key point. A missing speech scores 0.

    Consistency is the fraction of speeches with new content that concede nothing, minus half of the
    fraction that touch more key points of the other side than of its own. The judge is fast but can
    be fooled by well-formed nonsense on the topic: use it for practice, not for finding the truth.

    Args:
        margin: lead in mean score above which a side wins; below, it is a draw.
    """

    def __init__(self, margin: float = 0.02) -> None:
        at_least(0, margin=margin)
        self.margin = margin

    def decide(
        self, debate: DebateRecord, agent_verdicts: Mapping[str, DebateVerdict]
    ) -> DebateVerdict:
        parts = score_debate(debate)
        scores = {debater: named.pop("score") for debater, named in parts.items()}
        return scored(debate, scores, parts, self.margin)


def score_debate(debate: DebateRecord) -> dict[str, dict[str, float]]:
    """Debater -> `argument`, `consistency`, `coverage` (if there are key points) and `score`."""
    points = {side: [stems(_words(p)) for p in debate.topic.points.get(side, ())] for side in SIDES}
    about = stems(_words(debate.topic.claim)).union(*points["pro"], *points["con"])
    earlier = sentences(debate.topic.claim)
    worth: dict[str, list[float]] = {debater: [] for debater in debate.sides}
    steady: dict[str, list[float]] = {debater: [] for debater in debate.sides}
    touched: dict[str, set[int]] = {debater: set() for debater in debate.sides}
    for together in _at_once(debate.speeches):
        round_sentences: list[Sentence] = []
        for speech in together:
            side = debate.sides[speech.debater]
            fresh = new_sentences(speech.text, earlier)
            worth[speech.debater].append(argument(speech.text, about, earlier)["argument"])
            other = "con" if side == "pro" else "pro"
            own_points, others = (_touched(fresh, points[party]) for party in (side, other))
            touched[speech.debater] |= own_points
            consistent = _consistent(speech.text, fresh, len(own_points), len(others))
            steady[speech.debater].append(consistent)
            round_sentences += sentences(speech.text)
        earlier += round_sentences
    scores = {}
    for debater, side in debate.sides.items():
        parts = {
            "argument": sum(worth[debater]) / debate.rounds,
            "consistency": sum(steady[debater]) / debate.rounds,
        }
        score = ARGUMENTS * parts["argument"] + CONSISTENCY * parts["consistency"]
        if points[side]:
            parts["coverage"] = len(touched[debater]) / len(points[side])
            score += COVERAGE * parts["coverage"]
        else:
            score /= ARGUMENTS + CONSISTENCY
        scores[debater] = parts | {"score": score}
    return scores


def _at_once(speeches: Sequence[Speech]) -> list[list[Speech]]:
    """Speeches grouped by time step: concurrent speeches cannot copy each other."""
    groups: list[list[Speech]] = []
    for speech in speeches:
        same = groups and groups[-1][0].moment == speech.moment
        groups[-1].append(speech) if same else groups.append([speech])
    return groups


def _touched(fresh: Sequence[Sentence], points: Sequence[frozenset[str]]) -> set[int]:
    """Key points of which a sentence contains at least half the words; one per sentence counts."""
    indices: set[int] = set()
    for sentence in fresh:
        shares = [
            (len(point & sentence.stems) / len(point), -index)
            for index, point in enumerate(points)
            if point and index not in indices
        ]
        if shares and max(shares)[0] >= 0.5:
            indices.add(-max(shares)[1])
    return indices


def _consistent(text: str, fresh: Sequence[Sentence], own_count: int, others: int) -> float:
    if not fresh or _CONCEDES.search(" ".join(text[:MAX_TEXT].lower().split())):
        return 0.0
    return 0.5 if others > own_count else 1.0


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
