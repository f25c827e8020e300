"""A frozen agent behind a server that is not ours: `transformers serve` with the embedded model."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from mrlm import load_config
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, SamplingParams
from mrlm.engines.openai import OpenAIEngine
from mrlm.play.engine import Request
from mrlm.runs import evaluate_model
from places import free_port

pytestmark = pytest.mark.slow


def test_transformers_serve_speaks_for_a_frozen_agent(tiny_path: str, tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "transformers"
    if not command.is_file():
        pytest.skip("the command `transformers` is not beside this Python")
    port = free_port()
    words = [str(command), "serve", tiny_path, "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [*words, "--device", "cpu"],
            stdout=out,
            stderr=out,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait(url, server, log)
        engine = OpenAIEngine("judge", f"{url}/v1", tiny_path, timeout=120)
        asked = [Message("What is 2+3?")]
        request = Request("judge", [], SamplingParams(8, temperature=0.7, top_p=0.9), 5, (), asked)
        said = run_async(engine.answer(request))
        assert isinstance(said.text, str) and said.token_ids == []
        assert said.usage is None or 0 < said.usage[1] <= 8
        played = evaluate_model(load_config(config(tmp_path, url, tiny_path)), 2, 1, False)
        assert {episode.status for episode in played.episodes} == {"done"}
        assert played.metrics["eval/api/second/requests"] == 2
        assert played.metrics["eval/api/second/failures"] == 0
    finally:
        server.terminate()
        server.wait()


def wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        assert server.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/health", timeout=None).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.5)


def config(folder: Path, url: str, model: str) -> Path:
    """One agent here, one there."""
    path = folder / "x.yaml"
    path.write_text(
        f"""
environments: [{{env_type: relay, max_number: 5}}]
policies:
  first: {{}}
  second: {{endpoint: {{base_url: "{url}/v1", model: "{model}", timeout: 120}}}}
training: {{algorithm: grpo, num_iterations: 1, report_to: none}}
generation: {{max_new_tokens: 8}}
"""
    )
    return path
