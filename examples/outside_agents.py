"""Agents of other libraries in a world of ours, through one OpenAI door.

An MRLM server speaks for a policy; a LangChain chain and a LlamaIndex model ask it, each for one
seat of the world `relay`, where the second has to work with what the first tells it. Nothing of
MRLM is in the agents: they know an address and the name of a model, so a policy can be tried in any
program that speaks OpenAI's protocol before, while and after it is trained.

    pip install "mrlm[outside_agents]"

Without `--url` a server with the embedded model (or MRLM_MODEL) is opened in this process; with it,
one that runs already is asked, such as `mrlm serve --policy base=runs/my_run --http-port 8000`.
Prints every turn and the mean reward; the transcript goes to outputs/outside_agents.
"""

import argparse
import json
from contextlib import contextmanager
from pathlib import Path

import mrlm
from mrlm import Message, MessageType
from mrlm.build.served_policies import house_of
from mrlm.environments.relay import RelayEnvironment
from mrlm.serving.policies.http_server import HttpServer
from mrlm.serving.policies.hub import PolicyHub
from mrlm.serving.policies.openai_http import OpenAIHandler


def langchain(url, model):
    """A prompt, a model and a parser, as LangChain chains them."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
    from langchain_openai import ChatOpenAI

    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("heard")])
    llm = ChatOpenAI(base_url=url, model=model, api_key="none", max_tokens=16, seed=1)
    chain = prompt | llm | StrOutputParser()
    return lambda heard: chain.invoke({"heard": heard})


def llamaindex(url, model):
    """A model of LlamaIndex."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=model, api_base=url, api_key="none", is_chat_model=True, max_tokens=16)

    def speak(heard):
        return llm.chat(
            [ChatMessage(role=role, content=text) for role, text in heard]
        ).message.content

    return speak


def plain(url, model):
    """OpenAI's own client."""
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="none")

    def speak(heard):
        messages = [{"role": role, "content": text} for role, text in heard]
        found = client.chat.completions.create(
            model=model, messages=messages, max_tokens=16, seed=2
        )
        return found.choices[0].message.content

    return speak


LIBRARIES = {"langchain": langchain, "llamaindex": llamaindex, "openai": plain}


@contextmanager
def door(url):
    """The address that agents ask: the one that is given, or that of a server in this process."""
    if url:
        yield url
        return
    desk = PolicyHub(house_of({"base": mrlm.default_model()}).served())
    server = HttpServer(OpenAIHandler(desk)).start()
    try:
        yield f"{server.url}/v1"
    finally:
        server.stop()
        desk.close()


def play(world, speakers, seed):
    """One episode; what was said, and what the team was paid."""
    heard = {seat: [] for seat in world.agents}
    said, reward = [], 0.0
    result = world.reset(seed=seed)
    while not result.done:
        actions = {}
        for seat, observation in result.observations.items():
            heard[seat] += [("user", message.content) for message in observation.messages]
            text = speakers[seat](heard[seat])
            heard[seat].append(("assistant", text))
            said.append({"seat": seat, "heard": heard[seat][-2][1], "said": text})
            actions[seat] = Message(text, MessageType.MODEL, agent=seat)
        result = world.step(actions)
        reward += sum(each.value for each in result.rewards.values())
    return said, reward


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a server that runs, http://host:port/v1")
    parser.add_argument("--model", default="base", help="the policy's name there")
    parser.add_argument("--with", dest="libraries", default="langchain,llamaindex")
    parser.add_argument("--episodes", type=int, default=4)
    chosen = parser.parse_args(given)
    world = RelayEnvironment()
    with door(chosen.url) as url:
        try:
            made = [LIBRARIES[name](url, chosen.model) for name in chosen.libraries.split(",")]
        except ModuleNotFoundError as error:
            raise SystemExit(
                f'{error.name} is not installed; install it: pip install "mrlm[outside_agents]"'
            ) from None
        speakers = dict(zip(world.agents, made, strict=True))
        played = [play(world, speakers, seed) for seed in range(chosen.episodes)]
    for said, _ in played:
        for turn in said:
            print(f"{turn['seat']}: {turn['heard']!r} -> {turn['said']!r}")
    mean = sum(reward for _, reward in played) / len(played)
    folder = Path("outputs/outside_agents")
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"turns": said, "reward": reward}) for said, reward in played]
    (folder / "transcript.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"reward {mean:.2f} (of {chosen.libraries}, who have learned nothing here)")


if __name__ == "__main__":
    main()
