"""Policies behind a server, through both of its doors: the OpenAI protocol, asked by OpenAI's own
client, and gRPC."""

import asyncio
import copy
import json
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import openai
import pytest
import torch
import yaml
from transformers import AutoTokenizer

from commands import Mrlm
from mrlm.build.served_policies import house_of
from mrlm.cli.serve import open_door, open_hub
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError, EndpointError, EngineError
from mrlm.core.types import Completion, Message, SamplingParams
from mrlm.core.weight_lock import WeightLock
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.weight_files import write_weights
from mrlm.play.engine import Request
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client import policies
from mrlm.serving.client.policies import PolicyClient
from mrlm.serving.environments.server import Settings
from mrlm.serving.policies.admission import Refusal
from mrlm.serving.policies.http_server import HttpServer
from mrlm.serving.policies.hub import PolicyHub
from mrlm.serving.policies.openai_fields import spoken
from mrlm.serving.policies.openai_http import OpenAIHandler
from mrlm.serving.protocol.channels import service_stub
from policy_server import Doors

TOKEN = "open sesame"
SAID = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def doors(tiny_path: str) -> Iterator[Doors]:
    torch.set_num_threads(1)
    house = house_of({"base": tiny_path})
    found = Doors(PolicyHub(house.served(), takes_weights=True), TOKEN, max_body=100_000)
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(doors: Doors) -> openai.OpenAI:
    return openai.OpenAI(api_key=TOKEN, base_url=f"{doors.url}/v1", max_retries=0, timeout=None)


@pytest.fixture
def http(doors: Doors) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=doors.url, headers=headers, timeout=None) as found:
        yield found


# -- the OpenAI protocol ---------------------------------------------------------------------------


def test_chat_says_what_the_engine_says(client: Any, model: Any, tokenizer: Any) -> None:
    policy = Policy("base", model, tokenizer)
    prompt = policy.chat.prompt([Message("Say something.")]).ids
    sampling = SamplingParams(12, temperature=0.8, top_p=0.9)
    request = Request("base", prompt, sampling, 5)
    wanted = asyncio.run(LeanEngine({"base": policy}).generate([request]))[0]
    asked = {"model": "base", "messages": SAID, "seed": 5, "temperature": 0.8, "top_p": 0.9}
    found = client.chat.completions.create(**asked, max_tokens=12, logprobs=True)
    (choice,) = found.choices
    assert choice.message.content == wanted.text
    assert [each.logprob for each in choice.logprobs.content] == pytest.approx(wanted.logprobs)
    assert choice.finish_reason == wanted.finish_reason
    assert found.usage.prompt_tokens == len(prompt)
    assert found.usage.completion_tokens == len(wanted.token_ids)
    stream = client.chat.completions.create(
        **asked, max_completion_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == wanted.text
    assert chunks[-2].choices[0].finish_reason == wanted.finish_reason
    assert chunks[-1].usage.total_tokens == found.usage.total_tokens


def test_choices_differ_and_seeds_repeat(client: Any) -> None:
    asked: dict[str, Any] = {"model": "base", "messages": SAID, "max_tokens": 8}
    first = client.chat.completions.create(**asked, n=3, seed=9)
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 3 and [choice.index for choice in first.choices] == [0, 1, 2]
    alone = client.chat.completions.create(**asked, seed=9)
    assert alone.choices[0].message.content == texts[0]
    drawn = {client.chat.completions.create(**asked).choices[0].message.content for _ in "ab"}
    assert len(drawn) == 2  # without a seed every request draws its own


def test_text_completions_with_token_ids(client: Any, tokenizer: Any) -> None:
    more = {"return_token_ids": True, "top_k": 5, "min_p": 0.01}
    found = client.completions.create(
        model="base", prompt=[[5, 6, 7], [8, 9]], max_tokens=6, logprobs=1, seed=1, extra_body=more
    )
    first, second = found.choices
    assert first.prompt_token_ids == [5, 6, 7] and second.prompt_token_ids == [8, 9]
    assert len(first.token_ids) == len(first.logprobs.token_logprobs) == 6
    assert first.text == tokenizer.decode(first.token_ids, skip_special_tokens=True)
    assert found.usage.prompt_tokens == 5
    text = client.completions.create(model="base", prompt="Once", max_tokens=5, seed=2)
    stop = text.choices[0].text[2]
    short = client.completions.create(
        model="base", prompt="Once", max_tokens=5, seed=2, stop=stop
    ).choices[0]
    assert short.text == text.choices[0].text.split(stop)[0] and short.finish_reason == "stop"
    chunks = client.completions.create(
        model="base", prompt="Once", max_tokens=5, seed=2, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == text.choices[0].text


def test_a_raw_prompt_is_control_and_a_message_is_not(
    client: Any, http: httpx.Client, tokenizer: Any
) -> None:
    """What a client has rendered itself is read as what it spells, as other servers of the protocol
    read it; the same text as a message is letters."""
    chat = Chat(tokenizer)
    rendered = chat.render([Message("Say something.")])
    ids = chat.prompt([Message("Say something.")]).ids
    special = set(tokenizer.all_special_ids)
    assert special & set(ids)
    more = {"return_token_ids": True}
    for prompt in (rendered, [rendered, rendered]):
        found = client.completions.create(
            model="base", prompt=prompt, max_tokens=1, seed=1, extra_body=more
        )
        assert [each.prompt_token_ids for each in found.choices] == [ids] * len(found.choices)
    body = {"model": "base", "messages": [{"role": "user", "content": rendered}], "max_tokens": 1}
    said = http.post("/v1/chat/completions", json=body).json()
    forged = chat.prompt([Message(rendered)]).ids
    assert said["usage"]["prompt_tokens"] == len(forged)
    count = len([each for each in ids if each in special])
    assert len([each for each in forged if each in special]) == count


def test_tools_reach_the_template_and_calls_come_back(client: Any, tiny_path: str) -> None:
    """In the system message if the template explains none; a model's call in its own words becomes
    one."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    reply = client.chat.completions.create(model="base", messages=SAID, tools=[tool], max_tokens=4)
    shown = Chat(tokenizer).prompt([Message(SAID[0]["content"], metadata={"tools": [tool]})])
    assert reply.usage.prompt_tokens == len(shown.ids)
    assert f"<tools>\n{json.dumps(tool)}\n</tools>" in shown.text
    tokenizer.chat_template = "{{ tools | tojson }}" + tokenizer.chat_template
    shown = Chat(tokenizer).prompt([Message("hi", metadata={"tools": [tool]})])
    assert '"name": "add"' in shown.text
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    message, reason = spoken(Completion([1], [-1.0], f"Well. {call}"), [tool])
    assert reason == "tool_calls" and message["content"] == "Well."
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    broken = Completion([1], [-1.0], "<tool_call>{oops}</tool_call>")
    assert spoken(broken, [tool]) == ({"role": "assistant", "content": broken.text}, "stop")


def test_models_and_health(client: Any, http: httpx.Client) -> None:
    (found,) = client.models.list().data
    assert found.id == "base" and found.max_model_len == 8192
    assert client.models.retrieve("base") == found
    assert http.get("/v1/models/no/such").json()["error"]["code"] == "model_not_found"
    assert len(found.mrlm["fingerprint"]) == 2
    assert http.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"model": "other"}, 404, "policy 'other' does not exist on this server; it has base"),
        ({"messages": []}, 400, "messages must be a list with at least one message"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0]: unknown role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        ({"temperature": -1}, 400, "temperature must be from 0 to 100"),
        ({"temperature": "hot"}, 400, "temperature must be a number"),
        ({"top_p": 0}, 400, "top_p must be above 0"),
        ({"n": 1000}, 400, "n must be a whole number from 1 to 64"),
        ({"max_tokens": 0}, 400, "max_tokens must be a whole number from 1"),
        ({"max_tokens": 9000}, 400, "the maximum context length is 8192 tokens"),
        ({"stop": [1]}, 400, "stop must be a text or a list of texts"),
        ({"seed": "x"}, 400, "seed must be a whole number"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty is not supported"),
        ({"stream": "yes"}, 400, "stream must be true or false"),
        ({"tool_choice": "required"}, 400, "tool_choice may be"),
        ({"stream": True, "stream_options": "x"}, 400, "stream_options must be an object"),
        ({"stream": True, "stream_options": {"x": True}}, 400, "stream_options may have"),
        ({"tools": [{"type": "function", "function": {}}], "tool_choice": "none"}, 400, "tools[0]"),
    ],
)
def test_bad_requests(changes: dict[str, Any], status: int, said: str, http: httpx.Client) -> None:
    body = {"model": "base", "messages": SAID, "max_tokens": 2} | changes
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert said in error["message"] and error["type"] == "invalid_request_error"
    if "max_tokens" in changes and status == 400 and changes["max_tokens"]:
        assert error["code"] == "context_length_exceeded"


def test_bodies_that_are_none(http: httpx.Client, doors: Doors) -> None:
    where = "/v1/chat/completions"
    for data in (b"{", b"[1]", b"[" * 90_000, b'{"model": NaN}', b"\xff"):
        reply = http.post(where, content=data)
        assert reply.status_code == 400 and "JSON" in reply.json()["error"]["message"]
    assert http.post(where, content=b"x" * 200_000).status_code == 413
    assert http.get("/v1/nothing").json()["error"]["message"] == "unknown route"
    assert http.get(where).status_code == 405
    for header in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", "Bearer " + "é" * 9):
        for path in ("/health", "/v1/models"):
            headers = {"authorization": header.encode()}
            reply = httpx.get(doors.url + path, headers=headers)
            assert reply.status_code == 401 and "token" in reply.json()["error"]["message"]


def test_pages_in_a_browser_are_not_let_in(doors: Doors) -> None:
    """A server without a token listens to this machine, where browsers run what others wrote."""
    open_door = HttpServer(OpenAIHandler(doors.desk)).start()
    try:
        headers = {"origin": "https://example.org", "content-type": "text/plain"}
        reply = httpx.post(f"{open_door.url}/sleep", content=b"{}", headers=headers)
        assert reply.status_code == 403 and "token" in reply.text
        assert httpx.get(f"{open_door.url}/health").status_code == 200
    finally:
        open_door.stop()


def test_what_goes_wrong_inside_stays_inside(
    http: httpx.Client, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = doors.desk.served["base"].engine

    async def fail(requests: Any) -> Any:
        raise RuntimeError("the secret is /root/key")

    body = {"model": "base", "messages": SAID, "max_tokens": 2}
    with monkeypatch.context() as patch:
        patch.setattr(engine, "generate", fail)
        reply = http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 500 and "secret" not in reply.text
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    monkeypatch.setattr(doors.desk, "waiting", doors.desk.max_waiting)
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 429 and float(reply.headers["retry-after"]) > 0


def test_nothing_is_read_from_the_disk_unless_allowed(http: httpx.Client, tiny_path: str) -> None:
    asked = {
        "/update_weights_from_disk": {"model_path": tiny_path},
        "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": tiny_path},
        "/collective_rpc": {"method": "reload_weights", "kwargs": {"weights_path": tiny_path}},
    }
    for path, body in asked.items():
        reply = http.post(path, json=body)
        assert reply.status_code == 403 and "--weights-from" in reply.text
    other = http.post("/collective_rpc", json={"method": "exec"})
    assert other.status_code == 400


def test_the_folder_of_weights_is_not_left(tiny_path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "way out").symlink_to(tmp_path)
    (root / "in").mkdir()
    desk = PolicyHub(house_of({"base": tiny_path}).served(), weights_from=root)
    try:
        assert desk.readable(str(root / "in")) == root / "in"
        for path in (tiny_path, str(root / ".." / "x"), str(root / "way out"), f"{root}x"):
            with pytest.raises(Refusal, match="not below the one of --weights-from"):
                desk.readable(path)
        with pytest.raises(Refusal, match="does not exist"):
            desk.readable(str(root / "none"))
        with pytest.raises(Refusal, match="--take-weights"):
            desk.update("base", folder=root)
    finally:
        desk.close()


# -- gRPC ------------------------------------------------------------------------------------------


@pytest.fixture
def asked() -> list[Request]:
    return [
        Request("base", [5, 6, 7, 20 + n % 5], SamplingParams(4 + n % 3), 100 + n)
        for n in range(24)
    ]


def test_answers_do_not_depend_on_who_else_asks(doors: Doors, asked: list[Request]) -> None:
    """Tokens are those of the seed, however requests are spread over clients."""

    async def spread(parts: list[list[Request]]) -> list[Any]:
        clients = [PolicyClient(doors.address, TOKEN) for _ in parts]
        jobs = [c.generate("base", part) for c, part in zip(clients, parts, strict=True)]
        return [each for part in await asyncio.gather(*jobs) for each in part]

    together = asyncio.run(spread([asked]))
    apart = asyncio.run(spread([[each] for each in asked]))
    assert [each.token_ids for each in together] == [each.token_ids for each in apart]
    for one, other in zip(together, apart, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_large_batches_go_in_several_messages(asked: list[Request]) -> None:
    parts = policies._portions(asked * 20_000)
    assert len(parts) > 1 and sum(map(len, parts)) == 480_000
    assert policies._portions(asked) == [asked]


def test_the_tokenizer_comes_over(doors: Doors, tokenizer: Any, tmp_path: Path) -> None:
    files = asyncio.run(PolicyClient(doors.address, TOKEN).tokenizer_files("base"))
    for name, data in files.items():
        assert Path(name).name == name
        (tmp_path / name).write_bytes(data)
    found = AutoTokenizer.from_pretrained(tmp_path)
    assert found("A word.")["input_ids"] == tokenizer("A word.")["input_ids"]
    assert found.chat_template == tokenizer.chat_template


def test_weights_arrive_whole_or_not_at_all(
    doors: Doors, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    file = tmp_path / "weights.safetensors"
    policy = Policy("base", copy.deepcopy(model), tokenizer)
    before, _ = asyncio.run(PolicyClient(doors.address, TOKEN).list())
    write_weights(policy, file)
    data = file.read_bytes()

    def send(**changes: Any) -> None:
        sent = changes.pop("data", data)
        header = {"policy": "base", "version": 3, "num_bytes": len(sent)}
        header |= {"sha256": sha256(sent).hexdigest()} | changes
        chunks = [pb.WeightsChunk(header=pb.WeightsHeader(**header))]
        chunks += [pb.WeightsChunk(data=sent[n : n + 65536]) for n in range(0, len(sent), 65536)]
        with grpc.insecure_channel(doors.address) as channel:
            stub = service_stub(channel, "Policies")
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            stub.UpdateWeights(iter(chunks), metadata=metadata)

    del policy.model.model.layers[1].mlp.gate_proj.weight
    small = tmp_path / "small.safetensors"
    write_weights(policy, small)
    bad: list[tuple[dict[str, Any], grpc.StatusCode]] = [
        ({"sha256": "0" * 64}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"num_bytes": len(data) - 1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"num_bytes": len(data) + 1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"num_bytes": 1 << 40}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"policy": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"data": data[:-9]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"data": b"none"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"data": small.read_bytes()}, grpc.StatusCode.INVALID_ARGUMENT),
    ]
    for changes, code in bad:
        with pytest.raises(grpc.RpcError) as refused:
            send(**changes)
        assert refused.value.code() is code  # type: ignore[attr-defined]
        assert "/tmp" not in refused.value.details()  # type: ignore[attr-defined]
    after, _ = asyncio.run(PolicyClient(doors.address, TOKEN).list())
    assert after == before
    send()
    after, _ = asyncio.run(PolicyClient(doors.address, TOKEN).list())
    assert after["base"].version == 3
    assert after["base"].fingerprint == before["base"].fingerprint


def test_a_wrong_token_and_an_unknown_policy_end_at_once(
    doors: Doors, asked: list[Request]
) -> None:
    with pytest.raises(EndpointError, match="unauthenticated: the token is missing or wrong"):
        asyncio.run(PolicyClient(doors.address, "wrong").list())
    good = PolicyClient(doors.address, TOKEN)
    with pytest.raises(EndpointError, match="policy 'x' does not exist"):
        asyncio.run(good.generate("x", asked[:1]))
    long = Request("base", [1] * 8190, SamplingParams(9), 1)
    with pytest.raises(EngineError, match="maximum context length"):
        asyncio.run(good.generate("base", [long]))
    none = Request("base", [10**6], SamplingParams(9), 1)
    with pytest.raises(EngineError, match="token ids outside"):
        asyncio.run(good.generate("base", [none]))
    with pytest.raises(ConfigError, match="file /no/such/file does not exist"):
        PolicyClient(doors.address, ca="/no/such/file")


def test_a_token_is_not_sent_unencrypted_to_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"unencrypted to 192\.0\.2\.1:50051: set"):
        asyncio.run(PolicyClient("192.0.2.1:50051", TOKEN).list())


# -- parts -----------------------------------------------------------------------------------------


def test_weights_change_while_nobody_speaks() -> None:
    """Speakers overlap; whoever changes something is alone and goes before those who come later."""
    gate, seen = WeightLock(), []

    async def speak(name: str, seconds: float) -> None:
        async with gate.passing():
            seen.append(f"{name} in")
            await asyncio.sleep(seconds)
            seen.append(f"{name} out")

    async def change() -> None:
        async with gate.alone():
            seen.append("change")
            await asyncio.sleep(0.01)
            seen.append("changed")

    async def play() -> None:
        early = [asyncio.create_task(speak(name, 0.05)) for name in "ab"]
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(change())
        await asyncio.sleep(0.01)
        given_up = asyncio.create_task(change())
        late = asyncio.create_task(speak("c", 0))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(*early, waiting, late)

    asyncio.run(asyncio.wait_for(play(), 60))
    assert seen == ["a in", "b in", "a out", "b out", "change", "changed", "c in", "c out"]
    asyncio.run(asyncio.wait_for(play(), 60))  # and on another loop


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to serve is given"),
        (("--policy", "base"), "write NAME=FOLDER"),
        (("--http-port", "0", "-e", "relay"), "--http-port is for policies"),
        (("--dtype", "float16", "-e", "relay"), "--dtype is for policies"),
        (("--workers", "2", "--policy", "a=x"), "--workers is for environments"),
        (("--lease", "9", "--policy", "a=x"), "--lease is for environments"),
        (("--policy", "a=x", "--policy", "a=y"), "the name 'a' is given twice"),
        (("--policy", "a=./none"), "the folder does not exist"),
        (
            ("--policy", "a=x", "--weights-from", "none"),
            "--weights-from none: this folder does not exist",
        ),
        (("--policy", "a=x", "--policies-of", "x.yaml"), "give one of them"),
    ],
)
def test_options_that_cannot_be(words: tuple[str, ...], said: str, run: Mrlm) -> None:
    done = run("serve", *words)
    assert done.code == 2 and said in done.err


def test_a_door_is_guarded_as_the_server_is_and_closed_when_it_ends(doors: Doors) -> None:
    settings = Settings(token="another", max_message_bytes=2000)
    with open_door(doors.desk, settings, None) as none:
        assert none is None
    with open_door(doors.desk, settings, 0) as url:
        assert url is not None
        with httpx.Client(base_url=url, timeout=None) as client:
            assert client.get("/v1/models").status_code == 401
            client.headers["authorization"] = "Bearer another"
            assert client.get("/v1/models").json()["data"][0]["id"] == "base"
            asked = {"model": "base", "messages": [{"role": "user", "content": "x" * 2000}]}
            assert client.post("/v1/chat/completions", json=asked).status_code == 413
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v1/models")
    public = Settings(host="0.0.0.0", token="another")
    with pytest.raises(ConfigError, match="needs TLS"), open_door(doors.desk, public, 0):
        pass


def test_of_a_pipeline_the_policies_of_the_last_stage_are_served(
    tmp_path: Path, tiny_path: str
) -> None:
    stages = [{"name": each, "policies": {f"policy_{each}": {}}} for each in "abc"]
    config = {
        "model": {"model_name_or_path": tiny_path},
        "environments": [{"env_type": "math"}],
        "training": {"algorithm": "grpo"},
        "stages": stages,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    desk = open_hub(None, tmp_path / "c.yaml", False, None, "cpu", "bfloat16", 60.0)
    assert desk is not None
    try:
        assert list(desk.served) == ["policy_c"] and not desk.takes_weights
        holder: Any = desk.served["policy_c"].holder
        assert {x.dtype for x in holder.policy.model.parameters()} == {torch.bfloat16}
    finally:
        desk.close()
    with pytest.raises(ConfigError, match="'nonsense'"):
        open_hub(None, tmp_path / "c.yaml", False, None, "cpu", "nonsense", 60.0)
    assert open_hub(None, None, False, None, "cpu", "float32", 60.0) is None


def test_weights_are_taken_by_either_option(tmp_path: Path, tiny_path: str) -> None:
    for take, folder in ((False, None), (True, None), (False, tmp_path)):
        hub = open_hub([f"base={tiny_path}"], None, take, folder, "cpu", "float32", 60.0)
        assert hub is not None
        with closing(hub):
            assert (hub.takes_weights, hub.weights_from) == (take or folder is not None, folder)


@pytest.mark.parametrize("door", ["grpc", "folder"])
def test_what_was_pushed_is_sampled_from_at_once(
    door: str, asked: list[Request], tiny_path: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """The server's engine has copies of the weights: it takes new ones when it is told to."""
    root = tmp_path / "sync"
    desk = PolicyHub(house_of({"base": tiny_path}).served(), takes_weights=True, weights_from=root)
    try:
        before = desk.ask(asked).result()
        with torch.no_grad():
            model.model.norm.weight.mul_(1.5)
        policy = Policy("base", model, tokenizer)
        if door == "grpc":
            write_weights(policy, tmp_path / "weights.safetensors")
            desk.update("base", 7, file=tmp_path / "weights.safetensors").result()
        else:
            policy.save(root / "new")
            desk.update("base", 7, folder=root / "new").result()
        found = desk.ask(asked).result()
    finally:
        desk.close()
    expected = asyncio.run(LeanEngine({"base": policy}).generate(asked))
    for one, two, old in zip(found, expected, before, strict=True):
        assert one.policy_version == 7 and one.token_ids == two.token_ids
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5) != old.logprobs
