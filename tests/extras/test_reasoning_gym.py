"""Tasks of reasoning-gym, with the library itself (`make test-extras`)."""

import threading
from pathlib import Path
from typing import Any

import pytest
from worlds import can_be_forked, keeps_the_contract, played, trains

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.connectors.reasoning_gym import ReasoningGymEnvironment, _library

reasoning_gym = pytest.importorskip(
    "reasoning_gym", reason="needs the extra reasoning_gym: make test-extras"
)
SUMS: dict[str, Any] = {"dataset": "chain_sum", "config": {"max_terms": 3, "max_digits": 2}}
EVALUATED = [
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "simple_integration",
    "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown",
]  # fmt: skip
"""Generators whose scorers evaluate the answer."""
NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Generators that do not say what the right answer is."""


def paid(world: ReasoningGymEnvironment, text: str, seed: int = 3) -> Any:
    world.reset(world.task(seed))
    return world.step({"agent": Message(text)}).rewards["agent"]


def test_contract() -> None:
    keeps_the_contract(lambda: ReasoningGymEnvironment(**SUMS))
    can_be_forked(ReasoningGymEnvironment(**SUMS, max_attempts=3), "<answer>0</answer>", "7")


def test_every_generator_gives_tasks_and_its_own_answer_earns_all() -> None:
    from reasoning_gym.factory import DATASETS

    names = sorted(set(DATASETS) - {"composite"})
    assert len(names) > 100
    without = set()
    for name in names:
        world = ReasoningGymEnvironment(name, timeout=60.0)
        task = world.task(1)
        assert task.prompt[-1].content and task == world.task(1)
        world.reset(task)
        text = world.expert("agent", [])
        if text is None:
            without.add(name)
            continue
        reward = world.step({"agent": Message(text)}).rewards["agent"]
        assert reward.value == 1.0 == reward.components["score"], (name, task.answer)
    assert without <= NO_ANSWER


def test_what_cannot_be_read_costs_the_penalty() -> None:
    sums = ReasoningGymEnvironment(**SUMS, malformed=0.25)
    right = sums.task(3).answer
    for text in ("", right, "<answer></answer>", f"<answer>{right}", "<answer>nan</answer>"):
        reward = paid(sums, text)
        assert reward.value == -0.25 and reward.components == {"score": 0.0, "malformed": 1.0}
    complex_numbers = ReasoningGymEnvironment("complex_arithmetic")
    assert paid(complex_numbers, "<answer>nan</answer>").value < 0  # its scorer would pay 1
    factors = ReasoningGymEnvironment("prime_factorization")
    assert paid(factors, "<answer>yes</answer>").value < 0  # its scorer raises an error
    bare = ReasoningGymEnvironment(**SUMS, tags=False)
    assert paid(bare, right).value == 1.0 and paid(bare, " ").value < 0


def test_attempts_add_up_to_the_best_of_them() -> None:
    world = ReasoningGymEnvironment("countdown", max_attempts=3)
    task = world.task(0)
    world.reset(task)
    said = ["<answer>1 + 1</answer>", "nothing", f"<answer>{task.answer}</answer>"]
    steps = [world.step({"agent": Message(text)}) for text in said]
    values = [step.rewards["agent"].value for step in steps]
    assert values == pytest.approx([0.05, -0.1, 0.95])
    assert [step.done for step in steps] == [False, False, True]
    assert "0.05" in steps[0].observations["agent"].messages[0].content
    assert "<answer>" in steps[1].observations["agent"].messages[0].content


@pytest.mark.parametrize("name", EVALUATED)
def test_no_scorer_evaluates_what_a_model_wrote(name: str) -> None:
    touched = Path("touched").absolute()
    world = ReasoningGymEnvironment(name)
    world.reset(world.task(0))
    for text in (
        f"__import__('os').system('touch {touched}')",
        f"open({str(touched)!r}, 'w')",
        f"[open({str(touched)!r}, 'w')]",
        f"exec(\"open('{touched}', 'w')\")",
        f"(lambda: open({str(touched)!r}, 'w'))()",
        "().__class__.__base__.__subclasses__()",
        "oracle_answer",
        "entry['answer']",
        "9**9**9**9",
        "((9**99)**99)**99",
        "factorial(999999999)",
    ):
        reward = paid(world, f"<answer>{text}</answer>", 0)
        assert reward.value <= 0.0 and reward.components["malformed"], text
    assert not touched.exists()


def test_a_scorer_that_hangs_is_killed_and_costs_the_penalty() -> None:
    world = ReasoningGymEnvironment("puzzle24", timeout=0.3)
    before = _library.pid
    world.reset(world.task(0))
    text = "exp(exp(exp(exp(9))))" + "-exp(exp(exp(9)))" * 8
    assert paid(world, f"<answer>{text}</answer>", 0).value <= 0.01
    world = ReasoningGymEnvironment(**SUMS)
    assert paid(world, f"<answer>{world.task(3).answer}</answer>").value == 1.0
    assert _library.pid is not None and before is not None


def test_held_out_questions_are_never_trained_on() -> None:
    world = ReasoningGymEnvironment("chain_sum", {"max_terms": 2, "max_digits": 1})
    train = {world.task(seed).prompt[-1].content for seed in range(150)}
    held = {world.task(seed, "eval").prompt[-1].content for seed in range(50)}
    assert not train & held and len(held) > 5


def test_another_seed_gives_other_questions() -> None:
    one, two = (ReasoningGymEnvironment(**SUMS, seed=seed) for seed in (0, 1))
    assert [one.task(i).answer for i in range(9)] != [two.task(i).answer for i in range(9)]


def test_many_threads_may_ask() -> None:
    world = ReasoningGymEnvironment(**SUMS)
    found: list[float] = []

    def work(seed: int) -> None:
        found.append(played(world, seed, lambda w, s, m: w.expert(s, m))[1]["agent"])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0] * 16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dataset": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"max_termz": 2}}, "max_termz"),
        ({"dataset": "chain_sum", "config": {"min_terms": -1}}, "min_terms"),
        ({"dataset": "chain_sum", "config": {"seed": 1}}, "seed"),
        ({"dataset": "chain_sum", "malformed": -1}, "malformed"),
        ({"dataset": "chain_sum", "max_attempts": 0}, "max_attempts"),
    ],
)
def test_what_cannot_be_played_says_so(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ReasoningGymEnvironment(**arguments)


def test_two_steps_of_training_from_yaml(tmp_path: Path) -> None:
    trains(tmp_path, {"env_type": "reasoning_gym", "tags": False, **SUMS})
