"""The math world pays for right answers and for nothing that looks like one; it never hangs."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from mrlm.core.environment import check_environment
from mrlm.core.errors import ConfigError, RewardError
from mrlm.core.types import Message, MessageType, Rollout, Task
from mrlm.data.final_answer import boxed
from mrlm.environments.math import (
    BoxedReward,
    MathProblemGenerator,
    MathReasoningEnvironment,
    verifier,
    verify,
)
from mrlm.environments.math.environment import shows_working
from mrlm.environments.math.generator import FAMILIES
from mrlm.environments.math.reading import gold_of, stated

HANGS = r"\int_0^1 e^{e^{e^{x^{x}}}} dx"


def paid(said: str, question: str = "What is 3 + 5?", answer: str = "8", **kwargs: Any) -> float:
    world = MathReasoningEnvironment(**{"answers": "any", **kwargs})
    world.reset(Task("t", question, answer=answer))
    return world.step({"agent": Message(said, MessageType.MODEL)}).rewards["agent"].value


def test_computer_algebra_has_the_seconds_that_the_world_says() -> None:
    known = {"question": "Shorten it.", "answer": "y+41"}  # a verdict that nothing remembers
    said = r"\boxed{\frac{y^2-1681}{y-41}}"
    assert paid(said, timeout=1e-9, **known) < 0 < paid(said, timeout=60.0, **known)


# -- rewards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("\\boxed{8}", 1.0), ("The answer is 8.", 1.0), ("3 + 5 = 8", 1.0), ("8", 1.0),
        ("I get **8**", 1.0), ("\\boxed{8.0}", 1.0), ("\\boxed{9}", 0.0),
        ("\\boxed{8} no wait, \\boxed{7}", 0.0), ("3/8", 0.0), ("It is 3 / 8", 0.0),
        ("\\boxed{3 + 5}", 0.0), ("3 + 5", 0.0), ("16/2", 0.0), ("\\boxed{2^3}", 0.0),
        ("\\boxed{\\sqrt{64}}", 0.0), ("\\boxed{7 \\text{ or } 8}", 0.0), ("\\boxed{7, 8}", 0.0),
        ("\\boxed{8, 8}", 0.0), ("\\boxed{\\{8, 8\\}}", 0.0),
        ("\\boxed{1, 2, 3, 4, 5, 6, 7, 8, 9}", 0.0), ("1 2 3 4 5 6 7 8 9", 0.0),
        ("\\boxed{x \\ge 8}", 0.0), ("\\boxed{8 million}", 0.0), ("no idea", -0.3), ("", -0.3),
        ("\\boxed{", -0.3), ("\\boxed{}", -0.3), ("9**9**9", -0.3), ("\\boxed{9^{9^{9}}}", -0.3),
        ("\\boxed{" + "8" * 1_000_000 + "}", -0.3),
        ("\\boxed{" + "\\frac{1}{" * 3000 + "2" + "}" * 3001, -0.3), ("\\boxed{99999999!}", -0.3),
        ("\\boxed{__import__('os').system('true')}", 0.0),
    ],
)  # fmt: skip
def test_rewards(said: str, reward: float) -> None:
    started = time.process_time()
    assert paid(said) == reward
    assert time.process_time() - started < 0.5  # none of these needs computer algebra


def test_ordinary_answers_start_no_process() -> None:
    code = (
        "from mrlm.environments.math import MathReasoningEnvironment, MathProblemGenerator\n"
        "from mrlm.environments.math import verifier\n"
        "from mrlm import Message\n"
        "world = MathReasoningEnvironment(MathProblemGenerator((1, 5)))\n"
        "for seed in range(200):\n"
        "    for words in (None, '5', 'x > 3', 'zz', '1, 2'):\n"
        "        world.reset(world.task(seed))\n"
        "        said = world.expert('agent', []) if words is None else words\n"
        "        world.step({'agent': Message(said)})\n"
        "assert not verifier._shared.pids"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_working_is_paid_only_with_a_right_answer() -> None:
    show = {"require_solution": True}
    assert paid("3 + 5 = 8\n\\boxed{8}", **show) == pytest.approx(1.2)
    assert paid("\\boxed{8}", **show) == 1.0
    assert paid("3 + 5 = 9\n\\boxed{8}", **show) == 1.0  # false working
    assert paid("1 + 1 = 2\n\\boxed{8}", **show) == 1.0  # working about nothing asked
    assert paid("because because because because\n\\boxed{8}", **show) == 1.0
    assert paid("3 + 5 = 8\n\\boxed{9}", **show) == 0.0
    assert paid("3 + 5 = 8\n\\boxed{8}") == 1.0


def test_working_in_words_counts_if_it_is_about_the_question() -> None:
    question = "How far does the train travel?"
    words = "The train keeps one speed all day so we multiply its speed by hours of travel"
    assert shows_working(words, question)
    assert not shows_working("lorem ipsum " * 50, question)
    assert not shows_working("=" * 100_000, question)


def test_components_say_what_a_reward_was_made_of() -> None:
    world = MathReasoningEnvironment(require_solution=True)
    world.reset(Task("t", "What is 3 + 5?", answer="8"))
    reward = world.step({"agent": Message("3 + 5 = 8 so \\boxed{8}")}).rewards["agent"]
    assert reward.components == {"correct": 1.0, "unparseable": 0.0, "reasoning": 0.2}


def test_attempts_go_on_until_right_and_feedback_gives_nothing_away() -> None:
    world = MathReasoningEnvironment(max_attempts=3)
    world.reset(Task("t", "What is 30 + 50?", answer="80"))
    rewards, shown = [], []
    for said in ("\\boxed{7}", "hm", "\\boxed{80}"):
        result = world.step({"agent": Message(said)})
        rewards.append(result.rewards["agent"].value)
        shown.append(result.observations["agent"].messages[0].content)
        assert result.done == (said == "\\boxed{80}")
    assert rewards == [0.0, -0.3, 1.0]
    assert not any("80" in words for words in shown) and "attempt 2 of 3" in shown[0]
    last = MathReasoningEnvironment(max_turns=1)
    last.reset(Task("t", "What is 30 + 50?", answer="80"))
    result = last.step({"agent": Message("\\boxed{81}")})
    assert result.done and "80" not in repr(result)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"difficulty_range": [3, 1]}, "difficulty_range"),
        ({"difficulty_range": [0, 2]}, "difficulty_range"),
        ({"difficulty_range": [1]}, "difficulty_range"),
        ({"families": ["algebr"]}, "did you mean 'algebra'"),
        ({"families": []}, "at least one"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 2, "max_turns": 3}, "max_turns=3"),
        ({"timeout": 0}, "timeout"),
        ({"dataset": [{"question": "q", "answer": "1"}], "families": ["algebra"]}, "not both"),
        ({"generator": MathProblemGenerator(), "difficulty_range": [1, 1]}, "generator"),
    ],
)
def test_impossible_arguments_are_named(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MathReasoningEnvironment(**kwargs)


# -- problems --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_every_family_is_solvable_at_every_level(family: str, level: int) -> None:
    generator = MathProblemGenerator((level, level), families=[family])
    world = MathReasoningEnvironment(generator, require_solution=True)
    for seed in range(40):
        problem = generator.problem(seed)
        assert (problem.family, problem.difficulty) == (family, level)
        world.reset(world.task(seed))
        paid = world.step({"agent": Message(world.expert("agent", []) or "")}).rewards["agent"]
        assert paid.value == pytest.approx(1.2), problem


def test_problem_answers_are_right() -> None:
    import sympy

    for seed in range(60):
        problem = MathProblemGenerator((1, 5), seed=3, families=["arithmetic"]).problem(seed)
        expression = problem.question.removeprefix("What is ").split("?")[0].split(",")[0]
        assert sympy.sympify(expression, rational=True) == sympy.sympify(
            problem.answer, rational=True
        )
        problem = MathProblemGenerator((1, 5), seed=3, families=["algebra"]).problem(seed)
        text = problem.question.rsplit(": ", 1)[-1].removeprefix("Find all x with ").rstrip(".")
        text = text.replace("^", "**").replace("x", "*x").replace(" *x", " 1*x").removeprefix("*")
        x = sympy.Symbol("x")
        if "=" in text:
            left, right = (sympy.sympify(side.strip()) for side in text.split("="))
            assert {str(r) for r in sympy.solve(left - right, x)} == set(problem.answer.split(", "))
        else:
            solved = sympy.solve_univariate_inequality(sympy.sympify(text), x, relational=False)
            wanted = sympy.solve_univariate_inequality(
                sympy.sympify(problem.answer), x, relational=False
            )
            assert solved == wanted, problem


# -- data sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "answer"),
    [
        ("She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072", "1072"),
        ("We find $x = \\boxed{\\frac{1}{2}}$ as wanted.", "\\frac{1}{2}"),
        (" 12 ", "12"),
        (7, "7"),
    ],
)
def test_answers_of_known_data_sets(column: Any, answer: str) -> None:
    assert gold_of(column) == answer


def test_a_data_set_splits_and_plays() -> None:
    rows = [
        {"problem": f"What is {i} + 1?", "solution": f"It is \\boxed{{{i + 1}}}."}
        for i in range(50)
    ]
    world = MathReasoningEnvironment(dataset=rows)
    train, held = world.num_tasks("train"), world.num_tasks("eval")
    assert train and held and train + held == 50
    task = world.task(2, "eval")
    assert task.prompt[0].content.startswith("What is ") and "boxed" in task.prompt[0].content
    world.reset(task)
    assert world.step({"agent": Message(f"\\boxed{{{task.answer}}}")}).rewards["agent"].value == 1.0
    check_environment(world)
    assert world.spawn()._table is world._table


def test_a_row_without_an_answer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"row 0: needs an answer .*it has question, reply"):
        MathReasoningEnvironment(dataset=[{"question": "1+1?", "reply": "2"}]).task(0)


# -- verifying -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("1/2", "0.5", True), ("1/2", "50\\%", True), ("1/2", "\\frac12", True),
        ("5/2", "2\\frac{1}{2}", True), ("1/3", "0.333333", True), ("1/3", "0.33", False),
        ("1234", "1,234", True), ("72", "72\\text{ clips}", True), ("72", "72 clips", True),
        ("1200", "1.2 \\times 10^3", True), ("-5", "−5", True), ("x > 3", "3 < x", True),
        ("x > 3", "x \\gt 3.0", True), ("x > 3", "x \\ge 3", False), ("x > 3", "2x + 3 > 9", False),
        ("x > 3", "y > 3", False), ("x > 3", "(3, oo)", True),
        ("x > 3", "x \\in (3, \\infty)", True), ("2, 5", "x = 5 or x = 2", True),
        ("2, 5", "\\{5, 2\\}", True), ("2, 5", "2", False), ("2, 5", "2, 5, 7", False),
        ("x^2+2x+1", "(x+1)^2", True), ("x^2+2x+1", "(x+2)^2", False), ("x^{12}", "x^12", True),
        ("2\\sqrt{3}", "2*sqrt(3)", True), ("\\frac{\\pi}{2}", "pi/2", True),
        ("\\frac{\\pi}{2}", "1.5707963", False), ("\\frac{\\pi}{2}", "1.5707963267948966", False),
        ("\\frac{\\pi}{2}", "\\approx 1.5707963", False),
        ("\\frac{\\pi}{2}", "\\frac{\\pi}{2} \\approx 1.5707963", True),
        ("\\sqrt{2}", "1.41421356237", False), ("2\\pi", "6.283185307", False),
        ("e^2", "7.38905609893", False), ("\\frac{\\pi}{2}", "0.5\\pi", True),
        ("\\sqrt{2}", "2^{1/2}", True), ("5", "5%", False), ("5", "5\\%", False),
        ("0.05", "5%", True), ("5%", "0.05", True), ("5%", "5", True), ("[1, 2)", "[1,2)", True),
        ("3", "\\infty", False), ("x+1", "x + (", None),
    ],
)  # fmt: skip
def test_verify(gold: str, answer: str, right: bool | None) -> None:
    assert verify(answer, gold) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("3 km", "3 km", True),
        ("3 km", "3", True),  # taken to be in the unit that was asked for
        ("3 km", "3 mm", False),
        ("3 km", "3mm", False),
        ("3 km", "3000 m", True),
        ("3 km", "3,000 metres", True),
        ("3 km", "3000 km", False),
        ("3 km", "3 kg", False),
        ("3 km", "3 km^2", False),
        ("3 km", "3 km per hour", False),
        ("3 km", "3 km long", True),
        ("3 km", "3 km plus 2 mm", False),
        ("3 km", "3 apples", False),
        ("3\\text{ km}", "3\\text{ mm}", False),
        ("3\\text{ km}", "3\\mathrm{km}", True),
        ("12\\text{ cm}^2", "12 square centimeters", True),
        ("12\\text{ cm}^2", "12\\text{ cm}", False),
        ("12\\text{ cm}^2", "12 cm²", True),
        ("60 miles per hour", "60 miles/hour", True),
        ("60 miles per hour", "1 mile per minute", True),
        ("60 miles per hour", "60 miles", False),
        ("2 hours", "120 min", True),
        ("2 hours", "2 minutes", False),
        ("5 dollars", "5 cents", False),
        ("5 dollars", "$5", True),
        ("1/2 m", "50 cm", True),
        ("2\\sqrt{3}\\text{ cm}", "2\\sqrt{3}\\text{ m}", False),
        ("5 apples", "5 apples", True),
        ("5 apples", "5 fruits", True),  # nouns are not compared
        ("5 apples", "5 km", False),
        ("5", "5 km", True),  # the right answer says nothing of a unit
        ("50%", "50 percent", True),
    ],
)
def test_units_must_mean_the_same(gold: str, answer: str, right: bool) -> None:
    assert verify(answer, gold) is right
    assert paid(f"\\boxed{{{answer}}}", "How far?", gold) == float(right)


@pytest.mark.parametrize("sign", ["%", "\\%", " percent"])
def test_a_percent_sign_counts_for_nothing_only_where_percents_are_asked_for(sign: str) -> None:
    asked = ["What percent of 40 is 2?", "Give it in %.", "Give the percentage.", "In per cent?"]
    for question in asked:
        assert verify(f"5{sign}", "5", question=question) is True
    assert verify(f"5{sign}", "5", question="How many apples are left?") is False
    assert verify(f"50{sign}", "5", question=asked[0]) is False


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("\\boxed{4} no, \\boxed{5}", True),
        ("\\boxed{5} no, \\boxed{4}", False),
        ("\\boxed{5} or \\boxed{", False),
        ("\\fbox{4} \\boxed{5}", True),
        ("\\boxed{5} so 4", True),
        ("\\boxed{4} answer is 5", False),
    ],
)
def test_the_last_box_counts(text: str, right: bool) -> None:
    rollout = Rollout().add_messages(Message("2+3?"), Message(text, MessageType.MODEL))
    assert BoxedReward()([rollout], ["5"]) == [float(right)]
    assert (paid(text, "2+3?", "5") > 0) is right


def test_copying_the_question_is_no_answer() -> None:
    question = "Expand (x+1)^2."
    assert verify("(x + 1)^2", "x^2+2x+1", question=question) is False
    assert verify("x^2+2x+1", "x^2+2x+1", question=question) is True
    assert verify("1/2", "1/2", question="Which is larger, 3/8 or 1/2?") is True
    assert verify("6/8", "3/4", question="Simplify 6/8.") is False


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 7 - 5 = 2", "2"), ("#### 72", "72"), ("Answer: x > 3", "x > 3"),
        ("the answer is x^2+1", "x^2+1"), ("I weigh 12kg", "12kg"),
        ("I walked 3 mm along it", "3 mm"), ("I need 3 in all", "3"), ("it is 2x", None),
        ("Therefore the result is 1,234.", "1,234"),
        ("\\boxed{\\frac{1}{2}} and more", "\\frac{1}{2}"), ("\\boxed{1", None),
        ("The answer is 8.\n**9**", "9"), ("The answer is 8.\nTotal = 9", "9"),
        ("The answer is 8.\nSo the total is 9.", "9"),
        ("The answer is 8.\nAnswer:\n\\[ 9 \\]", "9"),
        ("The answer is 8.\nCheck: 32 * 0.25 = 8, of 40", "8"),
        ("The answer is 8.\n8/.25 = 32", "8"), ("#### 8\n9", "8"),
    ],
)  # fmt: skip
def test_where_an_answer_stands(text: str, answer: str | None) -> None:
    assert stated(text) == answer


def test_a_hang_is_killed_at_the_deadline_and_the_next_answer_is_right() -> None:
    assert verify("(x+100)^2", "x^2+200x+10000") is True  # not known: a worker is there
    before = verifier._shared.pids
    assert verify(HANGS, "x+1", timeout=0.5) is None  # it takes hours
    gone = set(before) - set(verifier._shared.pids)
    assert gone and not any(psutil.pid_exists(pid) for pid in gone)
    assert verify("(x+2)^2", "x^2+4x+4") is True


def test_a_worker_that_dies_is_replaced_and_costs_no_reward() -> None:
    assert verify("(x+3)^2", "x^2+6x+9") is True
    for pid in verifier._shared.pids:
        os.kill(pid, 9)
    assert verify("(x+4)^2", "x^2+8x+16") is True


def test_many_threads_may_verify_at_once() -> None:
    def one(i: int) -> bool | None:
        return verify(f"(x+{i})^2", f"x^2+{2 * i}x+{i * i if i % 3 else i * i + 1}")

    before = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(1, 40))) == [bool(i % 3) for i in range(1, 40)]
    assert threading.active_count() < before + 10
    assert len(verifier._shared.pids) <= 2


def test_workers_end_with_the_program() -> None:
    code = (
        "from mrlm.environments.math import verify, verifier\n"
        "assert verify('(x+1)^2', 'x^2+2x+1')\nprint(*verifier._shared.pids)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids and not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_do_not_see_secrets() -> None:
    os.environ["MRLM_TEST_SECRET"] = "hidden"
    own = verifier.Verifier(1)
    try:
        assert own.compare("(x+1)^2", "x^2+2x+1") == "right"
        (pid,) = own.pids
        assert "MRLM_TEST_SECRET" not in psutil.Process(pid).environ()
    finally:
        own.close()
        del os.environ["MRLM_TEST_SECRET"]


# -- the reward over rollouts ----------------------------------------------------------------------


def rollout(*said: str) -> Rollout:
    made = Rollout().add_messages(
        Message("Answer in \\boxed{}.", MessageType.SYSTEM), Message("What is 2 + 3?")
    )
    return made.add_messages(*(Message(words, MessageType.MODEL) for words in said))


def test_boxed_reward_reads_the_last_model_message() -> None:
    rollouts = [
        rollout("\\boxed{5}"),
        rollout("\\boxed{5}", "\\boxed{6}"),
        rollout("It is 5"),
        rollout("\\boxed{2 + 3}"),
        rollout(),
    ]
    rollouts[0].add_messages(Message("\\boxed{4}"))  # what a user says is no answer
    assert BoxedReward()(rollouts, ["5"] * 5) == [1.0, 0.0, 0.0, 0.0, 0.0]
    shaped = BoxedReward(correct=2.0, wrong=-1.0, unparseable=-2.0, plain=True)
    assert shaped(rollouts, ["5"] * 5) == [2.0, -1.0, 2.0, -1.0, -2.0]
    assert boxed("none") is None


def test_boxed_reward_needs_an_answer_for_every_rollout() -> None:
    with pytest.raises(RewardError, match="2 rollouts but 1 answers"):
        BoxedReward()([rollout("1"), rollout("2")], ["1"])
    with pytest.raises(ConfigError, match="wrong"):
        BoxedReward(wrong=float("nan"))
