"""Answers as they are written, and whether graders and loaders read them."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from math_verify import parse
from math_verify import verify as judge

from mrlm.core.errors import DataError
from mrlm.core.types import Message, Task
from mrlm.environments.math import MathReasoningEnvironment, verify
from mrlm.environments.math.reading import stated
from mrlm.environments.qa import QASolverEnv
from places import FIXTURES

TITLE = "Answers in mathematics, and golds"
JUDGE = "GSM8K's own solutions and answers, Math-Verify on the forms of MATH, SQuAD's normalisation"
DIFFERENCES = (
    "an answer that is not worked out (`16/2` for 8) is wrong, since the question wants the result",
    "a list of guesses that holds the right answer is wrong",
    "names, units and multiplicity belong to a list: Math-Verify compares sets of values",
    "a decimal needs six right places, and is no answer where the right one is irrational",
    "a right answer of which SQuAD's normalisation leaves nothing (`The`) is compared as it is, so "
    "that an empty answer is not right",
)
ROWS = [json.loads(line) for line in (FIXTURES / "rows" / "gsm8k.jsonl").open(encoding="utf-8")]
WAYS = {
    "bare": "{a}",
    "bold": "**{a}**",
    "bold and italic": "***{a}***",
    "underlined": "__{a}__",
    "bullet": "- {a}",
    "bold bullet": "* **{a}**",
    "numbered": "3. **{a}**",
    "heading": "### {a}",
    "quote": "> {a}",
    "code": "`{a}`",
    "brackets": "[{a}]",
    "parentheses": "({a})",
    "table": "| Total | {a} |",
    "display": r"\[ {a} \]",
    "dollars": "$${a}$$",
    "hashes": "#### {a}",
    "sentence": "So the total is {a}.",
    "exclamation": "The answer is {a}!",
    "announced": "Answer: **{a}**",
    "announced before": "Answer:\n\\[ {a} \\]",
    "bold announcement": "**Final Answer: {a}**",
    "equation": "Total = {a}",
    "currency": "The answer is ${a}.",
    "unit": "The answer is {a} dollars.",
    "box": r"\boxed{{{a}}}",
    "box in a formula": r"$\boxed{{{a}}}$",
    "labelled box": r"\boxed{{\text{{ANSWER: }} \${a}}}",
}


def solution(row: dict[str, str]) -> tuple[str, str]:
    """GSM8K's own working and answer."""
    working, _, answer = row["answer"].rpartition("####")
    return re.sub(r"<<.*?>>", "", working).strip(), answer.strip().replace(",", "")


@pytest.mark.parametrize("way", WAYS)
def test_a_solution_of_gsm8k_is_paid_however_its_answer_is_written(
    way: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", len(ROWS))
    for row in ROWS:
        working, answer = solution(row)
        text = f"{working}\n{WAYS[way].format(a=answer)}"
        assert verify(stated(text), answer, question=row["question"]), text[-80:]


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_neighbour_is_not(way: str, record_property: Callable[[str, object], None]) -> None:
    cases = 0
    for row in ROWS:
        working, answer = solution(row)
        if not answer.lstrip("-").isdigit():
            continue
        value, draw = int(answer), random.Random(answer)
        wrong = {value + 1, value - 1, value * 10 + 1, -value or 7, value + draw.randint(2, 9)}
        for other in wrong - {value}:
            text = f"{working}\n{WAYS[way].format(a=other)}"
            assert not verify(stated(text), answer, question=row["question"]), text[-80:]
            cases += 1
    record_property("cases", cases)


RIGHT = [
    ("x=1, y=2", "x=1, y=2"), ("y=2, x=1", "x=1, y=2"), ("2, 3", "x=2, y=3"),
    ("2 girls, 3 boys", "3 boys, 2 girls"), ("2 m, 3 kg", "2 m, 3 kg"),
    ("f(2)=1, f(1)=2", "f(1)=2, f(2)=1"), ("x = 2 or x = 5", "2, 5"),
    ("the result is −5", "-5"), ("The result is - 5", "-5"), ("so −3/4", "-3/4"),
    ("It is -$1,250", "-1250"), ("The profit is −$1,250.", "-1250"),
    (r"\boxed{5} so \boxed{}", "5"), (r"\boxed 5", "5"), (r"\boxed{5^\circ}", "5"),
    (r"5^{\circ}", "5"), (r"\boxed{0.\overline{3}}", "1/3"), (r"\boxed{e^{16}}", "exp(16)"),
    ("(B)", "B"), ("The answer is (B).", "B"), (r"\boxed{\textbf{(B)}\ 12}", "B"),
    ("B. Paris", "B"), ("The answer is **(B) 12**", "B"), (r"\boxed{\text{even}}", r"\text{even}"),
    ("1. We add.\n2. Then.\n3. **12**", "12"), (r"\text{ANSWER: } \$460", "460"),
    ("- **18**", "18"), ("It is exp(16).", "e^{16}"), (r"0.\overline{3}", r"\frac13"),
    ("It is 1+sqrt(5).", r"1+\sqrt{5}"), (r"It is 2\sqrt{3}.", r"\sqrt{12}"),
    ("It is √5.", "sqrt(5)"), ("The area is 18 m^2.", "18"), ("so f(2) is 3", "3"),
]  # fmt: skip
WRONG = [
    ("x=2, y=1", "x=1, y=2"), ("2 boys, 3 girls", "3 boys, 2 girls"), ("2 kg, 3 m", "2 m, 3 kg"),
    ("f(1)=1, f(2)=2", "f(1)=2, f(2)=1"), (r"\boxed{1,1,2}", "1,2,2"), (r"\boxed{1,2}", "1,1,2"),
    ("3, 2", "x=2, y=3"), ("the result is 5", "-5"), ("the result is −5", "5"),
    ("the answer is - 5", "5"), ("It is -$1,250", "1250"), ("so −3/4", "3/4"), ("(B)", "C"),
    ("(A) or (B)", "B"), (r"\boxed{A, B}", "B"), (r"\boxed{5!}", "5"), ("9**9**9", "9"),
    (r"\boxed{0.33}", "1/3"), (r"\boxed{0.\overline{3}}", "0.3"), (r"\boxed{e^{15}}", "exp(16)"),
    ("It is sqrt(2).", "2"), (r"It is \sqrt{2}.", "2"), ("so log(5)", "5"), ("It is x^3.", "3"),
    ("it is f(3)", "3"), ("It is √5", "5"), ("It is x_3", "3"), ("It is sqrt(2)/2.", "2"),
    ("18 or 19", "18"), (r"\boxed{5^\circ}", "50"), (r"\boxed{2^{100}+1}", "2^{100}"),
]  # fmt: skip
MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"
NOTATION = [
    (r"\frac{1}{2}", r"\frac{2}{4}", True), (r"\frac{3}{4}", "0.75", True),
    (r"\sqrt{8}", r"2\sqrt{2}", True), ("(3, 4)", "(3,4)", True), ("(4, 3)", "(3,4)", False),
    ("[1, 2)", "[1,2)", True), ("(1, 2]", "[1,2)", False), ("[1,2]", "(1,2)", False),
    (r"\{1, 2, 3\}", r"\{3, 1, 2\}", True), (r"\{1, 2\}", r"\{1, 3\}", False),
    (r"(-\infty, 3)", r"(-\infty,3)", True), (r"x^2+2x+1", "(x+1)^2", True),
    ("x^2+2x+2", "(x+1)^2", False), (r"\frac{\pi}{2}", r"\pi/2", True), ("2i+3", "3+2i", True),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", MATRIX, True),
    (r"\begin{pmatrix}1&2\\3&5\end{pmatrix}", MATRIX, False),
    (r"10^{-9}", "0", False), (r"\log 2", r"\log 3", False), ("3^{40}+1", "3^{40}", False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gold"), RIGHT)
def test_a_right_answer_is_right(text: str, gold: str) -> None:
    assert verify(stated(text), gold)


@pytest.mark.parametrize(("text", "gold"), WRONG)
def test_a_wrong_answer_is_wrong(text: str, gold: str) -> None:
    assert not verify(stated(text), gold)


@pytest.mark.parametrize(("answer", "gold", "equal"), NOTATION)
def test_forms_of_math_are_judged_as_by_math_verify(answer: str, gold: str, equal: bool) -> None:
    verdict = bool(verify(stated(rf"\boxed{{{answer}}}"), gold))
    assert verdict is equal
    assert judge(parse(f"${gold}$"), parse(f"${answer}$")) is equal


# -- what a loader says ----------------------------------------------------------------------------


def rows_of(env: type[Any], *answers: Any, **more: Any) -> Any:
    rows = [{"question": f"Q{i}?", "answer": answer, **more} for i, answer in enumerate(answers)]
    return env(dataset=rows, eval_dataset=rows)


def expert_reward(env: Any, task: Task) -> float:
    (agent,) = env.agents
    env.reset(task)
    return env.step(Message(env.expert(agent, []))).rewards[agent].value


@pytest.mark.parametrize("answer", [
    "18", 18, 18.0, "#### 1,234", r"so \boxed{\frac{1}{2}}", "The answer is 3.", ["5", "7"],
    "x > 3", "Paris", r"\text{even}", "2, 5", "exp(16)", "-5", r"\begin{pmatrix}1&2\end{pmatrix}",
])  # fmt: skip
def test_the_expert_of_a_row_is_paid(answer: Any) -> None:
    env = rows_of(MathReasoningEnvironment, answer)
    assert expert_reward(env, env.task(0)) == 1.0


@pytest.mark.parametrize("answer", ["A", "The", "+", "C++", "a an the", "Paris", ["Rome", "The"]])
def test_so_is_that_of_a_short_answer(answer: Any) -> None:
    env = rows_of(QASolverEnv, answer)
    task = env.task(0)
    assert expert_reward(env, task) == 1.0
    env.reset(task)
    assert env.step(Message("")).rewards["agent"].value == 0.0


@pytest.mark.parametrize(("env", "answer"), [
    (MathReasoningEnvironment, {"value": 3}), (MathReasoningEnvironment, ""),
    (MathReasoningEnvironment, []), (QASolverEnv, ""), (QASolverEnv, "word " * 60),
    (MathReasoningEnvironment, "First we add the two numbers and then we look at what is left of "
                               "them, which is what was to be shown"),
])  # fmt: skip
def test_a_gold_that_nothing_can_equal_is_an_error(env: type[Any], answer: Any) -> None:
    with pytest.raises(DataError, match=r"row 0.*answer"):
        rows_of(env, answer).task(0)


@pytest.mark.parametrize("env", [MathReasoningEnvironment, QASolverEnv])
@pytest.mark.parametrize(("choices", "answer"), [
    (["Rome", "Paris", "Oslo"], 1),
    (["Rome", "Paris", "Oslo"], "B"),
    (["Rome", "Paris", "Oslo"], "Paris"),
    ({"text": ["Rome", "Paris"], "label": ["1", "2"]}, "2"),
])  # fmt: skip
def test_multiple_choice_is_shown_and_paid(env: type[Any], choices: Any, answer: Any) -> None:
    world = rows_of(env, answer, choices=choices)
    task = world.task(0)
    assert "(A) Rome\n(B) Paris" in task.prompt[-1].content
    for text, value in ((r"\boxed{B}", 1.0), (r"\boxed{(B) Paris}", 1.0), (r"\boxed{A}", 0.0)):
        world.reset(task)
        said = text if env is MathReasoningEnvironment else text[7:-1].replace("(B) Paris", "Paris")
        assert world.step(Message(said)).rewards["agent"].value == value
    assert expert_reward(world, task) == 1.0
    with pytest.raises(DataError, match="none of its"):
        rows_of(env, 7, choices=choices).task(0)


def test_a_box_is_needed_where_one_is_asked_for() -> None:
    task = Task("t", "What is 3 + 5?", answer="8")
    asked, free = MathReasoningEnvironment(), MathReasoningEnvironment(answers="any")
    for env, text, value in (
        (asked, "It is 8", -0.3),
        (asked, r"It is \boxed{8}, and", 1.0),
        (free, "It is 8", 1.0),
        (MathReasoningEnvironment(instruction=""), "It is 8", 1.0),
    ):
        env.reset(task)
        assert env.step(Message(text)).rewards["agent"].value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("Green", 1.0), ("The answer is **green**.", 1.0), ("red", -0.3), ("not green", -0.3)],
)
def test_words_are_paid_where_they_are_the_answer(text: str, value: float) -> None:
    env = MathReasoningEnvironment(instruction="")
    env.reset(Task("t", "Which colour?", answer=["B", "green"]))
    assert env.step(Message(text)).rewards["agent"].value == value
