"""Questions of reasoning_gym beside the library's own loop: equal texts and equal scores."""

from __future__ import annotations

from typing import Any

import pytest

from mrlm.core.types import Message
from mrlm.environments.reasoning_gym import ReasoningGymEnvironment, harmless

TITLE = "Questions of reasoning_gym"
JUDGE = "reasoning_gym (create_dataset and score_answer)"
DIFFERENCES = (
    "an answer on which a scorer raises, or would evaluate as code, is malformed: it costs instead "
    "of ending the run",
)
SAMPLE = {
    *("chain_sum", "countdown", "gsm_symbolic", "knights_knaves", "leg_counting", "maze"),
    *("mini_sudoku", "number_sorting", "prime_factorization", "simple_equations", "word_ladder"),
}


def generators() -> list[Any]:
    factory = pytest.importorskip("reasoning_gym.factory", reason="reasoning_gym is not installed")
    names = sorted(set(factory.DATASETS) - {"composite"})
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in SAMPLE)) for name in names]


def answers(right: Any) -> list[str]:
    """The right answer of the library, neighbours of it, and answers to other questions."""
    text = "" if right is None else str(right)
    near = [f"{text[:-1]}{chr(ord(text[-1]) ^ 1)}"] if text else []
    return [text, *near, text.upper(), f"{text} or 7", "7", "x", "[1, 2]", "yes"]


@pytest.mark.parametrize("name", generators())
def test_texts_and_scores_are_the_librarys(name: str, record_property: Any) -> None:
    library = pytest.importorskip("reasoning_gym")
    env, cases = ReasoningGymEnvironment(name, timeout=60.0), 0
    for seed in range(3):
        task = env.task(seed)
        made = library.create_dataset(name, seed=task.info["entry"], size=1)
        entry = made[0]
        assert task.prompt[-1].content == str(entry["question"])
        for text in answers(task.answer):
            env.reset(task)
            parts = env.step({"agent": Message(f"<answer>{text}</answer>")}).rewards["agent"]
            try:
                score = float(made.score_answer(text.strip(), entry)) if safe(made, text) else None
            except Exception:
                score = None
            if score is None or not text.strip():
                assert parts.components["malformed"] == 1.0, text
            else:
                assert parts.components["score"] == pytest.approx(score, abs=1e-9), text
            cases += 1
    record_property("cases", cases)


def safe(made: Any, text: str) -> bool:
    return text == made[0]["answer"] or harmless(type(made).__module__, text)
