"""Samples through vLLM's server: completions of token ids with their log-probs, adapters by name,
weights reloaded after every update, sleep mode between batches."""

import asyncio
import hashlib
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mrlm.core.errors import EndpointError, EngineError
from mrlm.core.log import log
from mrlm.core.types import JSON
from mrlm.engines.shared.calls import Missing, finished, sampling_fields, signed
from mrlm.engines.shared.heads import is_tied, write_head
from mrlm.engines.shared.server_engine import ServerEngine, httpx
from mrlm.play.engine import Request

FRESH = 1.0
"""Seconds for which a check of a server's weights is valid."""
PACKED: str = hashlib.sha256(b"").hexdigest()
"""Checksum of a weight that a server has moved into a packed format."""


@dataclass(eq=False, repr=False)
class VllmEngine(ServerEngine):
    """Samples through `vllm serve`. The server has to run with `VLLM_SERVER_DEV_MODE=1` (weights,
    sleep), `--logprobs-mode processed_logprobs` (log-probs at the sampling temperature) and, for
    adapters, `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`; for `sleep` also with
    `--enable-sleep-mode`.

    Args:
        policies, base_url, servers, api_key_env, sync_folder, sleep, timeout, max_retries,
            max_concurrent: as for every engine with servers.
        model: name of the whole model on the server; by default, the one that the server lists.
    """

    kind: ClassVar[str] = "vllm"
    route: ClassVar[str] = "/v1/completions"
    no_route: ClassVar[str] = (
        "start vLLM with VLLM_SERVER_DEV_MODE=1 (docs/engines.md has the whole command)"
    )

    model: str | None = None

    _models: dict[str, str] = field(default_factory=dict, init=False)
    _heads_apart: dict[str, bool] = field(default_factory=dict, init=False)
    """Server -> whether it stores a tied output head separately from the embedding."""
    _marks: dict[str, tuple[str, float] | None] = field(default_factory=dict, init=False)
    """Server -> the label of its weights, and when they were last labelled; `None` if it does not
    support labels."""

    def _body(self, request: Request) -> JSON:
        name = request.policy
        return {
            "model": name if self.policies[name].adapter else self._models[self.url_of[name]],
            "prompt": request.prompt_ids,
            "max_tokens": request.sampling.max_new_tokens,
            "seed": signed(request.seed),
            "logprobs": 1,
            "return_token_ids": True,
            **sampling_fields(request.sampling, self.kind, every_token=0),
        }

    def _read(self, answer: Any) -> tuple[list[int], list[float], str]:
        choice = answer["choices"][0]
        reason = finished(choice["finish_reason"])
        ids = [int(value) for value in choice["token_ids"]]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        return ids, logprobs, reason

    async def _prepare(self, client: httpx.AsyncClient, name: str, since: float) -> None:
        url = self.url_of[name]
        await self._look(client, name)
        if name not in self._placed:
            self._heads_apart.pop(url, None)
        await super()._prepare(client, name, since)
        if not self.policies[name].adapter and url not in self._models:
            self._models[url] = self.model or await self._model_at(client, url)

    async def _look(self, client: httpx.AsyncClient, name: str) -> None:
        """Check that the server of a whole model still has the weights it was sent: a restarted
        server has its initial ones. A restart takes longer than `FRESH`, so a check is valid for
        that long."""
        url = self.url_of[name]
        mark, seen = self._marks.get(url) or ("", 0.0)
        if not mark or name not in self._placed or time.monotonic() - seen < FRESH:
            return
        try:
            reply = await client.get(f"{url}/weight_info")
            version = reply.json()["weight_version"] if reply.is_success else None
        except (httpx.HTTPError, ValueError, KeyError) as error:
            log.debug("%s did not report its weights: %r", url, error)
            version = None
        if version == mark:
            self._marks[url] = mark, time.monotonic()
        else:
            self._placed.pop(name, None)

    async def _model_at(self, client: httpx.AsyncClient, url: str) -> str:
        """The name of the model that is not an adapter."""
        models = (await self._post(client, url, "/v1/models", method="GET")).get("data", [])
        whole = [model["id"] for model in models if model.get("parent") is None]
        if not whole:
            raise EngineError(f"{url}/v1/models names no model")
        return whole[0]

    async def _push(self, client: httpx.AsyncClient, name: str, folder: Path) -> None:
        url = self.url_of[name]
        if self.policies[name].adapter:
            await self._load_adapter(client, url, name, folder)
        else:
            if await asyncio.to_thread(is_tied, folder) and await self._head_apart(client, url):
                await asyncio.to_thread(write_head, folder)
            kwargs = {"weights_path": str(folder)}
            body = {"method": "reload_weights", "kwargs": kwargs}
            await self._post(client, url, "/collective_rpc", body)
            await self._mark(client, url)
        await self._post(client, url, "/reset_prefix_cache")

    async def _mark(self, client: httpx.AsyncClient, url: str) -> None:
        if self._marks.get(url, ()) is None:
            return
        mark = secrets.token_hex(8)
        try:
            await self._post(client, url, "/update_weight_version", {"new_version": mark})
        except EndpointError:
            self._marks[url] = None
        else:
            self._marks[url] = mark, time.monotonic()

    async def _head_apart(self, client: httpx.AsyncClient, url: str) -> bool:
        """Whether a server stores the output head of a tied model separately, so that it has to be
        sent by name. Older servers do not report it, and do not. Raises `EngineError`: its head is
        the embedding, in a packed format that is created once."""
        if url not in self._heads_apart:
            try:
                answer = await self._post(client, url, "/weight_checker", {"action": "checksum"})
            except EndpointError:
                return False
            checksums = answer["checksums"]
            self._heads_apart[url] = apart = any("lm_head." in name for name in checksums)
            if not apart and PACKED in checksums.values():
                raise EngineError(
                    f"the vLLM server at {url} packs its weights when it starts (as it does on a "
                    "processor) and would keep the old output head, which this model shares with "
                    "its embedding; start it with --hf-overrides "
                    "'{\"tie_word_embeddings\": false}'"
                )
        return self._heads_apart[url]

    async def _load_adapter(
        self, client: httpx.AsyncClient, url: str, name: str, folder: Path
    ) -> None:
        """Load the adapter in place; older servers have to unload it first."""
        body = {"lora_name": name, "lora_path": str(folder)}
        try:
            await self._post(client, url, "/v1/load_lora_adapter", body | {"load_inplace": True})
        except EngineError as error:
            if "already" not in str(error):
                raise
            with suppress(Missing):  # already unloaded
                await self._post(client, url, "/v1/unload_lora_adapter", {"lora_name": name})
            await self._post(client, url, "/v1/load_lora_adapter", body)

    async def _doze(self, client: httpx.AsyncClient, url: str) -> None:
        """Sleep at level 1: weights are kept in CPU memory, also without an update."""
        await self._post(client, url, "/sleep?level=1")

    async def _wake(self, client: httpx.AsyncClient, url: str, part: str) -> None:
        await self._post(client, url, f"/wake_up?tags={part}")


PLUGIN = VllmEngine
