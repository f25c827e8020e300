"""One app of three agents through the client of another library: the losses are those of the
OpenAI client's (`make test-extras`; each library in an environment of its own)."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mrlm
import mrlm.app
import three_agents
from app_play import ROWS
from mrlm.play.failure_log import AllFailedError

pytestmark = pytest.mark.filterwarnings("ignore")
Ask = Callable[[str, str], Awaitable[str]]


def app_of(ask: Ask, at_once: bool = True) -> Any:
    """The app, as in `three_agents`, with another client; two calls `at_once` on sockets of their
    own would arrive in any order."""

    async def solve(row: dict[str, Any]) -> str:
        plan = await ask("planner", row["question"])
        if at_once:
            drafts = await asyncio.gather(ask("coder", plan), ask("coder", plan))
        else:
            drafts = (await ask("coder", plan), await ask("coder", plan))
        return await ask("reviewer", "\n".join(drafts))

    return solve


def langchain_openai() -> Ask:
    from langchain_openai import ChatOpenAI

    models = {name: ChatOpenAI(model=name, api_key="none") for name in NAMES}  # type: ignore[arg-type]

    async def ask(model: str, text: str) -> str:
        return str((await models[model].ainvoke(text)).content)

    return ask


def agents() -> Ask:
    from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled

    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)

    async def ask(model: str, text: str) -> str:
        return str((await Runner.run(Agent(name=model, model=model), text)).final_output)

    return ask


def litellm() -> Ask:
    from litellm import acompletion

    async def ask(model: str, text: str) -> str:
        answer: Any = await acompletion(
            model=f"openai/{model}",
            messages=[{"role": "user", "content": text}],
            api_base=mrlm.app.base_url(),
            api_key=mrlm.app.api_key(),
        )
        return answer.choices[0].message.content

    return ask


def llama_index() -> Ask:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    async def ask(model: str, text: str) -> str:
        llm = OpenAILike(model=model, is_chat_model=True, temperature=1.0)  # its own is 0.1
        return (await llm.achat([ChatMessage(role="user", content=text)])).message.content or ""

    return ask


NAMES = ["planner", "coder", "reviewer"]
LIBRARIES = [langchain_openai, agents, litellm, llama_index]


def losses(app: Any, folder: Path) -> list[tuple[float, ...]]:
    trainer = mrlm.MAGRPOTrainer(
        app=app,
        reward_func=three_agents.score,
        train_dataset=ROWS,
        agents=NAMES,
        output_dir=str(folder),
        **{"num_generations": 4, "learning_rate": 1e-3, "max_new_tokens": 8, "batch_size": 2},
        **{"num_iterations": 2, "report_to": "none"},
    )
    return [(row["loss"], row["reward/mean"]) for row in trainer.train().history]


@cache
def plain(folder: Path) -> list[tuple[float, ...]]:
    return losses(three_agents.solve, folder)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_losses_are_those_of_the_openai_client(library: Callable[[], Ask], tmp_path: Path) -> None:
    module = library.__name__
    pytest.importorskip("llama_index.llms.openai_like" if module == "llama_index" else module)
    result = losses(app_of(library(), library is not litellm), tmp_path / "one")
    assert result == plain(tmp_path / "two") and result[0][0]


def test_the_default_of_the_agents_sdk_is_refused_with_the_way_out(tmp_path: Path) -> None:
    sdk = pytest.importorskip("agents")
    app = app_of(agents())
    sdk.set_default_openai_api("responses")
    with pytest.raises(AllFailedError, match=r'set_default_openai_api\("chat_completions"\)'):
        losses(app, tmp_path)
