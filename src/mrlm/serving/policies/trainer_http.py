"""Routes for trainers, with the names and shapes of vLLM's and SGLang's servers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.types import Completion, SamplingParams
from mrlm.play.engine import Request
from mrlm.serving.policies.admission import Refusal, checked_sampling
from mrlm.serving.policies.hub import PolicyHub, ServedPolicy
from mrlm.serving.policies.openai_fields import JSON, SPECIAL, Fields, is_ids

PARTS = frozenset({"weights", "kv_cache"})
"""The parts that can sleep and wake."""


def trainer_routes(hub: PolicyHub) -> dict[tuple[str, str], Callable[[JSON, Any], Awaitable[Any]]]:
    """Map (method, path) to route."""
    sleep_mode = SleepMode(hub)
    vllm, sglang = Vllm(hub, sleep_mode), Sglang(hub, sleep_mode)
    return {
        ("POST", "/v1/load_lora_adapter"): vllm.load_adapter,
        ("POST", "/v1/unload_lora_adapter"): vllm.unload_adapter,
        ("POST", "/sleep"): vllm.sleep,
        ("POST", "/wake_up"): vllm.wake_up,
        ("GET", "/is_sleeping"): vllm.is_sleeping,
        ("POST", "/collective_rpc"): vllm.collective_rpc,
        ("POST", "/reset_prefix_cache"): vllm.keep_cache,
        ("POST", "/update_weight_version"): vllm.mark,
        ("GET", "/weight_info"): vllm.weight_info,
        ("POST", "/generate"): sglang.generate,
        ("GET", "/get_model_info"): sglang.model_info,
        ("POST", "/update_weights_from_disk"): sglang.update_weights,
        ("POST", "/release_memory_occupation"): sglang.release,
        ("POST", "/resume_memory_occupation"): sglang.resume,
        ("POST", "/load_lora_adapter"): sglang.load_adapter,
        ("POST", "/unload_lora_adapter"): sglang.unload_adapter,
        ("POST", "/flush_cache"): sglang.keep_cache,
    }


class SleepMode:
    """The sleep mode of a server, part by part. While any part sleeps, no request is answered;
    weights can be changed once the weights are awake."""

    def __init__(self, hub: PolicyHub) -> None:
        self.hub = hub
        self.asleep: set[str] = set()
        self.mark: str = ""
        """The trainer's label for the current weights."""

    async def sleep(self, parts: Sequence[str]) -> None:
        await asyncio.wrap_future(self.hub.sleep())
        self.asleep |= set(self._known(parts))

    def wake(self, parts: Sequence[str]) -> None:
        """Wake parts; requests are answered when all of them are awake."""
        self.hub.require_trainer()
        self.asleep -= set(self._known(parts))
        if not self.asleep:
            self.hub.wake()

    def check(self) -> None:
        if "weights" in self.asleep:
            raise Refusal("bad", "the weights sleep; wake them before they are changed")

    def _known(self, parts: Sequence[str]) -> Sequence[str]:
        strange = set(parts) - PARTS
        if strange:
            raise Refusal("bad", f"unknown tags {sorted(strange)}; known: {sorted(PARTS)}", "tags")
        return parts or sorted(PARTS)


def whole_model(hub: PolicyHub) -> ServedPolicy:
    """The only policy that is not an adapter. Raises `Refusal`: there are none, or several."""
    whole = [policy for policy in hub.served.values() if policy.parent is None]
    if len(whole) != 1:
        raise Refusal("bad", f"this server has {len(whole)} whole models; name one of them")
    return whole[0]


@dataclass(slots=True)
class _Routes:
    """Routes over the policies of a server, and their sleep mode."""

    hub: PolicyHub
    sleep_mode: SleepMode

    async def keep_cache(self, body: JSON, request: Any) -> JSON:
        """Does nothing: prefix caches of old weights are dropped when new weights arrive."""
        return {}

    async def take_adapter(self, fields: Fields, in_place: bool, taken: str) -> str:
        """Load the adapter that a request names; returns its name. `taken` is the refusal if it is
        loaded already, and cannot be replaced."""
        name, folder = fields.text("lora_name"), self.hub.readable(fields.text("lora_path"))
        if name in self.hub.served and not in_place:
            raise Refusal("bad", taken.format(name), "lora_name")
        self.sleep_mode.check()
        await asyncio.wrap_future(self.hub.load_adapter(name, folder))
        return name

    async def take(self, path: str) -> None:
        """Load the weights of a folder into the only whole model."""
        folder = self.hub.readable(path)
        self.sleep_mode.check()
        await asyncio.wrap_future(self.hub.update(whole_model(self.hub).name, folder=folder))


class Vllm(_Routes):
    """Routes of vLLM's server."""

    async def load_adapter(self, body: JSON, request: Any) -> str:
        fields = Fields(body)
        text = "The LoRA adapter '{}' has already been loaded"
        name = await self.take_adapter(fields, fields.flag("load_inplace"), text)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload_adapter(self, body: JSON, request: Any) -> str:
        name = Fields(body).text("lora_name")
        self.hub.unload_adapter(name)
        return f"Success: LoRA adapter '{name}' removed successfully."

    async def sleep(self, body: JSON, request: Any) -> JSON:
        if request.query_params.get("level", "1") not in ("1", "2"):
            raise Refusal("bad", "level may be 1 or 2", "level")
        await self.sleep_mode.sleep(request.query_params.getlist("tags"))
        return {}

    async def wake_up(self, body: JSON, request: Any) -> JSON:
        self.sleep_mode.wake(request.query_params.getlist("tags"))
        return {}

    async def is_sleeping(self, body: JSON, request: Any) -> JSON:
        return {"is_sleeping": self.hub.asleep}

    async def collective_rpc(self, body: JSON, request: Any) -> JSON:
        """Only `reload_weights` from a folder: a remote call of any other method is refused."""
        if Fields(body).text("method") != "reload_weights":
            raise Refusal("bad", "method may be 'reload_weights' here", "method")
        arguments = body.get("kwargs")
        fields = Fields(arguments if isinstance(arguments, dict) else {})
        await self.take(fields.text("weights_path"))
        return {"results": [None]}

    async def mark(self, body: JSON, request: Any) -> JSON:
        self.hub.require_trainer()
        self.sleep_mode.mark = Fields(body).text("new_version")
        return {"success": True, "new_version": self.sleep_mode.mark}

    async def weight_info(self, body: JSON, request: Any) -> JSON:
        return {"weight_version": self.sleep_mode.mark or "default"}


class Sglang(_Routes):
    """Routes of SGLang's server."""

    async def generate(self, body: JSON, request: Any) -> Any:
        fields = Fields(body)
        if fields.flag("stream"):
            raise Refusal("bad", "stream is not supported by /generate here", "stream")
        name = body.get("lora_path")
        served = self.hub.find(name) if isinstance(name, str) else whole_model(self.hub)
        sampling, seed = _sampling(body.get("sampling_params"))
        prompts: Any = body.get("input_ids")
        single = isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], int)
        id_lists: list[Any] = [prompts] if single else prompts
        no_ids = Refusal("bad", "input_ids must be a list of token ids, or several", "input_ids")
        if not isinstance(id_lists, list) or not id_lists:
            raise no_ids
        scored = fields.flag("return_logprob")

        def asked() -> list[Request]:
            if not all(map(is_ids, id_lists)):
                raise no_ids
            return [
                Request(served.name, ids, sampling, (seed + n) % (1 << 64))
                for n, ids in enumerate(id_lists)
            ]

        sent, completions = await self.hub.sample(len(id_lists), asked)
        answers = [
            _generated(completion, len(one.prompt_ids), scored, self.sleep_mode.mark)
            for completion, one in zip(completions, sent, strict=True)
        ]
        return answers[0] if single else answers

    async def model_info(self, body: JSON, request: Any) -> JSON:
        served = whole_model(self.hub)
        return {
            "model_path": served.model,
            "is_generation": True,
            "weight_version": self.sleep_mode.mark or str(served.version),
        }

    async def update_weights(self, body: JSON, request: Any) -> JSON:
        fields = Fields(body)
        mark = fields.text("weight_version") if "weight_version" in body else ""
        await self.take(fields.text("model_path"))
        self.sleep_mode.mark = mark
        text = "Succeeded to update model weights."
        return {"success": True, "message": text, "num_paused_requests": 0}

    async def release(self, body: JSON, request: Any) -> JSON:
        await self.sleep_mode.sleep(Fields(body).texts("tags"))
        return {}

    async def resume(self, body: JSON, request: Any) -> JSON:
        self.sleep_mode.wake(Fields(body).texts("tags"))
        return {}

    async def load_adapter(self, body: JSON, request: Any) -> JSON:
        await self.take_adapter(Fields(body), False, "LoRA adapter {} is loaded already")
        return self._adapters()

    async def unload_adapter(self, body: JSON, request: Any) -> JSON:
        self.hub.unload_adapter(Fields(body).text("lora_name"))
        return self._adapters()

    def _adapters(self) -> JSON:
        served = self.hub.served.values()
        loaded = {policy.name: policy.model for policy in served if policy.parent is not None}
        return {"success": True, "error_message": "", "loaded_adapters": loaded}


def _sampling(params: Any) -> tuple[SamplingParams, int]:
    fields = Fields(params if isinstance(params, Mapping) else {}, done=SPECIAL)
    seed = Fields({"seed": fields.body.get("sampling_seed")}).seed()
    limit = fields.whole("max_new_tokens", 128, 1, 1 << 31)
    return checked_sampling(fields.sampling(limit)), seed


def _generated(completion: Completion, read: int, scored: bool, mark: str) -> JSON:
    reason: JSON = {"type": completion.finish_reason}
    if completion.finish_reason == "length":
        reason["length"] = len(completion.token_ids)
    about: JSON = {
        "finish_reason": reason,
        "prompt_tokens": read,
        "completion_tokens": len(completion.token_ids),
        "weight_version": mark or str(completion.policy_version),
    }
    if scored:
        pairs = zip(completion.logprobs, completion.token_ids, strict=True)
        about["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    return {"text": completion.text, "output_ids": completion.token_ids, "meta_info": about}
