"""The gRPC service of policies: token ids in and out with their log-probs, tokenizers, and weights
as a stream that is verified before anything changes."""

import asyncio
import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from mrlm.core.log import log
from mrlm.core.sampling import OFF, SamplingParams
from mrlm.core.types import Completion
from mrlm.play.engine import Request
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.policies.admission import Refusal, checked_sampling, count_repeated
from mrlm.serving.policies.hub import RETRY_AFTER, PolicyHub, ServedPolicy

Context = Any
SLACK = 16 << 20
"""Bytes that a weight file may exceed twice the size of the weights by."""
CODES: dict[str, grpc.StatusCode] = {
    "unknown": grpc.StatusCode.NOT_FOUND,
    "bad": grpc.StatusCode.INVALID_ARGUMENT,
    "long": grpc.StatusCode.OUT_OF_RANGE,
    "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "asleep": grpc.StatusCode.UNAVAILABLE,
    "slow": grpc.StatusCode.DEADLINE_EXCEEDED,
    "forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "failed": grpc.StatusCode.INTERNAL,
}


NAME = "mrlm.v1.Policies"
PROMPTS = 2
"""Number of the `GenerateRequest` field that holds its prompts."""


class Policies:
    """The gRPC service of policies: `EnvironmentServer(settings, [Policies(hub).add_to])`."""

    def __init__(self, hub: PolicyHub) -> None:
        self.hub = hub

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register this service with a server. Requests for completions arrive as raw bytes, so
        that they are counted before they are parsed."""
        unary = grpc.unary_unary_rpc_method_handler
        handlers: dict[str, Any] = {
            "List": unary(self.List, pb.ListRequest.FromString, _bytes),
            "GetTokenizer": unary(self.GetTokenizer, pb.PolicyName.FromString, _bytes),
            "Generate": unary(self.Generate),
            "UpdateWeights": grpc.stream_unary_rpc_method_handler(
                self.UpdateWeights, pb.WeightsChunk.FromString, _bytes
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    async def List(self, request: Any, context: Context) -> Any:
        served = list(self.hub.served.values())
        infos = await asyncio.to_thread(lambda: [_info(policy) for policy in served])
        return pb.ListReply(policies=infos, epoch=self.hub.epoch)

    async def GetTokenizer(self, request: Any, context: Context) -> Any:
        async with _refusing(context):
            holder = self.hub.find(request.policy).holder
            return pb.Files(files=await asyncio.to_thread(holder.tokenizer_files))

    async def Generate(self, data: bytes, context: Context) -> bytes:
        async with _refusing(context):
            count = count_repeated(data, PROMPTS, self.hub.max_waiting)
            _, completions = await self.hub.sample(count, lambda: _requests(data))
            return await self.hub.read(lambda: _reply(completions, self.hub.epoch))
        raise AssertionError("a refusal ends the call")

    async def UpdateWeights(self, request_iterator: AsyncIterator[Any], context: Context) -> Any:
        async with _refusing(context):
            self.hub.require_trainer()
            with tempfile.TemporaryDirectory(prefix="mrlm-weights-") as folder:
                file = Path(folder) / "weights.safetensors"
                header = await self._receive(request_iterator, file)
                done = self.hub.update(header.policy, header.version, file=file)
                return pb.WeightsReply(version=await asyncio.wrap_future(done))

    async def _receive(self, chunks: AsyncIterator[Any], file: Path) -> Any:
        """Write the chunks to a file; returns the header. Raises `Refusal`: they do not match."""
        header = (await anext(chunks, pb.WeightsChunk())).header
        served = self.hub.find(header.policy)
        if header.num_bytes > 2 * served.holder.size + SLACK:
            raise Refusal(
                "bad",
                f"{header.num_bytes} bytes do not match the size of the weights of {served.name!r}",
            )
        digest, size = hashlib.sha256(), 0

        def keep(data: bytes) -> None:
            digest.update(data)
            out.write(data)

        with file.open("wb") as out:
            async for chunk in chunks:
                size += len(chunk.data)
                if size > header.num_bytes:
                    raise Refusal("bad", "more was sent than the header says")
                await asyncio.to_thread(keep, chunk.data)
        if size != header.num_bytes:
            raise Refusal("bad", f"{size} of {header.num_bytes} bytes arrived; send them again")
        if not secrets.compare_digest(digest.hexdigest(), header.sha256):
            raise Refusal("bad", "the weights arrived damaged (sha256 differs); send them again")
        return header


def _bytes(message: Any) -> bytes:
    return message.SerializeToString()


def _requests(data: bytes) -> list[Request]:
    try:
        request = pb.GenerateRequest.FromString(data)
    except DecodeError:
        raise Refusal("bad", "the message is not a GenerateRequest") from None
    if not request.prompts:
        raise Refusal("bad", "the request has no prompts")
    return [_request(request.policy, prompt) for prompt in request.prompts]


def _reply(answers: Sequence[Completion], epoch: str) -> bytes:
    return pb.GenerateReply(completions=map(_completion, answers), epoch=epoch).SerializeToString()


def _completion(completion: Completion) -> Any:
    return pb.Completion(
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        text=completion.text,
        finish_reason=completion.finish_reason,
        version=completion.policy_version,
    )


def _info(served: ServedPolicy) -> Any:
    return pb.PolicyInfo(
        name=served.name,
        model=served.model,
        max_context=served.max_context,
        version=served.version,
        fingerprint=served.fingerprint(),
    )


def _request(policy: str, prompt: Any) -> Request:
    sent = prompt.sampling
    if len(UnknownFieldSet(sent)):
        text = "the client has a sampling parameter that this server does not know"
        raise Refusal("bad", text, "sampling")
    values: dict[str, Any] = {name: getattr(sent, name) for name in sent.DESCRIPTOR.fields_by_name}
    values |= {name: off for name, off in OFF.items() if not values.get(name)}  # by old clients
    sampling = checked_sampling(SamplingParams(**values))
    return Request(policy, list(prompt.token_ids), sampling, prompt.seed)


@asynccontextmanager
async def _refusing(context: Context) -> AsyncIterator[None]:
    """Turn refusals into gRPC statuses; details of other errors stay in the log."""
    try:
        yield
    except Refusal as refusal:
        trailers = (("retry-after", f"{RETRY_AFTER:g}"),) if refusal.kind == "busy" else ()
        await context.abort(CODES[refusal.kind], str(refusal), trailers)
    except (grpc.aio.AbortError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("a call to a policy failed")
        text = "the server failed to answer; its log says why"
        await context.abort(grpc.StatusCode.INTERNAL, text)
