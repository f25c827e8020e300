"""Agents of LangChain and LlamaIndex through our OpenAI door, with the libraries themselves
(`make test-extras`)."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrlm import default_model
from mrlm.build.served_policies import house_of
from mrlm.core.errors import ConfigError
from mrlm.serving.policies.http_server import HttpServer
from mrlm.serving.policies.hub import PolicyHub
from mrlm.serving.policies.openai_http import OpenAIHandler

pytest.importorskip("langchain_openai", reason="needs langchain-openai: make test-extras")
pytest.importorskip("llama_index.llms.openai_like", reason="needs llama-index: make test-extras")
EXAMPLES = Path(__file__).parents[2] / "examples"
HEARD = [("system", "Be brief."), ("user", "What is 2+3?")]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("outside_agents")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    desk = PolicyHub(house_of({"base": default_model()}).served())
    server = HttpServer(OpenAIHandler(desk)).start()
    yield f"{server.url}/v1"
    server.stop()
    desk.close()


def test_the_example_with_both_libraries(example: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    example.main(["--episodes", "2"])
    lines = (tmp_path / "outputs/outside_agents/transcript.jsonl").read_text().splitlines()
    turns = [turn for line in lines for turn in json.loads(line)["turns"]]
    assert len(lines) == 2 and {turn["seat"] for turn in turns} == {"first", "second"}
    assert all(isinstance(turn["said"], str) for turn in turns)


def test_both_say_what_the_plain_client_says(example: Any, url: str) -> None:
    """With a seed, whoever asks hears the same words."""
    from langchain_openai import ChatOpenAI
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike
    from openai import OpenAI

    asked: dict[str, Any] = {"model": "base", "seed": 4, "max_tokens": 12, "temperature": 1.0}
    messages = [{"role": role, "content": text} for role, text in HEARD]
    client = OpenAI(base_url=url, api_key="none")
    wanted = client.chat.completions.create(messages=messages, **asked).choices[0].message.content
    chain = ChatOpenAI(base_url=url, api_key="none", **asked)
    assert chain.invoke(HEARD).content == wanted
    assert "".join(chunk.content for chunk in chain.stream(HEARD)) == wanted
    llm = OpenAILike(
        model="base",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        max_tokens=12,
        temperature=1.0,
        additional_kwargs={"seed": 4},
    )
    given = [ChatMessage(role=role, content=text) for role, text in HEARD]
    assert llm.chat(given).message.content == wanted
    assert "".join(each.delta or "" for each in llm.stream_chat(given)) == wanted


def test_refusals_are_theirs_to_show(url: str) -> None:
    from langchain_openai import ChatOpenAI
    from openai import NotFoundError

    with pytest.raises(NotFoundError, match="policy 'other' does not exist"):
        ChatOpenAI(base_url=url, api_key="none", model="other").invoke(HEARD)
    with pytest.raises(ConfigError):
        house_of({})
