"""Whatever a model writes, reading it takes time in proportion to its length."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from mrlm.core.thoughts import without_thoughts
from mrlm.core.tool_calls import answer_in, calls_in
from mrlm.environments.debate.llm import LLMJudge
from mrlm.environments.debate.topics import Topic, only_answer
from mrlm.environments.math.environment import shows_working
from mrlm.environments.math.reading import before_answer, gold_of, problem_of, stated
from mrlm.environments.math.verifier import verify
from mrlm.environments.programs.code.answers import extract_code, refusal
from mrlm.environments.puzzles import grids
from mrlm.environments.qa import problem_of as problem_of_qa
from mrlm.environments.search_qa import environment as search_qa
from mrlm.environments.search_qa import routing
from mrlm.environments.shared import short_answers, text_judge
from mrlm.environments.texts.writing import words
from mrlm.serving.policies import openai_fields
from mrlm.workflows.majority_vote import MajorityVote
from mrlm.workflows.router import names_in

LENGTH = 20_000
LIMIT = 2.0
"""Seconds of a processor for a text; a quadratic reader takes minutes."""
READERS: dict[str, Callable[[str], Any]] = {
    "math": stated,
    "math, boxed": lambda t: stated(t, "boxed"),
    "math, before the answer": before_answer,
    "math, gold": lambda t: (gold_of(t), problem_of(t)),
    "math, working": lambda t: shows_working(t, "What is 12 and 13?"),
    "math, comparison": lambda t: verify(t[:500], "5"),
    "code": lambda t: (extract_code(t), refusal(t)),
    "tools": lambda t: (calls_in(t), answer_in(t)),
    "thoughts": lambda t: (without_thoughts(t), without_thoughts(t, opened=True)),
    "qa": lambda t: (
        short_answers.tagged(t),
        short_answers.exact_match(t, ["a"]),
        short_answers.f1(t, ["a b"]),
    ),
    "qa, gold": problem_of_qa,
    "choice": lambda t: short_answers.only_word(t, ["yes", "no"]),
    "search_qa": lambda t: (search_qa._action(t), routing.form(t, None), routing.route(t, ["a"])),
    "grades": text_judge.read,
    "verdicts": lambda t: [
        LLMJudge("judge", mode=m).read(t, ("pro", "con")) for m in ("scores", "winner")
    ],
    "debate": lambda t: (only_answer(t), Topic("?", answer="5").says(t)),
    "writing": lambda t: (words.sentences(t), words.categories(t), words.unique_words(t)),
    "moves": grids.GridMoves().read,
    "server": lambda t: openai_fields._calls_in(t, False),
    "votes": lambda t: MajorityVote(weighted=True).elected([t, t]),
    "router": lambda t: names_in(t, ["ann", "ben"]),
}
OPENINGS = ["", "The answer is ", "```python\n", '<tool_call>{"name": "', "<think>", "\\boxed{"]
UNITS = r"""<think> </think> <answer> </answer> <tool_call> </tool_call> <tool_call>{ {"a": [ ( { }
\boxed{ \boxed answer_is_ Answer:_ Answer/ therefore_ ** * _ __ ` ``` ```/ ```python/ ~~~ / -_ 1._
| >_ $ \[ \( 1 1, -_ +_ -_5_ x= a_=_1,_ 5_5_ 0. e^ \frac{1}{ ####_ \text{ Score:_ [[5 Winner:_ A:_
<search> <information> ._ yes_ a A é 中 (A)_ 1=1_ 1+1=2,_ " ' [THINK] f( \\ is_-_ \sqrt 100% up,
< > </ & 🙂 first_of_all_ {"name":" <|channel|>analysis<|message|> Confidence:_ %} f()/ = 1^ 10**"""
"""Pieces of texts; `_` is a space and `/` the end of a line."""


def written(unit: str) -> str:
    return unit.replace("_", " ").replace("/", "\n") if len(unit) > 1 else unit


@pytest.mark.parametrize(
    "opening", [pytest.param(o, marks=[pytest.mark.slow] * bool(o)) for o in OPENINGS]
)
@pytest.mark.parametrize("name", READERS)
def test_reading_takes_time_in_proportion_to_the_length(name: str, opening: str) -> None:
    for unit in [*map(written, UNITS.split()), " ", "\n", "\t"]:
        shown = opening + unit * (LENGTH // len(unit))
        begin = time.process_time()
        READERS[name](shown)
        assert time.process_time() - begin < LIMIT, unit
