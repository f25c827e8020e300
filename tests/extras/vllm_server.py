"""A real vLLM server on a processor, as long as a block lasts (`make test-extras`)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx

from mrlm.engines.shared.heads import write_head
from places import free_port

STARTUP = 900.0
"""Seconds that a server may take to start on a busy core; one or two minutes are usual."""
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"),
    *("--logprobs-mode", "processed_logprobs"),
    *("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8"),
    *("--hf-overrides", '{"tie_word_embeddings": false}'),
)


def folder_of(model: str, folder: Path) -> Path:
    """A copy of a tied model whose head is also there by name, so that a server that keeps it apart
    has it before the first update."""
    shutil.copytree(model, folder)
    write_head(folder)
    return folder


class Vllm:
    """A server that can be started again at the same address.

    Args:
        folder: of the model.
        log: file for what it prints.
        flags: of `vllm serve`.
    """

    def __init__(self, folder: Path, log: Path, flags: tuple[str, ...] = FLAGS) -> None:
        self.folder, self.log, self.flags = folder, log, flags
        self.port: int = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.folder)]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*program, *where, *self.flags],
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        limit = time.monotonic() + STARTUP
        while not self.answers():
            assert self._process.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < limit, self.log.read_text()[-5000:]
            time.sleep(1.0)
        self._began = httpx.get(f"{self.url}/weight_info").json()["weight_version"]

    def answers(self) -> bool:
        """Whether it is there."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def renew(self) -> None:
        """Start it again, unless it has the weights that it began with."""
        if httpx.get(f"{self.url}/weight_info").json()["weight_version"] != self._began:
            self.kill()
            self.start()

    def kill(self) -> None:
        """End it at once, with all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def served(folder: Path, log: Path, flags: tuple[str, ...] = FLAGS) -> Iterator[Vllm]:
    """A server for a folder."""
    server = Vllm(folder, log, flags)
    server.start()
    try:
        yield server
    finally:
        server.kill()
