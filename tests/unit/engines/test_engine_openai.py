"""A policy behind an API, asked over real sockets: what is sent, what is counted, and what happens
when the server fails."""

import asyncio
import logging
import time
from email.utils import formatdate
from typing import Any

import pytest

from chat_server import Answer, ChatServer, Fault, completion, serving
from mrlm.core.errors import ConfigError, EndpointError, EngineError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role, SamplingParams
from mrlm.engines.openai import OpenAIEngine
from mrlm.play.agent import PromptTooLong
from mrlm.play.engine import RemoteEngine, Request

ASKED = [Message("Be brief.", Role.SYSTEM), Message("Capital of France?")]


def engine(server: ChatServer, **changes: Any) -> OpenAIEngine:
    found = OpenAIEngine("judge", server.url, "some-model", **changes)
    found.retries.first_wait = 0.01
    return found


def ask(found: OpenAIEngine, seed: int = 7, **sampling: Any) -> Any:
    return run_async(
        found.answer(Request("judge", [], SamplingParams(**sampling), seed, (), ASKED))
    )


def test_what_is_sent_and_what_comes_back() -> None:
    with serving(lambda body, n: "Paris it is") as server:
        found = engine(server, price={"prompt": 2.0, "completion": 10.0}, body={"user": "u"})
        assert isinstance(found, RemoteEngine)
        said = ask(found, max_new_tokens=9, temperature=0.3, top_p=0.9, stop=("\n",))
        ask(found, top_k=5, min_p=0.1, temperature=0.0, seed=(1 << 62) + 5)
    assert (said.text, said.token_ids, said.finish_reason) == ("Paris it is", [], "stop")
    assert said.usage == (5, 3)
    first, second = server.bodies
    assert first == {
        "model": "some-model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Capital of France?"},
        ],
        "temperature": 0.3,
        "top_p": 0.9,
        "max_tokens": 9,
        "stop": ["\n"],
        "seed": 7,
        "user": "u",
    }
    assert (second["top_k"], second["min_p"], second["temperature"]) == (5, 0.1, 0.0)
    assert second["seed"] == 5 and "stop" not in second
    used = found.take_usage()
    assert (used["requests"], used["retries"], used["unmetered"]) == (2, 0, 0)
    assert (used["prompt_tokens"], used["completion_tokens"]) == (10, 6)
    assert used["cost"] == used["cost_total"] == pytest.approx((10 * 2 + 6 * 10) / 1e6)
    assert found.take_usage()["cost"] == 0 and found.take_usage()["cost_total"] > 0
    again = engine(server, price={"prompt": 2.0, "completion": 10.0})
    again.load_state_dict(found.state_dict())
    assert again.take_usage()["cost_total"] == used["cost_total"]


def test_the_limit_of_tokens_under_its_other_name() -> None:
    with serving(lambda body, n: "a") as server:
        ask(engine(server, token_limit="max_completion_tokens"), max_new_tokens=3)
    assert server.bodies[0]["max_completion_tokens"] == 3 and "max_tokens" not in server.bodies[0]


def test_an_answer_that_was_cut_or_not_counted() -> None:
    def answer(body: Any, number: int) -> Answer:
        whole = completion("a b", body, usage=None)
        whole["choices"][0]["finish_reason"] = ("length", "content_filter", "tool_calls")[number]
        whole["choices"][0]["message"]["content"] = None if number == 2 else "a b"
        return whole

    with serving(answer) as server:
        found = engine(server)
        reasons = [ask(found).finish_reason for _ in range(2)]
        last = ask(found)
    assert reasons == ["length", "abort"] and (last.text, last.usage) == ("", None)
    assert found.take_usage()["unmetered"] == 3


PASSING: dict[str, Fault] = {
    "too many": Fault.saying(429, "slow down"),
    "too many, for a moment": Fault.saying(429, "slow down", retry_after="0.05"),
    "too many, until then": Fault.saying(429, "slow down", retry_after=formatdate(0)),
    "an odd time": Fault.saying(429, "slow down", retry_after="soon"),
    "request timeout": Fault.saying(408, "too slow"),
    "conflict": Fault.saying(409, "locked"),
    "server error": Fault.saying(500, "oops"),
    "bad gateway": Fault(502, b"<html>bad gateway</html>", {"content-type": "text/html"}),
    "no answer": Fault(pause=2.0),
    "a cut line": Fault(cut=True),
    "no JSON": Fault(200, b'{"choices": [', {}),
    "a page": Fault(200, b"<html></html>", {"content-type": "text/html"}),
    "a list": Fault(200, b"[1, 2]"),
    "nothing": Fault(200, b""),
    "no choice": Fault(200, b'{"choices": []}'),
    "no message": Fault(200, b'{"choices": [{"message": null}]}'),
    "a number": Fault(200, b'{"choices": [{"message": {"content": 5}}]}'),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_asked_again(name: str) -> None:
    with serving(lambda body, n: PASSING[name] if n < 2 else "Paris") as server:
        found = engine(server, timeout=1.2)  # a busy machine answers the others in time
        assert ask(found).text == "Paris"
    used = found.take_usage()
    assert (used["requests"], used["retries"], used["failures"]) == (3, 2, 0)
    assert used["completion_tokens"] == 1


def test_retry_after_is_kept_by_everybody() -> None:
    fault = Fault.saying(429, "slow down", retry_after="0.4")
    with serving(lambda body, n: fault if n == 0 else "Paris") as server:
        found = engine(server)
        ask(found)
    assert server.times[1] - server.times[0] >= 0.4

    async def two() -> None:
        request = Request("judge", [], SamplingParams(), 0, (), ASKED)
        first = asyncio.create_task(found.answer(request))
        while not server.times:  # it was asked, on a busy machine too
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.15)
        await asyncio.gather(first, found.answer(request))

    with serving(lambda body, n: fault if n == 0 else "Paris") as server:
        found = engine(server)
        run_async(two())
    assert server.times[1] - server.times[0] >= 0.39


def test_tries_come_further_and_further_apart() -> None:
    with serving(lambda body, n: Fault.saying(500, "oops")) as server:
        found = engine(server, max_retries=3)
        found.retries.first_wait = 0.1
        with pytest.raises(
            EngineError, match=r"policy 'judge' .* no answer after 4 tries: 500: oo"
        ):
            ask(found)
    gaps = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
    for gap, least in zip(gaps, (0.05, 0.1, 0.2), strict=True):
        assert least <= gap < 2 * least + 0.2
    assert found.take_usage()["failures"] == 1


FINAL: dict[str, tuple[Fault, str]] = {
    "key": (Fault.saying(401, "Incorrect API key provided: s3cret-key"), "api_key_env"),
    "forbidden": (Fault.saying(403, "not for you"), "another"),
    "model": (Fault.saying(404, "The model does not exist", "model_not_found"), "endpoint.model"),
    "model, said otherwise": (Fault.saying(400, "no such", "model_not_found"), "judge"),
    "quota": (Fault.saying(429, "quota", "insufficient_quota"), "account"),
    "no such page": (Fault(404, b"<html></html>", {"content-type": "text/html"}), "base_url"),
}


@pytest.mark.parametrize("name", FINAL)
def test_a_refusal_for_good_is_one_error(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault, fix = FINAL[name]
    monkeypatch.setenv("SOME_KEY", "s3cret-key")

    async def many(found: OpenAIEngine) -> list[BaseException | Any]:
        requests = [Request("judge", [], SamplingParams(), i, (), ASKED) for i in range(40)]
        jobs = (found.answer(request) for request in requests)
        return await asyncio.gather(*jobs, return_exceptions=True)

    with serving(lambda body, n: fault) as server, caplog.at_level(logging.DEBUG, "mrlm"):
        found = engine(server, api_key_env="SOME_KEY", max_concurrent=4)
        errors = run_async(many(found))
    assert len({id(error) for error in errors}) == 1 and isinstance(errors[0], EndpointError)
    assert len(server.bodies) <= 4 and set(server.keys) == {"Bearer s3cret-key"}
    text = str(errors[0])
    assert "'judge'" in text and server.url in text and "some-model" in text and fix in text
    assert "s3cret" not in text + caplog.text + repr(errors[0].__cause__)


def test_a_request_that_is_refused_fails_alone() -> None:
    with serving(lambda body, n: Fault.saying(400, "bad words") if n == 0 else "fine") as server:
        found = engine(server)
        with pytest.raises(EngineError, match="bad words") as caught:
            ask(found)
        assert not isinstance(caught.value, EndpointError)
        assert ask(found).text == "fine" and len(server.bodies) == 2


def test_a_conversation_that_is_too_long_is_cut_short_not_an_error() -> None:
    said = "This model's maximum context length is 10 tokens"
    with (
        serving(lambda body, n: Fault.saying(400, said)) as server,
        pytest.raises(PromptTooLong, match="10 tokens"),
    ):
        ask(engine(server))


def test_calls_are_spaced_and_few_at_once() -> None:
    def slow(body: Any, number: int) -> str:
        time.sleep(0.03)
        return "a"

    async def many(found: OpenAIEngine) -> None:
        requests = [Request("judge", [], SamplingParams(), i, (), ASKED) for i in range(8)]
        await found.generate(requests)

    with serving(slow) as server:
        run_async(many(engine(server, max_concurrent=2)))
    assert len(server.bodies) == 8 and server.most_busy == 2
    with serving(slow) as server:
        run_async(many(engine(server, requests_per_minute=1200)))
    assert server.times[-1] - server.times[0] >= 0.6 * 7 * 0.05  # the first may arrive late


def test_no_server_at_all() -> None:
    with serving(lambda body, n: "a") as server:
        pass
    found = engine(server, max_retries=1)
    with pytest.raises(EngineError, match="no connection"):
        ask(found)


def test_the_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-somebody-else")
    with serving(lambda body, n: "a") as server:
        ask(engine(server))
        assert server.keys == ["Bearer none"]
        with pytest.raises(ConfigError, match="SOME_KEY is not set"):
            engine(server, api_key_env="SOME_KEY")


def test_one_that_is_only_asked() -> None:
    with serving(lambda body, n: "Paris") as server:
        endpoint = {"base_url": server.url, "model": "some-model"}
        client = LLMEnvironment(endpoint, mode="client", system_prompt="Be brief.")  # type: ignore[arg-type]
        assert client.respond(Message("Capital of France?"), max_new_tokens=4).content == "Paris"
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["system", "user"]
    assert server.bodies[0]["max_tokens"] == 4
    with pytest.raises(ConfigError, match="base_url"):
        OpenAIEngine.of({"model": "x"})
    with pytest.raises(ConfigError, match="'base_url'"):
        OpenAIEngine.of({"base_ur": "x", "model": "x"})


def test_tools_that_a_template_would_explain_are_refused() -> None:
    tools = Message("hi", metadata={"tools": [{"name": "f"}]})
    with serving(lambda body, n: "a") as server:
        found = engine(server)
        with pytest.raises(ConfigError, match="call_format"):
            run_async(found.answer(Request("judge", [], SamplingParams(), 0, (), [tools])))
        with pytest.raises(EngineError, match="weights cannot be set"):
            run_async(found.load_weights("judge", None, 1))
        assert found.tolerance("judge") is None
