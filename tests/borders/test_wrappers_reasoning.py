"""Questions of reasoning_gym beside the library's own loop: equal texts and equal scores."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from mrlm.core.types import Message
from mrlm.environments.connectors.reasoning_gym import ReasoningGymEnvironment, harmless

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


def judged(name: str, seed: int) -> tuple[str, list[tuple[str, float | None]]]:
    """A question, and the scores of answers; `None` for one that is not scored."""
    import reasoning_gym  # pyright: ignore[reportMissingImports]

    made = reasoning_gym.create_dataset(name, seed=seed, size=1)
    entry, scores = made[0], []
    right = entry["answer"] or (entry.get("metadata") or {}).get("example_correct_answer")
    for text in answers(right):
        score = None
        if text.strip() and (text == entry["answer"] or harmless(type(made).__module__, text)):
            with suppress(Exception):
                score = float(made.score_answer(text.strip(), entry))
        scores.append((text, score))
    return str(entry["question"]), scores


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A process of the library alone; the order of sets, which some generators depend on, is that
    of the seed 0."""
    before, os.environ["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED"), "0"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(os.getpid).result()
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        yield pool


@pytest.mark.parametrize("name", generators())
def test_texts_and_scores_are_the_librarys(
    name: str, process: ProcessPoolExecutor, record_property: Any
) -> None:
    env, cases = ReasoningGymEnvironment(name, timeout=60.0), 0
    for seed in range(3):
        task = env.task(seed)
        question, scores = process.submit(judged, name, task.info["entry"]).result()
        assert task.prompt[-1].content == question
        for text, score in scores:
            env.reset(task)
            reward = env.step({"agent": Message(f"<answer>{text}</answer>")}).rewards["agent"]
            assert reward.components["malformed"] == float(score is None), text
            assert reward.components["score"] == pytest.approx(score or 0.0, abs=1e-9), text
        cases += len(scores)
    record_property("cases", cases)
