"""Samples through SGLang's server: token ids in and out with their log-probs, adapters by name,
weights read from disk after every update, memory released between batches."""

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mrlm.core.errors import EngineError
from mrlm.core.types import JSON
from mrlm.engines.shared.calls import Missing, finished, sampling_fields, signed
from mrlm.engines.shared.server_engine import ServerEngine, httpx
from mrlm.play.engine import Request


@dataclass(eq=False, repr=False)
class SglangEngine(ServerEngine):
    """Samples through `python -m sglang.launch_server`. The server has to run with `--enable-lora`
    for adapters and with `--enable-memory-saver` for `sleep`.

    Args:
        policies, base_url, servers, api_key_env, sync_folder, sleep, timeout, max_retries,
            max_concurrent: as for every engine with servers.
    """

    kind: ClassVar[str] = "sglang"
    wakes_twice: ClassVar[bool] = False
    route: ClassVar[str] = "/generate"
    no_route: ClassVar[str] = "is it a sglang server?"

    _marks: dict[str, str] = field(default_factory=dict, init=False)
    """Server -> the label of the weights it was sent."""
    _marking: set[str] = field(default_factory=set, init=False)
    """Servers that return the label with every answer."""

    def _body(self, request: Request) -> JSON:
        body: JSON = {
            "input_ids": request.prompt_ids,
            "sampling_params": {
                "max_new_tokens": request.sampling.max_new_tokens,
                "sampling_seed": signed(request.seed),
                **sampling_fields(request.sampling, self.kind, every_token=-1),
            },
            "return_logprob": True,
        }
        adapter = self.policies[request.policy].adapter
        return body | ({"lora_path": request.policy} if adapter else {})

    def _read(self, answer: Any) -> tuple[list[int], list[float], str]:
        about = answer["meta_info"]
        reason, pairs = finished(about["finish_reason"]["type"]), about["output_token_logprobs"]
        return [int(pair[1]) for pair in pairs], [float(pair[0]) for pair in pairs], reason

    async def _post(
        self,
        client: httpx.AsyncClient,
        url: str,
        route: str,
        body: JSON | None = None,
        method: str = "POST",
    ) -> Any:
        answer = await super()._post(client, url, route, body, method)
        if route == self.route and body is not None and "lora_path" not in body:
            self._check(url, answer)
        return answer

    def _check(self, url: str, answer: Any) -> None:
        """Detect a restarted server: it has its initial weights, and no label. Raises `Missing`:
        the answer is from such weights."""
        about = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(about, dict) or url not in self._marks:
            return
        if about.get("weight_version") == self._marks[url]:
            self._marking.add(url)
        elif url in self._marking:
            raise Missing(f"{url} has other weights than it was sent")

    async def _push(self, client: httpx.AsyncClient, name: str, folder: Path) -> None:
        url = self.url_of[name]
        if self.policies[name].adapter:
            with suppress(EngineError, Missing):  # if it matters, loading reports it
                await self._taken(client, url, "/unload_lora_adapter", {"lora_name": name})
            body = {"lora_name": name, "lora_path": str(folder)}
            await self._taken(client, url, "/load_lora_adapter", body)
            await self._post(client, url, "/flush_cache")
        else:
            mark = secrets.token_hex(8)
            body = {"model_path": str(folder), "flush_cache": True, "weight_version": mark}
            await self._taken(client, url, "/update_weights_from_disk", body)
            self._marks[url] = mark

    async def _taken(self, client: httpx.AsyncClient, url: str, route: str, body: JSON) -> None:
        """Request a change that the server may answer with a failure."""
        answer = await self._post(client, url, route, body)
        if isinstance(answer, dict) and answer.get("success") is False:
            reason = str(answer.get("message") or answer.get("error_message"))[:300]
            raise EngineError(f"{url}{route} did not succeed: {reason}")

    async def _doze(self, client: httpx.AsyncClient, url: str) -> None:
        """Release the memory of keys and values, and that of the weights if they will be read again
        before the next request."""
        await self._post(client, url, "/release_memory_occupation", {"tags": self._parts(url)})

    async def _wake(self, client: httpx.AsyncClient, url: str, part: str) -> None:
        if part in self._parts(url):
            await self._post(client, url, "/resume_memory_occupation", {"tags": [part]})

    async def _rouse(self, client: httpx.AsyncClient, url: str) -> None:
        """Resume and reload the weights: their memory has lost its content."""
        for name in [policy for policy in self._placed if self.url_of[policy] == url]:
            if "weights" in self._parts(url):
                await self._place(client, name)
        if url in self.asleep:
            await super()._rouse(client, url)

    def _parts(self, url: str) -> list[str]:
        """The parts that a server releases: its weights only if it serves one whole model of this
        run and no adapters."""
        here = [self.policies[name] for name, where in self.url_of.items() if where == url]
        whole = [policy for policy in here if policy.adapter is None]
        return ["kv_cache", "weights"] if len(whole) == len(here) == 1 else ["kv_cache"]


PLUGIN = SglangEngine
