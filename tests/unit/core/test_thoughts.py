"""Thoughts are neither answers nor calls, whoever reads."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from mrlm.core.chat import Chat
from mrlm.core.thoughts import CUT, MARKS, OPENED, is_cut, opened_by, stated_text, without_thoughts
from mrlm.core.types import Message, StepResult, Task
from mrlm.environments.math import MathReasoningEnvironment
from mrlm.environments.qa import QASolverEnv
from mrlm.environments.search_qa.environment import _action, _whole


@pytest.mark.parametrize(("opens", "closes"), MARKS.items())
def test_the_text_after_the_last_thought_counts(opens: str, closes: str) -> None:
    assert without_thoughts(f"{opens} 5? {closes}7") == "7"
    assert without_thoughts(f"{opens} 5 {closes}6{opens} 8 {closes}7") == "7"
    assert without_thoughts(f"so 5 {closes}7") == "7"  # opened by the prompt
    assert without_thoughts(f"{opens} it is 5") == ""
    assert without_thoughts(f"{opens} 5 {closes}7 {opens} or 8") == ""
    assert without_thoughts("it is 5", opened=True) == ""
    assert opened_by(f"assistant\n{opens}\n") == opens
    assert opened_by(f"{opens}\n\n{closes}\n\n") is None
    assert opened_by(f"say {opens} first\nassistant") is None
    assert stated_text(Message("it is 5", metadata={OPENED: opens})) == ""


def test_a_completion_that_was_cut_says_so() -> None:
    assert is_cut(Message("5", metadata={CUT: "length"})) and not is_cut(Message("5"))


def reward(env: Any, text: str) -> float:
    result: StepResult = env.step(Message(text))
    return result.rewards[env.agents[0]].value


THOUGHT = "<think>I first try {wrong}.</think>\n{right}"


def test_graders_read_what_follows_the_thoughts() -> None:
    math = MathReasoningEnvironment(answers="any")
    for text, value in (
        (THOUGHT.format(wrong=r"\boxed{8}", right="The answer is 9"), 0.0),
        (THOUGHT.format(wrong=r"\boxed{9}", right=r"\boxed{8}"), 1.0),
        (r"<think>it must be \boxed{8}", -0.3),
    ):
        math.reset(Task("t", "What is 3 + 5?", answer="8"))
        assert reward(math, text) == value
    row = {"question": "Capital of France?", "answer": "Paris"}
    qa = QASolverEnv(dataset=[row], eval_dataset=[row])
    for text, value in ((THOUGHT.format(wrong="Rome", right="Paris"), 1.0), ("<think>Paris", 0.0)):
        qa.reset(qa.task(0))
        assert reward(qa, text) == value
    assert _action("<think><answer>Rome</answer></think><search>x</search>") == ("search", "x")
    template = Message("so</think><answer>Paris</answer>", metadata={OPENED: "<think>"})
    assert _whole(template).startswith("<think>so</think>")


def test_marks_that_are_special_tokens_stay_in_the_text(tokenizer: PreTrainedTokenizerFast) -> None:
    """As in Magistral: other special tokens are left out, as before."""
    import copy

    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"extra_special_tokens": ["[THINK]", "[/THINK]", "<|extra|>"]})
    chat = Chat(other)
    ids = other("[THINK]5?[/THINK]7<|extra|>", add_special_tokens=False)["input_ids"]
    assert chat.decode([*ids, other.eos_token_id]) == "[THINK]5?[/THINK]7"
    assert without_thoughts(chat.decode(ids)) == "7"


def test_a_prompt_that_opens_a_thought_is_noticed(tokenizer: PreTrainedTokenizerFast) -> None:
    import copy

    other = copy.deepcopy(tokenizer)
    other.chat_template = (
        other.chat_template or ""
    ) + "{% if add_generation_prompt %}<think>\n{% endif %}"
    chat = Chat(other)
    prompt = chat.prompt([Message("2+3?")])
    assert chat.thoughts.opened(prompt.ids) == "<think>"
    assert Chat(tokenizer).thoughts.opened(prompt.ids) is None  # a template without marks
