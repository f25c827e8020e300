"""What a router is paid for, on transcripts that are as they should be and on broken ones."""

import pytest

from mrlm.algorithms.router_r1 import RouterR1
from mrlm.environments.search_qa.routing import (
    asking_cost,
    blocks,
    form,
    route,
    routes,
    routing_reward,
)
from mrlm.environments.shared.short_answers import exact_match, f1

MODELS = ("qwen2.5-7b-instruct", "llama-3.1-8b-instruct")
BASE = (
    "<think>need fact</think><search>qwen2.5-7b-instruct: capital of France?</search>"
    "<information>Paris</information><think>ok</think><answer>Paris</answer>"
)
BROKEN = {
    "does not begin with a thought": BASE.replace("<think>need fact</think>", "", 1),
    "text before": "Well. " + BASE,
    "two answers": BASE + "<answer>Rome</answer>",
    "text after": BASE + " That is it.",
    "a model that is not there": BASE.replace("qwen2.5-7b-instruct", "gpt-99"),
    "no information": BASE.replace("<information>Paris</information>", ""),
    "its own information": BASE.replace("<think>ok", "<information>Rome</information><think>ok"),
    "two colons": BASE.replace("capital of", "say: capital of"),
    "no colon": BASE.replace("instruct: capital", "instruct capital"),
    "no question": BASE.replace(" capital of France?", " "),
    "the placeholder": BASE.replace("capital of France?", "your query"),
    "an empty thought": BASE.replace("<think>ok</think>", "<think> </think>"),
    "a tag inside another": BASE.replace("ok</think>", "ok<answer>x</answer></think>"),
    "a tag that is not closed": BASE.replace("ok</think>", "ok"),
    "a tag that is not opened": BASE.replace("<think>ok", "ok"),
    "nothing": "",
}


def test_a_transcript_as_it_should_be() -> None:
    assert form(BASE, MODELS) == form(f"\n{BASE}\n", MODELS) == 0.0
    assert routes(BASE, MODELS) == 1
    assert routing_reward(BASE, ["Paris"], MODELS) == 1.0
    assert [tag for tag, _ in blocks(BASE) or ()] == [
        "think",
        "search",
        "information",
        "think",
        "answer",
    ]
    assert form("<think>I know</think><answer>Paris</answer>", MODELS) == 0.0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_form_is_all_that_counts(name: str) -> None:
    assert form(BROKEN[name], MODELS) == -1.0
    assert routing_reward(BROKEN[name], ["Paris"], MODELS) == -1.0


def test_whom_a_question_goes_to() -> None:
    assert route(" Qwen2.5-7B-Instruct : why? ", MODELS) == ("qwen2.5-7b-instruct", "why?")
    assert routes(BROKEN["a model that is not there"], MODELS) == 0


def test_answers_after_normalisation() -> None:
    assert f1("the Eiffel tower in Paris", ["Eiffel Tower"]) == pytest.approx(2 / 3, abs=1e-6)
    assert exact_match("The Eiffel Tower!", ["eiffel tower"]) == 1.0
    assert f1("yes it is", ["yes"]) == 0.0


def test_a_right_form_earns_what_its_answer_is_worth() -> None:
    assert routing_reward(BASE, ["Rome"], MODELS) == 0.0
    half = routing_reward(BASE, ["Paris France"], MODELS, metric="f1")
    assert half == pytest.approx(2 / 3)


def test_what_asking_costs() -> None:
    assert asking_cost({"a": 100, "b": 10}, {"a": 0.5, "b": 2.0}) == pytest.approx(70.0)


def test_its_settings_are_the_papers() -> None:
    router = RouterR1()
    assert (router.gamma, router.gae_lambda, router.kl_coef, router.kl_in) == (
        1,
        1,
        0.001,
        "reward",
    )
    assert (router.critic, router.value_clip_range, router.entropy_coef) == ("separate", 0.5, 0.001)
