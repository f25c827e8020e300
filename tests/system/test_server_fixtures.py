"""Engines against what vLLM and SGLang say they understand and answer: recorded exchanges, for what
runs on an accelerator only."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from mrlm.core.errors import EndpointError, EngineError
from mrlm.core.types import SamplingParams
from mrlm.engines import vllm
from mrlm.engines.sglang import SglangEngine
from mrlm.engines.shared import server_engine
from mrlm.engines.vllm import VllmEngine
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request
from places import FIXTURES

FOLDER = FIXTURES
ENGINES: dict[str, Any] = {"vllm": VllmEngine, "sglang": SglangEngine}
LORA = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": "all-linear"}
ASKED = Request("ann", [5, 6, 7], SamplingParams(8, temperature=0.7), (1 << 63) + 3)


def scenes(kind: str, *names: str) -> list[dict[str, Any]]:
    found = yaml.safe_load((FOLDER / f"{kind}.yaml").read_text())
    return [exchange for name in names for exchange in found[name]]


def alike(found: Any, wanted: Any) -> bool:
    if wanted == "ANY":
        return True
    if isinstance(wanted, dict) and isinstance(found, dict):
        return found.keys() == wanted.keys() and all(alike(found[k], wanted[k]) for k in wanted)
    return found == wanted


@contextmanager
def replayed(exchanges: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """A server that expects exactly these requests; its address, and what was wrong."""
    left, wrong = list(exchanges), []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            asked = f"{self.command} {self.path}"
            exchange = left.pop(0) if left else {"ask": "nothing more"}
            if asked != exchange["ask"] or not alike(body, exchange.get("body")):
                wrong.append(f"{asked} {body}, and not {exchange}")
            say = exchange.get("say", "")
            data = say.encode() if isinstance(say, str) else json.dumps(say).encode()
            self.send_response(exchange.get("status", 200))
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}", wrong
        finally:
            http.shutdown()
            thread.join()
    assert wrong == [] and left == []


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(vllm, "FRESH", math.inf)  # no second look at a slow machine


@pytest.fixture
def whole(model: Any, tokenizer: Any) -> Policy:
    return Policy("ann", model, tokenizer)


@pytest.fixture
def adapter(model: Any, tokenizer: Any) -> Policy:
    return Policy("ann", add_adapter(model, "ann", LORA), tokenizer, adapter="ann")


@pytest.mark.parametrize("kind", ENGINES)
def test_whole_models(kind: str, whole: Policy, tmp_path: Path) -> None:
    """Placed, asked, put to sleep, updated, asked while the server gives up and is too busy."""
    with replayed(scenes(kind, "whole model", "asleep", "given up")) as (url, _):
        engine = ENGINES[kind]({"ann": whole}, url, sync_folder=str(tmp_path), sleep=True)
        first = asyncio.run(engine.one(ASKED))
        asyncio.run(engine.rest())
        asyncio.run(engine.load_weights("ann", whole, 4))
        second = asyncio.run(engine.one(ASKED))
    assert first.token_ids == [35, 36, 2] and first.logprobs == [-1.5, -0.25, -0.125]
    assert (first.text, first.finish_reason) == (whole.chat.decode([35, 36, 2]), "stop")
    assert (first.policy_version, second.policy_version) == (0, 4)
    assert second.logprobs == first.logprobs
    assert engine.retries.count == 2
    (folder,) = tmp_path.glob("*/ann/*")  # what the server was given last is still there
    assert (folder / "model.safetensors").is_file() and (folder / "config.json").is_file()


def test_a_head_that_a_server_keeps_apart(whole: Policy, tmp_path: Path) -> None:
    """A vLLM that packs its weights would keep an old head that is the embedding: the run ends with
    the way out. One that keeps the head apart is given it by name."""
    with replayed(scenes("vllm", "packed")) as (url, _):
        engine = VllmEngine({"ann": whole}, url, sync_folder=str(tmp_path), max_retries=0)
        with pytest.raises(EngineError, match=r"hf-overrides '{.tie_word_embeddings.: false}'"):
            asyncio.run(engine.load_weights("ann", whole, 1))
    with replayed(scenes("vllm", "packed apart")) as (url, _):
        engine = VllmEngine({"ann": whole}, url, sync_folder=str(tmp_path))
        asyncio.run(engine.load_weights("ann", whole, 1))
    (file,) = tmp_path.glob("*/ann/*/lm_head.safetensors")
    (head,) = load_file(file).values()
    assert torch.equal(head, whole.model.get_output_embeddings().weight)


def test_a_server_that_was_started_again_gets_its_weights_again(
    whole: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no call failed in between, so that only the server's word on its weights tells."""
    monkeypatch.setattr(vllm, "FRESH", 0.0)
    first, later = scenes("vllm", "whole model"), scenes("vllm", "started again")
    again = [each for each in first if "/v1/models" not in each["ask"]]
    with replayed([*first, *later, *again]) as (url, _):
        engine = VllmEngine({"ann": whole}, url, sync_folder=str(tmp_path))
        for _ in range(2):
            asyncio.run(engine.one(ASKED))
    assert engine.pushes == 2


@pytest.mark.parametrize(
    ("kind", "scene"),
    [("vllm", "adapter"), ("vllm", "adapter of an older server"), ("sglang", "adapter")],
)
def test_adapters(kind: str, scene: str, adapter: Policy, tmp_path: Path) -> None:
    with replayed(scenes(kind, scene)) as (url, _):
        engine = ENGINES[kind]({"ann": adapter}, url, sync_folder=str(tmp_path))
        asyncio.run(engine.load_weights("ann", adapter, 1))
        body = engine._body(ASKED)
    assert body["model" if kind == "vllm" else "lora_path"] == "ann"
    (folder,) = tmp_path.glob("*/ann/*")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {
        f.name for f in folder.iterdir()
    }


def test_refusals_that_no_repetition_cures(whole: Policy, tmp_path: Path) -> None:
    with replayed(scenes("vllm", "no development mode")) as (url, _):
        engine = VllmEngine({"ann": whole}, url, sync_folder=str(tmp_path))
        with pytest.raises(EndpointError, match="start vLLM with VLLM_SERVER_DEV_MODE=1"):
            asyncio.run(engine.load_weights("ann", whole, 1))
    with replayed(scenes("sglang", "weights refused")) as (url, _):
        engine = SglangEngine({"ann": whole}, url, sync_folder=str(tmp_path))
        with pytest.raises(EngineError, match="shape mismatch"):
            asyncio.run(engine.load_weights("ann", whole, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ENGINES)
def test_against_a_server_with_an_accelerator(kind: str, whole: Policy, tmp_path: Path) -> None:
    """A server that was started as docs/engines.md says, with the embedded model."""
    import os

    url = os.environ.get(f"MRLM_{kind.upper()}_URL")
    if not url:
        pytest.skip(f"set MRLM_{kind.upper()}_URL to a {kind} server with the embedded model")
    from mrlm.engines.lean.engine import LeanEngine

    engine = ENGINES[kind]({"ann": whole}, url, sync_folder=os.environ.get("MRLM_SYNC_FOLDER"))
    found = asyncio.run(engine.generate([ASKED] * 4))
    greedy = Request("ann", [5, 6, 7], SamplingParams(8, temperature=0.0), 1)
    mine, theirs = (
        asyncio.run(each.generate([greedy]))[0] for each in (LeanEngine({"ann": whole}), engine)
    )
    assert all(len(each.token_ids) == len(each.logprobs) for each in found)
    assert theirs.token_ids == mine.token_ids
