"""The gRPC door to policies: ids of tokens in and out with their log-probs, tokenizers, and new
weights as a stream that is checked before anything changes."""

from __future__ import annotations

import hashlib
import logging
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import grpc

from mrlm.core.types import SamplingParams
from mrlm.play.engine import Request
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving import mrlm_pb2_grpc
from mrlm.serving.desk import RETRY_AFTER, Desk, Refusal, Served, checked_sampling

log: logging.Logger = logging.getLogger("mrlm")

SLACK = 16 << 20
"""Bytes that a file of weights may be larger than twice the weights themselves."""
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


def add_policies(desk: Desk) -> Callable[[grpc.Server], None]:
    """What puts the service on a server: `add_policies(desk)(server)`."""
    return lambda server: mrlm_pb2_grpc.add_PoliciesServicer_to_server(Policies(desk), server)


class Policies(mrlm_pb2_grpc.PoliciesServicer):
    """The service, over a desk. Its methods block a thread of the server."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:
        served = list(self.desk.served.values())
        return pb.ListReply(policies=[_info(each) for each in served], epoch=self.desk.epoch)

    def GetTokenizer(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return pb.Files(files=self.desk.find(request.policy).holder.tokenizer_files())
        except Refusal as refusal:
            _refuse(context, refusal)

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            asked = [_request(request.policy, prompt) for prompt in request.prompts]
            if not asked:
                raise Refusal("bad", "the request has no prompts")
            found = self.desk.ask(asked).result()
        except Refusal as refusal:
            _refuse(context, refusal)
        return pb.GenerateReply(
            completions=[
                pb.Completion(
                    token_ids=each.token_ids,
                    logprobs=each.logprobs,
                    text=each.text,
                    finish_reason=each.finish_reason,
                    version=each.policy_version,
                )
                for each in found
            ]
        )

    def UpdateWeights(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Any:
        try:
            with tempfile.TemporaryDirectory(prefix="mrlm-weights-") as folder:
                file = Path(folder) / "weights.safetensors"
                header = self._receive(request_iterator, file)
                done = self.desk.update(header.policy, header.version, file=file)
                return pb.WeightsReply(version=done.result())
        except Refusal as refusal:
            _refuse(context, refusal)

    def _receive(self, chunks: Iterator[Any], file: Path) -> Any:
        """Write what is sent to a file; its header.

        Raises:
            Refusal: it is not what the header says.
        """
        header = next(chunks, pb.WeightsChunk()).header
        served = self.desk.find(header.policy)
        if header.num_bytes > 2 * served.holder.size + SLACK:
            raise Refusal("bad", f"{header.num_bytes} bytes are no weights of {served.name!r}")
        digest, size = hashlib.sha256(), 0
        with file.open("wb") as out:
            for chunk in chunks:
                size += len(chunk.data)
                if size > header.num_bytes:
                    raise Refusal("bad", "more was sent than the header says")
                digest.update(chunk.data)
                out.write(chunk.data)
        if size != header.num_bytes:
            raise Refusal("bad", f"{size} of {header.num_bytes} bytes arrived; send them again")
        if not secrets.compare_digest(digest.hexdigest(), header.sha256):
            raise Refusal("bad", "the weights arrived damaged (sha256 differs); send them again")
        return header


def _info(served: Served) -> Any:
    return pb.PolicyInfo(
        name=served.name,
        model=served.model,
        max_context=served.max_context,
        version=served.version,
        fingerprint=served.fingerprint(),
    )


def _request(policy: str, prompt: Any) -> Request:
    sent = prompt.sampling
    return Request(
        policy,
        list(prompt.token_ids),
        checked_sampling(
            SamplingParams(
                max_new_tokens=sent.max_new_tokens,
                temperature=sent.temperature,
                top_p=sent.top_p or 1.0,  # 0 is what an old client does not say
                top_k=sent.top_k,
                min_p=sent.min_p,
                stop=tuple(sent.stop),
            )
        ),
        prompt.seed,
    )


def _refuse(context: grpc.ServicerContext, refusal: Refusal) -> NoReturn:
    if refusal.kind == "busy":
        context.set_trailing_metadata((("retry-after", f"{RETRY_AFTER:g}"),))
    context.abort(CODES[refusal.kind], str(refusal))
    raise AssertionError  # abort raises
