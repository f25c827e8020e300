"""Whatever a model writes is read in time that grows with its length: every reader of model text is
given hostile texts of growing size, and its CPU time may not grow faster than they do."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mrlm.core.tool_calls import answer_in, calls_in
from mrlm.core.types import Completion, Task
from mrlm.data.final_answer import after_hashes, boxed
from mrlm.environments import kuhn_poker, qa
from mrlm.environments import reasoning_gym as expressions
from mrlm.environments.code.answers import extract_code
from mrlm.environments.debate.llm import LLMJudge
from mrlm.environments.debate.rules import new_sentences, sentences
from mrlm.environments.math import answers, reading, units
from mrlm.environments.math.environment import shows_working
from mrlm.environments.math.verifier import _decided
from mrlm.environments.shared import grading, routing
from mrlm.environments.shared import text as text_module
from mrlm.environments.writing import quality, words
from mrlm.environments.writing.environment import MAX_TEXT
from mrlm.environments.writing.presets import LengthSpan, WritingRules
from mrlm.serving.policies.openai_fields import pieces, spoken
from mrlm.workflows.majority_vote import MajorityVote
from mrlm.workflows.manager import parts_of
from mrlm.workflows.propose_solve import read_posed
from mrlm.workflows.router import names_in

FEW = (1_000, 4_000, 16_000)
SIZES = (500, 2_000, 8_000, 19_000, 64_000)
"""Characters; a reader may have a limit of its own, below which it has to be linear, too."""
QUICK = 0.03
"""CPU seconds within which a text of any of these sizes is read without further question."""
GROWTH = 2.0
"""How much more than in proportion the time of a larger text may grow: timers are coarse."""


def graded(text: str) -> Any:
    """As the verifier of mathematics compares what it may read."""
    if answers.costly(text):
        return None
    said = answers.cleaned(text)
    units.split(said)
    return [_decided(said, gold) for gold in ("5", "2, 3", "x > 3") if said]


VOTE = MajorityVote(weighted=True)
TASK = Task("t", [])
RULES = WritingRules((8, 256), LengthSpan(1.1, 1.6, 3.2, 5.0), LengthSpan(1.3, 2.0), overlap=0.03)
READERS: dict[str, Callable[[str], Any]] = {
    "calls_in": calls_in,
    "answer_in": answer_in,
    "spoken": lambda text: spoken(Completion([1], [-1.0], text), [{"type": "function"}]),
    "pieces": lambda text: list(pieces(text)),
    "stated": reading.stated,
    "before_answer": reading.before_answer,
    "gold_of": reading.gold_of,
    "graded": graded,
    "shows_working": lambda text: shows_working(text, "What is 3 + 4?"),
    "boxed": boxed,
    "after_hashes": after_hashes,
    "extract_code": extract_code,
    "qa": qa._stated,
    "exact_match": lambda text: text_module.exact_match(text, ["a b"]),
    "f1": lambda text: text_module.f1(text, ["a b"]),
    "only_word": lambda text: text_module.only_word(text, ["stag", "hare"]),
    "literal": expressions.is_literal,
    "mathematics": expressions.is_mathematics,
    "route": lambda text: routing.routing_reward(text, ["a"], ["m"]),
    "harmless": routing.harmless,
    "winner": lambda text: LLMJudge(ask=str).read(text, ("pro", "con")),
    "scores": lambda text: LLMJudge(ask=str, mode="scores").read(text, ("pro", "con")),
    "quoted": grading.quoted,
    "grade": grading.read,
    "sentences": sentences,
    "new_sentences": lambda text: new_sentences(text, sentences("it is so")),
    "vote": VOTE._vote,
    "confidence": VOTE._weight,
    "plan": lambda text: parts_of(text, ["ann", "bob"]),
    "names": lambda text: names_in(text, ["ann", "bob"]),
    "posed": lambda text: read_posed(TASK, text),
    "poker": lambda text: kuhn_poker.words_after(text),
    "transitions": lambda text: list(words.transitions(text[:MAX_TEXT])),
    "writing": lambda text: quality.quality(text[:8_000], "a dog", ["a cat"], RULES),
}
PARTS = [
    *"{}[]()<>\"'`*_-+=/\\^.,:;!?$%|#~ \n\t\r0aZé\u00a0",
    *("a ", "1 ", "* ", " -", "1,", "1.", "1/", "1^", "**", "2!", "a.", ". ", "! ", "a'", "\\n"),
    *("<tool_call>", "<tool_call>{", "<tool_call>{}", "</tool_call>", "{}", "{};", "{\n", "[{"),
    *('{"a":', '"', '\\"', "f(", "f(x=", "f(1)\n", "f((", "'a',", "(a,", "<answer>", "</answer>"),
    *("\\boxed{", "\\boxed{1}", "\\fbox{", "\\frac{", "\\frac{1}{", "\\text{", "\\text{or}"),
    *("\\left", "sqrt(", "####", "answer", "answer is ", "Answer: ", "therefore ", " or ", "and "),
    *(" m", "km", " km/", "km^2", "cm ^2", "°", "²", "a/", "= 1\n", "1=1", "a=", "a<", "<=", "1e"),
    *("```", "```\n", "```py\n", " ```", "    ```", "\n```", "<think>", "<think>a</think>"),
    *("<search>", "</search>", "winner: ", "A: 1\n", "score: ", "Confidence: 1 ", ".5", "ann: "),
    *(
        "ann:\n",
        "ann",
        "problem: ",
        "in ",
        "in addition ",
        "as ",
        "however",
        "bet ",
        "on the other ",
    ),
]
BEFORE = ("", "<tool_call>{", "```\n", "\\boxed{", "x = 1", "answer: ", "Problem: ")
AFTER = ("", "!", "x", "}", "</tool_call>", "\nanswer: x", "\x01", ": x")


def hostile(rng: random.Random, count: int) -> Iterator[Callable[[int], str]]:
    """Texts by size: every part repeated, `count` of them between others, and two parts in turn."""

    def repeated(before: str, part: str, after: str) -> Callable[[int], str]:
        return lambda size: before + part * (size // len(part)) + after

    for part in PARTS:
        yield repeated("", part, "")
        for before, after in rng.sample([*itertools.product(BEFORE, AFTER)], count):
            yield repeated(before, part, after)
    for _ in range(count * len(PARTS)):
        yield repeated("", rng.choice(PARTS) + rng.choice(PARTS), rng.choice(AFTER))


def seconds(read: Callable[[str], Any], text: str, times: int = 1) -> float:
    """The least CPU seconds that reading takes."""
    found: list[float] = []
    for _ in range(times):
        begun = time.thread_time()
        read(text)
        found.append(time.thread_time() - begun)
    return min(found)


def slow(
    read: Callable[[str], Any], text: Callable[[int], str], sizes: Sequence[int] = SIZES
) -> str | None:
    """Where the cost of a text grows faster than its size; `None` where it never does."""
    before, smaller = 0.0, 0
    for size in sizes:
        spent = seconds(read, text(size))
        growth = GROWTH * size / max(smaller, 1)
        if smaller and spent > max(QUICK, growth * before):  # perhaps by chance: a busy machine
            before = seconds(read, text(smaller), 3)
            spent = seconds(read, text(size), 3)
            if spent > max(QUICK, growth * before):
                return f"{spent:.3f} s for {size} characters, {before:.4f} s for {smaller}"
        before, smaller = spent, size
    return None


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("count", "sizes"), [(1, FEW), pytest.param(6, SIZES, marks=pytest.mark.slow)]
)
def test_readers_of_model_text_are_linear(name: str, count: int, sizes: Sequence[int]) -> None:
    found = []
    for text in hostile(random.Random(f"{name} {count}"), count):
        problem = slow(READERS[name], text, sizes)
        if problem:
            found.append((text(24), problem))
        assert len(found) < 4, found
    assert not found


def test_a_quadratic_reader_is_noticed() -> None:
    def quadratic(text: str) -> int:
        return sum(text[place:].count("(") for place in range(0, len(text), 4))

    assert slow(quadratic, lambda size: "(" * size)
