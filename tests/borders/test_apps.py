"""Apps that call agents through the OpenAI client, which is the judge of what it gets."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import mrlm
import mrlm.app
import three_agents
from app_play import ROWS, app_episodes
from mrlm import Message, Reward, StepResult
from mrlm.core.errors import ConfigError
from mrlm.environments.app import AppEnvironment
from mrlm.play.failure_log import AllFailedError
from mrlm.sandbox import opening, tiers
from mrlm.sandbox.tiers import python
from mrlm.serving.apps.handler import handler

pytestmark = pytest.mark.system

TITLE = "Apps that call an OpenAI client"
JUDGE = "openai (Python)"
DIFFERENCES = (
    "the seed of a request is not used, because random numbers follow from the seed of the run",
    "`response_format`, penalties and a required `tool_choice` are refused by name: they would "
    "change what is sampled without being in its log-probs",
)
NAMES = ["planner", "coder", "reviewer"]
client = AsyncOpenAI(api_key="none")


class Played(AppEnvironment):
    """The same rows and rewards, for a workflow."""

    workflow: ClassVar[None] = None

    async def step(self, actions: dict[str, Message]) -> StepResult:
        value = three_agents.score(self.row, actions["reviewer"].content)
        return StepResult(rewards={agent: Reward(value) for agent in actions}, done=True)


async def workflow(task: Any, agents: Any, env: Any) -> None:
    await env.reset()
    plan = await agents.planner.act([Message(task.info["row"]["question"])])
    read = [Message(plan.content)]
    drafts = await asyncio.gather(agents.coder.act(read), agents.coder.act(read))
    last = await agents.reviewer.act([Message("\n".join(draft.content for draft in drafts))])
    await env.finish({"planner": plan, "coder": drafts[1], "reviewer": last})


def test_losses_equal_those_of_the_same_conversation_as_a_workflow(tmp_path: Path) -> None:
    played = Played(three_agents.solve, ROWS, three_agents.score, NAMES)
    played.name = "app"
    histories = []
    for number, parts in enumerate(
        (
            {"app": three_agents.solve, "reward_func": three_agents.score, "train_dataset": ROWS},
            {"environment": played, "workflow": workflow},
        )
    ):
        trainer = mrlm.MAGRPOTrainer(
            **parts,
            **({"agents": NAMES} if "app" in parts else {}),
            output_dir=str(tmp_path / str(number)),
            **{"num_generations": 4, "learning_rate": 1e-3, "max_new_tokens": 8, "batch_size": 2},
            **{"num_iterations": 2, "report_to": "none"},
        )
        timed = ("seconds", "tokens_per_second", "time")
        rows = trainer.train().history
        histories.append([{k: v for k, v in r.items() if not k.startswith(timed)} for r in rows])
    for one, other in zip(*histories, strict=True):
        assert {key: (one[key], other.get(key)) for key in one if one[key] != other.get(key)} == {}
    assert histories[0][0]["loss"] and histories[0][0]["reward/coder/mean"]


async def chat(model: str, *texts: str, **more: Any) -> Any:
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return await client.chat.completions.create(model=model, messages=messages, **more)


def said(answer: Any) -> str:
    return answer.choices[0].message.content


@pytest.mark.parametrize("edited", [False, True])
def test_what_was_said_is_continued_and_never_tokenised_again(tokenizer: Any, edited: bool) -> None:
    async def app(row: Any) -> float:
        first = said(await chat("planner", row["question"]))
        await chat("planner", row["question"], "no" if edited else first, "And then?")
        return 1.0

    (episode,) = app_episodes(tokenizer, app)
    first, second = episode.rollouts["planner"].turns
    begun = [*first.prompt_ids, *first.completion_ids]
    assert (second.prompt_ids[: len(begun)] == begun) is not edited
    assert episode.rollouts["planner"].rewritten is False
    assert tokenizer.decode(second.prompt_ids).count("And then?") == 1


def test_choices_streams_stops_counts_and_tools(tokenizer: Any) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    seen: dict[str, Any] = {}

    async def app(row: Any) -> float:
        several = await chat("planner", "Hi", n=3, logprobs=True)
        seen["n"] = [choice.message.content for choice in several.choices]
        seen["logprobs"] = len(several.choices[0].logprobs.content)
        seen["usage"] = several.usage
        stream = await chat("planner", "Hi", stream=True, stream_options={"include_usage": True})
        parts = [part async for part in stream]
        seen["streamed"] = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        await chat("planner", "Hi", stop=["x"], max_tokens=5, temperature=0.5)
        asks: list[Any] = [{"role": "user", "content": "tools"}]
        create = client.chat.completions.create
        answer = (await create(model="coder", messages=asks, tools=tools)).choices[0].message
        seen["call"] = answer.tool_calls[0].function
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "5"}
        await create(model="coder", messages=[*asks, answer.model_dump(), result], tools=tools)
        return 1.0

    def script(request: Any) -> str:
        return call if request.messages[-1].content == "tools" else "yes"

    (episode,) = app_episodes(tokenizer, app, script=script, max_new_tokens=200)
    planner, coder = (episode.rollouts[name].turns for name in ("planner", "coder"))
    assert seen["n"] == ["yes"] * 3 and seen["streamed"] == "yes" and len(planner) == 5
    assert seen["logprobs"] == seen["usage"].completion_tokens // 3 == len(planner[0])
    assert seen["usage"].prompt_tokens == len(planner[0].prompt_ids)
    assert (planner[4].sampling.stop, planner[4].sampling.max_new_tokens) == (("x",), 5)
    assert planner[4].sampling.temperature == 0.5 and planner[0].sampling.temperature == 1.0
    assert (seen["call"].name, seen["call"].arguments) == ("add", '{"a": 2}')
    begun = [*coder[0].prompt_ids, *coder[0].completion_ids]
    assert coder[1].prompt_ids[: len(begun)] == begun


def by_path(agent: str) -> Any:
    async def app(row: Any) -> float:
        there = AsyncOpenAI(base_url=mrlm.app.base_url(agent), api_key=mrlm.app.api_key())
        await there.chat.completions.create(model="any", messages=[{"role": "user", "content": ""}])
        return 1.0

    return app


async def by_name(row: Any) -> float:
    await chat("coder", "Hi")
    return 1.0


async def by_rule(row: Any) -> float:
    messages: Any = [{"role": "system", "content": "You are the coder"}]
    await AsyncOpenAI().chat.completions.create(
        model="gpt", messages=[*messages, {"role": "user", "content": "Hi"}]
    )
    return 1.0


def plain(row: Any) -> float:
    """Not a coroutine: it runs in a thread."""
    OpenAI().chat.completions.create(model="coder", messages=[{"role": "user", "content": "Hi"}])
    return 1.0


@pytest.mark.parametrize(
    ("app", "rule"),
    [
        (by_path("coder"), None),
        (by_name, None),
        (by_rule, lambda prompt: prompt.rpartition(" ")[2]),
        (plain, None),
    ],
    ids=["path", "name", "rule", "plain"],
)
def test_who_speaks(tokenizer: Any, app: Any, rule: Any) -> None:
    (episode,) = app_episodes(tokenizer, app, agent_of=rule)
    assert list(episode.rollouts) == ["coder"] and episode.reward == 1.0


async def two(row: Any) -> str:
    await chat("planner", "Hi")
    await chat("coder", "Hi")
    await chat("coder", "Ho")
    return "result"


async def paid(row: Any) -> str:
    await two(row)
    await mrlm.reward(0.5, agent="coder", turn=0)
    await mrlm.reward(0.25, agent="coder")
    return "result"


async def posted(row: Any) -> str:
    import httpx2

    await two(row)
    url = mrlm.app.base_url().removesuffix("/v1") + "/reward"
    async with httpx2.AsyncClient() as http:
        key = {"Authorization": f"Bearer {mrlm.app.api_key()}"}
        body = {"reward": 0.5, "agent": "coder", "turn": 0}
        assert (await http.post(url, json=body)).status_code == 401
        assert (await http.post(url, json=body, headers=key)).json() == {"ok": True}
        wrong = await http.post(url, json=body | {"agent": "x"}, headers=key)
        assert wrong.status_code == 400 and "planner, coder" in wrong.text
    return "result"


@pytest.mark.parametrize(
    ("app", "reward", "rewards", "missing"),
    [
        (two, lambda row, result: float(result == "result"), [[1], [0, 1]], []),
        (two, lambda row, result: {"coder": 0.5}, [[0], [0, 0.5]], ["planner"]),
        (paid, None, [[0], [0.5, 0.25]], ["planner"]),
        (paid, lambda row, result: 1, [[1], [0.5, 1.25]], []),
        (posted, None, [[0], [0.5, 0]], ["planner"]),
    ],
    ids=["number", "by-agent", "inside", "both", "http"],
)
def test_rewards(tokenizer: Any, app: Any, reward: Any, rewards: Any, missing: list[str]) -> None:
    (episode,) = app_episodes(tokenizer, app, reward)
    turns = [[turn.reward for turn in rollout.turns] for rollout in episode.rollouts.values()]
    assert turns == rewards and sorted(episode.missing) == missing


async def raises(row: Any) -> float:
    await chat("planner", "Hi")
    raise KeyError("no such thing")


async def hangs(row: Any) -> float:
    await chat("planner", "Hi")
    await asyncio.sleep(60)
    return 1.0


async def unknown(row: Any) -> float:
    await mrlm_client("gpt-9")
    return 1.0


async def mrlm_client(model: str, **more: Any) -> None:
    there = AsyncOpenAI(base_url=mrlm.app.ADDRESS, api_key="x", http_client=mrlm.app.client())
    messages: Any = [{"role": "user", "content": "Hi"}]
    await there.chat.completions.create(model=model, messages=messages, **more)


async def responds(row: Any) -> float:
    await AsyncOpenAI().responses.create(model="coder", input="Hi")
    return 1.0


async def embeds(row: Any) -> float:
    await AsyncOpenAI().embeddings.create(model="any", input="Hi")
    return 1.0


async def required(row: Any) -> float:
    await mrlm_client("coder", response_format={"type": "json_object"})
    return 1.0


async def blocked(row: Any) -> float:
    OpenAI().chat.completions.create(model="coder", messages=[{"role": "user", "content": "Hi"}])
    return 1.0


@pytest.mark.parametrize(
    ("app", "reward", "texts"),
    [
        (raises, None, ["KeyError: 'no such thing'", "test_apps.py", "in raises"]),
        (hangs, None, ["made no call for 0.3 s"]),
        (two, None, ["no reward"]),
        (two, lambda row, result: None, ["no reward"]),
        (two, lambda row, result: {"judge": 1}, ["'judge' does not exist", "planner, coder"]),
        (unknown, None, ["'gpt-9' does not exist", "planner, coder"]),
        (required, None, ["response_format is not supported"]),
        (blocked, None, ["use AsyncOpenAI"]),
        (responds, None, ["responses is not served", 'set_default_openai_api("chat_completions")']),
        (embeds, None, ["embeddings is not served to apps", "names its base_url"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_failures_are_of_their_episode(
    tokenizer: Any, app: Any, reward: Any, texts: list[str]
) -> None:
    with pytest.raises(AllFailedError) as error:
        app_episodes(tokenizer, app, reward, timeout=0.3 if app is hangs else 20.0)
    for text in texts:
        assert text in str(error.value)


@pytest.mark.parametrize("again", [False, True])
def test_other_clients_are_untouched(
    tokenizer: Any, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another program wraps the same transports meanwhile."""
    import httpx2

    kinds = (
        (httpx2.AsyncHTTPTransport, "handle_async_request"),
        (httpx2.HTTPTransport, "handle_request"),
    )
    before = [getattr(*kind) for kind in kinds]

    async def app(row: Any) -> float:
        during = [getattr(*kind) for kind in kinds]
        assert not set(before) & set(during)
        url = mrlm.app.base_url().partition("/e/")[0]
        async with httpx2.AsyncClient() as other:
            assert (await other.get(f"{url}/nothing")).status_code == 404
        await chat("coder", "Hi")
        if again:
            monkeypatch.setattr(*kinds[0], lambda *words: during[0](*words))
        return 1.0

    (episode,) = app_episodes(tokenizer, app)
    assert len(episode.rollouts["coder"].turns) == 1
    assert [getattr(*kind) is original for kind, original in zip(kinds, before, strict=True)] == [
        not again,
        True,
    ]
    monkeypatch.undo()
    setattr(*kinds[0], before[0])


def test_clients_that_vanish_retry_and_come_late(tokenizer: Any) -> None:
    late: list[Any] = []

    async def app(row: Any) -> float:
        address, key = mrlm.app.base_url("coder"), mrlm.app.api_key()
        there = AsyncOpenAI(base_url=address, api_key=key)
        hi: Any = [{"role": "user", "content": "Hi"}]
        again = {"extra_headers": {"x-stainless-retry-count": "1"}}
        for text in ("asked again", "given up"):
            call = asyncio.create_task(chat("coder", text))
            while not (session := handler().sessions[address.split("/")[4]]).open:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            while session.open:
                await asyncio.sleep(0.001)
        for _ in range(2):
            await chat("coder", "asked again", **again)
        for _ in range(2):  # by HTTP
            await there.chat.completions.create(model="coder", messages=hi, **again)
        with pytest.raises(openai.AuthenticationError):
            await AsyncOpenAI(base_url=address, api_key="other").models.list()
        assert [m.id for m in (await there.models.list()).data] == ["planner", "coder"]
        late.append(OpenAI(base_url=address, api_key=key))
        return 1.0

    (episode,) = app_episodes(tokenizer, app)
    assert [turn.trained for turn in episode.rollouts["coder"].turns] == [True, False, True]
    with pytest.raises(openai.APIStatusError) as error:
        late[0].chat.completions.create(model="coder", messages=[{"role": "user", "content": "Hi"}])
    assert error.value.status_code == 410 and "has ended" in str(error.value)


PROGRAM = """
import json, os, sys
from openai import OpenAI
row = json.loads(sys.stdin.readline())
assert "SECRET_KEY" not in os.environ and os.environ["GIVEN"] == "1"
answer = OpenAI().chat.completions.create(
    model="coder", messages=[{"role": "user", "content": row["question"]}]
)
print("a log line")
print(json.dumps({"text": answer.choices[0].message.content}))
sys.exit(1 if row["question"].startswith("What is 99") else 0)
"""


def test_a_program_in_another_process(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    file = tmp_path / "solve.py"
    file.write_text(PROGRAM)
    more = {"command": [sys.executable, str(file)], "variables": {"GIVEN": 1}}

    def score(row: Any, result: Any) -> float:
        return float(result == {"text": "yes"})

    (episode,) = app_episodes(tokenizer, reward=score, **more)
    assert episode.reward == 1.0 and len(episode.rollouts["coder"].turns) == 1
    with pytest.raises(AllFailedError, match=r"ended with 1"):
        app_episodes(tokenizer, reward=score, rows=[{"question": "What is 99?"}], **more)


def test_64_episodes_at_once_are_apart(tokenizer: Any) -> None:
    async def app(row: Any) -> float:
        number = str(len(row["question"]))
        texts = [said(await chat("coder", number)) for _ in range(3)]
        return float(texts == [number] * 3)

    episodes = app_episodes(
        tokenizer, app, group_size=64, script=lambda request: request.messages[-1].content
    )
    assert [episode.reward for episode in episodes] == [1.0] * 64
    assert all(len(episode.rollouts["coder"].turns) == 3 for episode in episodes)


def test_a_workflow_beside_an_app_is_refused() -> None:
    with pytest.raises(ConfigError, match="brings its own workflow"):
        mrlm.MAGRPOTrainer(app=two, train_dataset=ROWS, agents=NAMES, workflow=workflow)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "give app"),
        ({"app": two, "command": ["true"]}, "one of them"),
        ({"app": lambda: 0}, "app(row)"),
        ({"app": two, "reward": lambda row: 0}, "reward(row, result)"),
        ({"app": two, "variables": {"A": "1"}}, "variables is for a command"),
        ({"app": two, "sandbox": True}, "sandbox is for a command"),
        ({"command": ["node"], "sandbox": ["/nowhere"]}, "/nowhere does not exist"),
        ({"app": two, "instances": "coder"}, "'coder' is none of the agents agent"),
    ],
)
def test_impossible_arguments(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        AppEnvironment(dataset=ROWS, **settings)
    assert text in str(error.value)


async def spawns(row: Any) -> float:
    """As many coders as the planner's answer has letters."""
    plan = said(await chat("planner", row["question"]))
    count = len(plan) % 8
    await asyncio.gather(*(chat(f"coder#{number}", plan) for number in range(count)))
    for number in range(count):
        await mrlm.reward(-0.25, agent=f"coder#{number}")
    return 1.0


def test_instances_have_rollouts_of_their_own_and_credit_who_spawned_them(tokenizer: Any) -> None:
    def script(request: Any) -> str:
        return "x" * (request.seed % 8)

    episodes = app_episodes(
        tokenizer, spawns, script=script, group_size=16, instances={"coder": "planner"}
    )
    sizes = {len(episode.rollouts) - 1 for episode in episodes}
    assert len(sizes) > 3
    for episode in episodes:
        (planner,) = episode.rollouts["planner"].turns
        count = len(planner.message.content) % 8
        names = [f"coder#{number}" for number in range(count)]
        assert sorted(episode.rollouts) == sorted(["planner", *names])
        assert planner.reward == pytest.approx(1 - 0.25 * count)
        coders = [episode.rollouts[name] for name in names]
        assert all(coder.policy == "policy" and coder.reward == 0.75 for coder in coders)
        assert all(coder.turns[0].agent == coder.agent for coder in coders)


@pytest.mark.parametrize("algorithm", ["MAGRPO", "MAPPO"])
def test_instances_train_the_policy_of_their_role(algorithm: str, tmp_path: Path) -> None:
    made = getattr(mrlm, f"{algorithm}Trainer")
    settings = {"learning_rate": 1e-3, "max_new_tokens": 8, "batch_size": 4, "report_to": "none"}
    settings["num_generations"] = 6
    world = AppEnvironment(spawns, ROWS, None, ["planner", "coder"], instances=["coder"])
    trainer = made(environment=world, output_dir=str(tmp_path), num_iterations=2, **settings)
    learners = trainer.run.learners
    before = {each.policy: each.weights_of.fingerprint() for each in learners}
    history = trainer.train().history
    assert 0.5 <= history[0]["reward/coder/mean"] <= 1.0 and not any("#" in k for k in history[0])
    assert before.keys() == {"planner", "coder"}
    (coder,) = (each.weights_of for each in learners if each.policy == "coder")
    assert before["coder"] != coder.fingerprint()


@pytest.mark.parametrize("algorithm", ["QMIX", "ReMax", "C3"])
def test_credit_by_name_refuses_instances(algorithm: str) -> None:
    world = AppEnvironment(spawns, ROWS, None, ["planner", "coder"], instances=["coder"])
    with pytest.raises(ConfigError, match=r"credits every agent by its name.*magrpo"):
        getattr(mrlm, f"{algorithm}Trainer")(environment=world, batch_size=2).train(1)


def test_a_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    def trainer(name: str, steps: int) -> Any:
        return mrlm.MAGRPOTrainer(
            app=three_agents.solve,
            reward_func=three_agents.score,
            train_dataset=ROWS,
            agents=NAMES,
            output_dir=str(tmp_path / name),
            **{"num_generations": 2, "learning_rate": 1e-3, "max_new_tokens": 6, "batch_size": 2},
            **{"num_iterations": steps, "report_to": "none"},
        )

    whole = trainer("whole", 2).train().history
    trainer("parts", 1).train()
    rest = trainer("parts", 2).train(resume_from_checkpoint=True).history
    assert (rest[-1]["loss"], rest[-1]["entropy"]) == (whole[-1]["loss"], whole[-1]["entropy"])


async def tree(row: Any, name: str = "solver", depth: int = 0) -> None:
    """Up to three children of every call, by its own words; each costs 0.2."""
    words = said(await chat(name, row["question"]))
    number = min(3, sum(ord(letter) % 2 for letter in words)) if depth < 2 else 0
    stem = f"{name}." if "#" in name else f"{name}#"
    children = [f"{stem}{child}" for child in range(number)]
    await asyncio.gather(*(tree(row, child, depth + 1) for child in children))
    for child in children:
        await mrlm.reward(-0.2, agent=child)
    if not depth:
        await mrlm.reward(0.0, agent=name)


@pytest.mark.slow
def test_a_recursive_app_learns_to_spawn_less_when_calls_cost(tmp_path: Path) -> None:
    world = AppEnvironment(tree, ROWS, None, ["solver"], instances={"solver": "solver"})
    trainer = mrlm.GRPOTrainer(
        environment=world,
        output_dir=str(tmp_path),
        **{"group_size": 8, "learning_rate": 3e-3, "max_new_tokens": 6, "batch_size": 4},
        **{"num_iterations": 25, "report_to": "none"},
    )
    calls = [row["turns/mean"] for row in trainer.train().history]
    assert min(calls[:3]) > 10 and max(calls[-3:]) < 4


ESCAPES = """
import json, os, socket, sys, urllib.request
json.loads(sys.stdin.readline())
result = {"keys": [name for name in os.environ if "SECRET" in name], "outside": [], "inside": True}
for path in (sys.argv[1], "/etc/passwd", "/root", "/home", "/proc/1/root/etc/passwd"):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read()
        result["outside"].append(path)
    except OSError:
        pass
for process in filter(str.isdigit, os.listdir("/proc")):
    try:
        held = open(f"/proc/{process}/environ", "rb").read()
    except OSError:
        continue
    result["keys"] += [process] * (b"SECRET" in held)
try:
    open(os.path.join(os.path.dirname(__file__), "written"), "w")
except OSError:
    pass
for port in (int(sys.argv[2]), 22):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1)
        result["outside"].append(port)
    except OSError:
        pass
open("/tmp/note", "w").write("x")
body = {"model": "coder", "messages": [{"role": "user", "content": "Hi"}]}
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "text/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
sent = urllib.request.Request(url, json.dumps(body).encode(), head)
result["text"] = json.load(urllib.request.urlopen(sent))["choices"][0]["message"]["content"]
print(json.dumps(result))
"""


def test_a_program_in_the_sandbox_reaches_its_episode_and_nothing_else(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    file, secret = tmp_path / "app" / "solve.py", tmp_path / "secret"
    file.write_text(ESCAPES)
    secret.write_text("x")
    results: list[Any] = []

    def score(row: Any, result: Any) -> float:
        results.append(result)
        return 1.0

    keys = {"SECRET_KEY": "x"}  # of another process, which /proc shows
    sleeper = subprocess.Popen(["sleep", "600"], env=keys)
    with sleeper, socket.create_server(("127.0.0.1", 0)) as other:
        command = [python(), "app/solve.py", str(secret), str(other.getsockname()[1])]
        for sandbox in (False, ["app/solve.py"]):
            episodes = app_episodes(tokenizer, None, score, command=command, sandbox=sandbox)
            assert len(episodes[0].rollouts["coder"].turns) == 1
            assert (file.parent / "written").exists() is not bool(sandbox)
            (file.parent / "written").unlink(missing_ok=True)
        sleeper.kill()
    free, isolated = results
    assert isolated == {"keys": [], "outside": [], "inside": True, "text": "yes"}
    assert free["keys"] and str(secret) in free["outside"] and len(free["outside"]) > 2
    assert not handler().sessions


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["/nowhere/node", "app.js"], "cannot be started in the sandbox"),
        (["sh", "-c", "exit 3"], "ended with 3"),
    ],
)
def test_a_program_that_fails_in_the_sandbox(tokenizer: Any, command: Any, text: str) -> None:
    with pytest.raises(AllFailedError) as error:
        app_episodes(tokenizer, command=command, sandbox=True)
    assert text in str(error.value)


def test_without_bubblewrap_a_sandbox_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_opened", {})
    monkeypatch.setattr(tiers.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"apt-get install bubblewrap.*or remove `sandbox`"):
        AppEnvironment(dataset=ROWS, command=["true"], sandbox=True)
