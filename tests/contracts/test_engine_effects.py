"""Every argument of every engine changes something: what it says, or what it hands to the client or
the model that it asks. One whose effect is seen elsewhere names the test. Trackers take none."""

from typing import Any

import httpx2 as httpx
import pytest

from effects import assert_tests_exist
from mrlm.config.plugins import accepted
from mrlm.core import registry
from mrlm.core.sync_async import run_async
from mrlm.core.types import SamplingParams
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

ASKED = "test_engine_openai.py::test_{}"
SENT = ASKED.format("what_is_sent_and_what_comes_back")
SPACED = ASKED.format("calls_are_spaced_and_few_at_once")
LOADED = "test_world_model.py::test_the_world_is_the_model_of_its_arguments"
ROUTES = "test_server_engines.py::test_a_run_through_the_routes_of_other_servers"
SERVERS = "test_server_engines.py::test_policies_that_do_not_fit_their_servers"
SLEEPS = "test_server_engines.py::test_a_server_sleeps_and_wakes"
LOST = "test_server_engines.py::test_a_server_that_is_lost_gets_its_weights_again"
ELSEWHERE: dict[str, str] = {
    "hf.policies": "test_engine_hf.py::test_draws_of_the_engine_follow_the_model",
    "lean.policies": "test_engine_lean.py::test_it_says_what_the_general_engine_says",
    "lean.cache_mib": "test_engine_lean.py::test_what_is_kept_stays_within_its_bound",
    "lean.int8": "test_engine_int8.py::test_samples_are_near_those_of_the_weights",
    "lean.kv_mib": "test_engine_accelerated.py::test_rows_wait_for_memory",
    "lean.unseen_writes": "test_engine_lean.py::test_versions_decide_where_writes_are_told",
    "mrlm.policies": LOST,
    "openai.policy": SENT,
    "openai.base_url": ASKED.format("one_that_is_only_asked"),
    "openai.model": SENT,
    "openai.api_key_env": ASKED.format("the_key_comes_from_the_environment_alone"),
    "openai.max_retries": ASKED.format("tries_come_further_and_further_apart"),
    "openai.requests_per_minute": SPACED,
    "openai.max_concurrent": SPACED,
    "openai.timeout": ASKED.format("what_may_pass_is_asked_again"),
    "openai.price": SENT,
    "openai.token_limit": ASKED.format("the_limit_of_tokens_under_its_other_name"),
    "openai.body": SENT,
    # the scores are the same, memory is not
    "reward_model.max_tokens": (
        "test_reward_model.py::test_a_sequence_classifier_is_a_reward_model"
    ),
    "world_model.sampling": "test_plugin_effects.py::test_an_argument_changes_something",
    "world_model.tokenizer": LOADED,
    **{
        f"{name}.{field}": test
        for name in ("vllm", "sglang")
        for field, test in {
            "policies": LOST,
            "base_url": ROUTES,
            "servers": SERVERS,
            "sync_folder": ROUTES,
            "sleep": SLEEPS,
            "max_retries": LOST,
        }.items()
    },
}
"""Arguments whose effect needs a server or a model, and the test of it."""
HANDED = (
    *((name, field) for name in ("vllm", "sglang") for field in ("timeout", "max_concurrent")),
    *((name, "api_key_env") for name in ("vllm", "sglang", "mrlm")),
    *(("mrlm", field) for field in ("base_url", "ca", "timeout", "max_retries")),
    *(("reward_model", field) for field in ("path", "device", "dtype")),
    *(("world_model", field) for field in ("model", "device", "dtype")),
)
"""Arguments that are handed on, and what each is compared by below."""
VALUES: dict[str, Any] = {
    "timeout": 7.0,
    "max_concurrent": 3,
    "api_key_env": "SOME_KEY",
    "ca": "ca.pem",
    "max_retries": 1,
    "path": "nowhere/else",
    "device": "cuda:1",
    "dtype": "bfloat16",
    "model": "other",
}


class Enough(Exception):
    """Everything has been noted."""


def handed(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[Any]:
    """What an engine hands to its client, its model, or what collects its requests."""
    noted: list[Any] = []

    def note(*arguments: Any, **more: Any) -> Any:
        noted.append((arguments, sorted(more.items(), key=str)))
        raise Enough

    plugin = registry.load("engines", name)
    module = f"mrlm.engines.{name}"
    if name == "mrlm":
        monkeypatch.setattr(f"{module}.PolicyClient", note)
        with pytest.raises(Enough):
            plugin({"p": policy}, **{"base_url": "localhost:1"} | given)
    elif name in ("vllm", "sglang"):
        engine = plugin({"p": policy}, base_url="http://localhost:1", **given)
        monkeypatch.setattr(httpx, "AsyncClient", note)
        with pytest.raises(Enough):
            run_async(engine.generate([Request("p", [1], SamplingParams(max_new_tokens=1), 0)]))
    else:
        place = {"path": "nowhere"} if name == "reward_model" else {"model": "nowhere"}
        engine = plugin(**place | given)
        monkeypatch.setattr(f"{module}.load_model", note)
        if name == "world_model":
            monkeypatch.setattr(f"{module}.load_tokenizer", lambda path: None)
        with pytest.raises(Enough):
            _ = engine._policy
    return noted


def walked() -> list[tuple[str, str]]:
    return [
        (name, field)
        for name in registry.names("engines")
        for field in accepted(registry.load("engines", name))[0]
    ]


def test_every_argument_has_a_case() -> None:
    here = {f"{name}.{field}" for name, field in HANDED}
    here |= {f"scripted.{field}" for field in SCRIPTED} | {"hf.batch_size", "lean.batch_size"}
    here |= {"world_model.timeout", "vllm.model"}
    assert not here & ELSEWHERE.keys()
    assert here | ELSEWHERE.keys() == {f"{name}.{field}" for name, field in walked()}


def test_tests_elsewhere_exist() -> None:
    words = {"policies": "policy", "model": "some-model", "sampling": "max_new_tokens"}
    assert_tests_exist(ELSEWHERE, words)  # some are given by position there


@pytest.mark.parametrize(("name", "field"), HANDED)
def test_an_argument_is_handed_on(
    name: str, field: str, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "a key")
    policy = Policy("p", model, tokenizer)
    value = "localhost:2" if field == "base_url" else VALUES[field]
    with monkeypatch.context() as patch:
        before = handed(name, policy, patch)
    with monkeypatch.context() as patch:
        after = handed(name, policy, patch, **{field: value})
    assert before != after, before


def test_a_world_model_waits_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        "mrlm.engines.world_model.Batcher", lambda engines, timeout, pulse: asked.append(timeout)
    )

    async def waits(**given: Any) -> None:
        engine = registry.load("engines", "world_model")("nowhere", **given)
        engine.__dict__["_loaded"] = None
        engine._batchers = {}
        engine._batcher()

    run_async(waits())
    run_async(waits(timeout=7.0))
    assert asked == [600.0, 7.0]


def test_vllm_is_asked_for_the_model_of_that_name(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*arguments: Any) -> None:
        """No weights are sent."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": "its own", "max_model_len": 64}]})

    async def named(**given: Any) -> str:
        plugin = registry.load("engines", "vllm")
        engine = plugin({"p": Policy("p", model, tokenizer)}, "http://localhost:1", **given)
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await engine._prepare(client, "p", 0.0)
        return engine._models["http://localhost:1"]

    monkeypatch.setattr("mrlm.engines.shared.server_engine.ServerEngine._prepare", nothing)
    assert run_async(named()) != run_async(named(model="mine")) == "mine"


SCRIPTED: dict[str, Any] = {"script": ["no"], "tokenizer": None, "max_context": 9, "logprob": -2.0}


class Doubled:
    """A tokenizer that writes everything twice."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __len__(self) -> int:
        return len(self.tokenizer)

    def __call__(self, text: Any, **more: Any) -> Any:
        return self.tokenizer(text * 2, **more)

    def encode(self, text: str, **more: Any) -> Any:
        return self.tokenizer.encode(text * 2, **more)


@pytest.mark.parametrize("field", SCRIPTED)
def test_a_script_says_something_else(field: str, tokenizer: Any) -> None:
    plugin = registry.load("engines", "scripted")
    base = {"script": ["yes"], "tokenizer": tokenizer}
    value = Doubled(tokenizer) if field == "tokenizer" else SCRIPTED[field]
    request = Request("p", [1], SamplingParams(max_new_tokens=20), 0)
    found = []
    for given in (base, base | {field: value}):
        engine = plugin(**given)
        found.append((run_async(engine.generate([request])), engine.max_context))
    assert found[0] != found[1]


@pytest.mark.parametrize("name", ["hf", "lean"])
def test_no_more_rows_than_that_are_decoded_at_once(
    name: str, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    plugin = registry.load("engines", name)
    rows: list[int] = []
    embedded = torch.nn.functional.embedding

    def noted(ids: Any, *arguments: Any, **more: Any) -> Any:
        rows.append(ids.shape[0] if ids.dim() > 1 and ids.shape[-1] == 1 else ids.numel())
        return embedded(ids, *arguments, **more)

    def said(**given: Any) -> Any:
        engine = plugin({"p": Policy("p", model, tokenizer)}, **given)
        asked = [Request("p", [5 + i], SamplingParams(max_new_tokens=3), i, (i,)) for i in range(6)]
        run_async(engine.generate(asked))
        return engine

    def widest(**given: Any) -> int:
        rows.clear()
        said(**given)
        return max(rows)

    def steps(**given: Any) -> int:
        return said(**given).stats.steps

    if name == "lean":  # it says how often it computed something
        assert steps(batch_size=2) > steps()
        return
    monkeypatch.setattr(torch.nn.functional, "embedding", noted)
    assert widest(batch_size=2) < widest()


def test_trackers_take_what_the_run_gives_them_alone() -> None:
    for name in registry.names("trackers"):
        fields = set(accepted(registry.load("trackers", name))[0])
        assert fields == {"folder", "run_name", "config", "state"}, name
