"""What reward functions of verifiers see of an answer: the trace of the library's own types."""

from typing import Any

import pytest

from mrlm.core.types import Message, Role, Turn
from mrlm.environments.connectors.verifiers import _trace

vf = pytest.importorskip("verifiers.v1", reason="the package verifiers is not installed")

TITLE = "Traces for verifiers"
JUDGE = "verifiers (the properties of its own Trace)"
DIFFERENCES = ("an answer that no engine sampled has no usage, because none was counted",)

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("calls", [(), (CALL,)])
def test_a_trace_has_calls_usage_and_truncation(finish: Any, calls: tuple[Any, ...]) -> None:
    class Question(vf.Task):  # pyright: ignore
        pass

    task = Question(vf.TaskData(idx=0, prompt="1+1?"))
    turn = Turn("agent", "p", [1, 2, 3], [4, 5], finish_reason=finish)
    trace = _trace(task, "2", Message("2", Role.ASSISTANT, tool_calls=calls, turn=turn))
    assert trace.is_truncated == (finish == "length")
    assert (trace.usage.prompt_tokens, trace.usage.completion_tokens) == (3, 2)
    assert trace.num_turns == 1 and trace.last_reply == "2"
    names = [call.name for call in trace.assistant_messages[-1].tool_calls or ()]
    assert names == ["add"] * len(calls)


def test_an_answer_by_hand_has_a_call_without_usage() -> None:
    class Question(vf.Task):  # pyright: ignore
        pass

    trace = _trace(Question(vf.TaskData(idx=0, prompt="1+1?")), "2", Message("2", Role.ASSISTANT))
    assert trace.usage is None and len(trace.calls) == 1 and not trace.is_truncated
