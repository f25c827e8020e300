"""Answers: real rows and the forms of known data sets, each written in twenty ways."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.answer_forms import WAYS, neighbours

from mrlm.core.errors import DataError
from mrlm.core.types import Message, Task
from mrlm.environments.math import MathReasoningEnvironment, verify
from mrlm.environments.math.golds import gold_of, golds_of
from mrlm.environments.math.stated import stated
from mrlm.environments.qa import QASolverEnv
from mrlm.environments.shared.text import exact_match, f1

TITLE = "Answers to questions of mathematics and short answers"
JUDGE = "GSM8K's published answers, Math-Verify, and SQuAD's script as it is described"
DIFFERENCES = (
    "names and units are keys here: Math-Verify takes x=2, y=1 and x=1, y=2 for the same",
    "a decimal is no exact value here: Math-Verify rounds both to six places",
    "a calculation that is not carried out (84/4 for 21) is no answer here",
    "an exclamation mark after a number outside a box ends a sentence, and is no factorial",
    "a dash before a number at the beginning of a line among others is a bullet, and no sign",
    "an empty message is never right here, also where SQuAD's normalisation leaves nothing",
)
SAMPLE = Path(__file__).parents[1] / "fixtures" / "gsm8k.jsonl"
WHOLE = Path(os.environ.get("MRLM_GSM8K", "/nonexistent"))
"""Folder of GSM8K's two files, for the slow test."""


def right(text: str, gold: str, question: str = "") -> bool:
    return verify(stated(text), gold, question=question) is True


def misread(files: list[Path]) -> tuple[int, Counter[tuple[str, str]]]:
    """The number of texts, and those whose verdict is wrong by way and kind."""
    count, wrong = 0, Counter[tuple[str, str]]()
    for file in files:
        for index, line in enumerate(file.read_text("utf-8").splitlines()):
            row = json.loads(line)
            gold, question = gold_of(row["answer"]), row["question"]
            worked = re.sub(r"<<.*?>>", "", row["answer"]).rpartition("####")[0].strip()
            for way in WAYS:
                count += 1
                if not right(f"{worked}\n{way.format(gold)}", gold, question):
                    wrong["right, unpaid", way] += 1
            for place, other in enumerate(neighbours(gold)):
                count += 1
                way = WAYS[(index + place) % len(WAYS)]
                if right(f"{worked}\n{way.format(other)}", gold, question):
                    wrong["wrong, paid", way] += 1
    return count, wrong


def test_rows_of_gsm8k_in_every_way(record_property: Any) -> None:
    count, wrong = misread([SAMPLE])
    assert count > 1800 and not wrong
    record_property("cases", count)


@pytest.mark.slow
def test_the_whole_of_gsm8k_in_every_way(record_property: Any) -> None:
    files = sorted(WHOLE.glob("gsm8k_*.jsonl"))
    if not files:
        pytest.skip("MRLM_GSM8K names no folder with gsm8k_train.jsonl and gsm8k_test.jsonl")
    count, wrong = misread(files)
    assert not wrong
    record_property("cases", count)


MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"
FORMS = [  # (gold, the same, not the same)
    (r"\frac{3}{4}", r"\dfrac{3}{4}", r"\frac{4}{3}"),
    (r"-\frac{3}{4}", "-3/4", r"\frac{3}{4}"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{1}{2}\sqrt{3}", r"\frac{\sqrt{2}}{2}"),
    (r"\{1, 2, 3\}", r"\{3, 1, 2\}", r"\{1, 2, 4\}"),
    (r"(-\infty, 3]", r"(-\infty,3]", r"(-\infty,3)"),
    (r"[1, 2) \cup (3, 4]", r"[1,2)\cup(3,4]", r"[1,2)\cup(3,5]"),
    ("(1, -2)", "(1,-2)", "(-2,1)"),
    (MATRIX, r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\4&3\end{pmatrix}"),
    ("x^2+2x+1", "(x+1)^2", "(x+2)^2"),
    ("e^{16}", "e^{4^2}", "e^{15}"),
    (r"2\sqrt{5}", r"\sqrt{20}", r"\sqrt{10}"),
    (r"\frac{\pi}{3}", r"\pi/3", r"\pi/4"),
    ("2^{20}", "1048576", "1048577"),
    ("10,080", "10080", "1080"),
]
LATEX_WAYS = (
    r"\boxed{{{}}}", r"So $\boxed{{{}}}$.", r"The answer is ${}$.", "**Answer:** ${}$",
    "Answer:\n\\[ {} \\]", "#### {}", "\\[\n{}\n\\]", r"\boxed{{{}}}" + "\n\\boxed{{}}",
    "$${}$$", "### Final answer\n${}$", "The final answer is: ${}$",
    r"\[ \boxed{{{}}} \]", r"\text{{ANSWER: }} {}", "Answer: {}", "{}",
    "1. so\n2. ${}$", "> ${}$", "- **${}$**", "Therefore, ${}$.", "<answer>\n${}$\n",
)  # fmt: skip


@pytest.mark.parametrize(("gold", "same", "other"), FORMS)
def test_forms_as_math_verify_judges_them(
    gold: str, same: str, other: str, record_property: Any
) -> None:
    from math_verify import parse
    from math_verify import verify as judge

    read = [parse(f"${text}$") for text in (gold, same, other)]
    assert judge(read[0], read[1]) and not judge(read[0], read[2])
    for way in LATEX_WAYS:
        assert right("We try 17 first.\n" + way.format(same), gold), way
        assert not right("We try 17 first.\n" + way.format(other), gold), way
    record_property("cases", 2 * len(LATEX_WAYS))


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("x=2, y=1", "y = 1, x = 2", True),
        ("x=2, y=1", "x=1, y=2", False),
        ("x=2, y=1", "(2, 1)", True),
        ("x=2, y=1", "1, 2", False),
        ("(2,1)", "x=1, y=2", False),
        ("2 boys, 3 girls", "3 girls and 2 boys", True),
        ("2 boys, 3 girls", "3 boys, 2 girls", False),
        ("2 m, 3 kg", "3 kg, 200 cm", True),
        ("2 m, 3 kg", "3 m, 2 kg", False),
        ("f(1)=2, f(2)=1", "f(2)=1, f(1)=2", True),
        ("f(1)=2, f(2)=1", "f(1)=1, f(2)=2", False),
        (r"x=\sqrt{2}, y=1", r"x=1, y=\sqrt{2}", False),
        ("1, 1, 2", "2, 1, 1", True),
        ("1, 1, 2", "1, 2, 2", False),
        ("1, 1, 2", "1, 2", False),
        ("-1250", "-$1,250", True),
        ("-1250", "$-1,250", True),
        ("-0.75", "−3/4", True),
        ("5", r"5^\circ", True),
        ("1/3", r"0.\overline{3}", True),
        ("e^{16}", "exp(16)", True),
        ("2^{100}", "2^{100}+1", False),
        (r"\frac{2^{60}+1}{3}", r"\frac{2^{60}+4}{3}", False),
        ("B", r"\textbf{(B)}\ 12", True),
        ("B", "B) 12", True),
        ("B", "(C)", False),
        ("B", "(A) or (B)", False),
        ("12", r"\textbf{(B)}\ 12", True),
        (r"\textbf{(B)}\ 12", "13", False),
        (r"\text{Evelyn}", "Evelyn", True),
        (r"\text{Evelyn}", "Bob", False),
    ],
)
def test_names_signs_exact_values_and_letters(gold: str, answer: str, verdict: bool) -> None:
    assert (verify(answer, gold) is True) == verdict
    assert verify(gold, gold)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("the result is −5", "-5"),
        ("the result is - 5", "-5"),
        ("the result is −3/4", "-3/4"),
        ("the result is -$1,250", "-1,250"),
        ("Total - 5", "5"),
        ("42!", "42"),
        ("5 boxes\n\\boxed 5", "5"),
        ("18.\n**18**", "18"),
        ("**18**\n\nThis took 3 steps.", "18"),
        ("The answer is 5.\nI used 3 of them.", "5"),
        ("The answer is (B).", "(B)"),
        ("The answer is Evelyn.", "Evelyn"),
        ("Answer: x=2, y=1", "x=2, y=1"),
    ],
)
def test_where_an_answer_stands(text: str, answer: str) -> None:
    assert stated(text) == answer


@pytest.mark.parametrize(
    ("text", "answers", "reward"),
    [
        ("8", None, -0.3),
        ("First, 3 + 5 = 8", None, -0.3),
        ("\\boxed{8} and then", None, 1.0),
        ("First, 3 + 5 = 8", "any", 1.0),
    ],
)
def test_an_answer_that_was_cut_off_before_its_box_is_none(
    text: str, answers: Any, reward: float
) -> None:
    world = MathReasoningEnvironment(answers=answers)
    world.reset(Task("t", "What is 3 + 5?", answer="8"))
    message = Message(text, metadata={"finish_reason": "length"})
    assert world.step({"agent": message}).rewards["agent"].value == reward


@pytest.mark.parametrize(
    ("value", "golds"),
    [
        (["3", 4], ["3", "4"]),
        (3.5, ["3.5"]),
        ("The answer is 3.", ["3"]),
        ("no solution", ["no solution"]),
        ({"a": 1}, "of type dict"),
        (True, "of type bool"),
        ("", "empty"),
        ([], "empty list"),
        ("First we add.\nThen we multiply, and so on.", "whole solution"),
        ("9^{9^{9^9}}", "too large"),
    ],
)
def test_a_gold_that_nothing_reaches_is_an_error(value: Any, golds: Any) -> None:
    if isinstance(golds, list):
        assert golds_of(value, "row 0") == golds
        assert all(verify(gold, gold) for gold in golds)
        return
    with pytest.raises(DataError, match=rf"row 0: its answer is .*{golds}|row 0.*{golds}"):
        MathReasoningEnvironment(
            dataset=[{"question": "q?", "answer": value}] * 20, eval_dataset=[]
        ).task(0)


@pytest.mark.parametrize("world", [MathReasoningEnvironment, QASolverEnv])
@pytest.mark.parametrize("answer", [0, "A", "12", 1, "B", "(b)"])
def test_a_multiple_choice_shows_its_choices(world: Any, answer: Any) -> None:
    row = {"question": "3 * 4?", "choices": ["12", "7", "9"], "answer": answer}
    settings = {"answers": "any"} if world is MathReasoningEnvironment else {}
    made = world(dataset=[row] * 20, **settings)
    task = made.task(0)
    assert "A. 12\nB. 7\nC. 9" in task.prompt[-1].content
    letter, text = ("B", "7") if str(answer) in ("1", "B", "(b)") else ("A", "12")
    expert = made.reset(task) and made.expert("agent", [])
    for reply, value in [(letter, 1.0), (f"({letter})", 1.0), (text, 1.0), (expert, 1.0),
                         ("C", 0.0), ("9", 0.0), ("the", 0.0)]:  # fmt: skip
        made.reset(task)
        assert max(0.0, made.step({"agent": Message(reply)}).rewards["agent"].value) == value, reply


def squad(text: str) -> list[str]:
    """SQuAD's normalisation, in its order: lower case, no punctuation, no articles, one space."""
    text = "".join(c for c in text.lower() if c not in r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
    return [word for word in re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", text)) if word]


@pytest.mark.parametrize("gold", ["A", "The", "+", "C++", "C#", "the Who", "7", "U.S.", "Zoë A."])
def test_short_answers_as_squads_script_scores_them(gold: str, record_property: Any) -> None:
    replies = [gold, "A", "the", "+", "C++", "who", "7.", "US", "something else", "Zoë"]
    for reply in replies:
        ours, theirs = squad(reply), squad(gold)
        assert exact_match(reply, [gold]) == (ours == theirs)
        shared = sum((Counter(ours) & Counter(theirs)).values())
        score = 2 * shared / (len(ours) + len(theirs)) if ours and theirs else ours == theirs
        assert f1(reply, [gold]) == pytest.approx(float(score))
    made = QASolverEnv(dataset=[{"question": "q?", "answer": gold}] * 20)
    made.reset(made.task(0))
    assert made.step({"agent": Message(made.expert("agent", []) or "")}).rewards["agent"].value == 1
    record_property("cases", len(replies))
