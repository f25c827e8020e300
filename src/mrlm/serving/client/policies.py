"""Client of an MRLM policy server: requests completions and uploads weights."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from mrlm.core.errors import EndpointError, EngineError
from mrlm.core.retries import Passing, Retries, one_line, retry_after
from mrlm.core.types import Completion
from mrlm.play.engine import Request
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.calling import Access, address_of, short
from mrlm.serving.protocol.channels import service_stub

CHUNK = 1 << 20
"""Bytes of weights in one message."""
PORTION = 3 << 20
"""Approximate bytes of requests and their answers in one message."""
PROMPT_BYTES, ANSWER_BYTES = 4, 16
"""Approximate bytes of a prompt token, and of an answer token with its log-prob and text."""
FIRST_WAIT = 0.2
LONGEST_WAIT = 30.0
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Status codes after which a retry may succeed."""
FINAL = {
    grpc.StatusCode.UNAUTHENTICATED: "check the token",
    grpc.StatusCode.PERMISSION_DENIED: "ask the administrator of the server",
    grpc.StatusCode.NOT_FOUND: "check the names of the policies on the server",
    grpc.StatusCode.UNIMPLEMENTED: "start the server with policies",
}
"""Status codes that every further request would get too, with the fix."""


class PolicyClient:
    """The client of one server. Calls that fail for a transient reason (no connection, no capacity)
    are repeated with exponential backoff.

    Args:
        ca: PEM file of certificates to trust; TLS is used if it is given or with `tls`.
        tls: use TLS with the certificates that the system trusts.
        timeout: seconds that one call may take.
        max_retries: how often a call is repeated.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        ca: str | None = None,
        tls: bool = False,
        timeout: float = 600.0,
        max_retries: int = 4,
    ) -> None:
        server = address_of(address.removeprefix("grpc://"))
        self._server = replace(server, tls=True if tls else None)
        self.address: str = str(server)
        self._access = Access(token, ca)
        self.timeout = timeout
        self._retries = Retries(max_retries, FIRST_WAIT, LONGEST_WAIT)
        self.lost: int = 0
        """How often the server was away or restarted: it may have its initial weights."""
        self._epoch: str = ""

    # -- calls -------------------------------------------------------------------------------------

    async def list(self) -> tuple[dict[str, pb.PolicyInfo], str]:
        """The policies by name, and the epoch of the server's start."""
        reply = await self._call("List", pb.ListRequest())
        self._note(reply.epoch)
        return {info.name: info for info in reply.policies}, reply.epoch

    async def tokenizer_files(self, policy: str) -> dict[str, bytes]:
        """The files of a policy's tokenizer, by name."""
        reply = await self._call("GetTokenizer", pb.PolicyName(policy=policy))
        return dict(reply.files)

    async def generate(self, policy: str, requests: Sequence[Request]) -> Sequence[Completion]:
        """One completion for each request, in order. A batch too large for one message is split."""
        parts: Sequence[Sequence[Request]] = _portions(requests)
        answers = await asyncio.gather(*(self._generate(policy, part) for part in parts))
        return [completion for part in answers for completion in part]

    async def _generate(self, policy: str, requests: Sequence[Request]) -> Sequence[Completion]:
        names = pb.Sampling.DESCRIPTOR.fields_by_name
        prompts = [
            pb.Prompt(
                token_ids=entry.prompt_ids,
                sampling=pb.Sampling(**entry.sampling.carried(names, self._title)),
                seed=entry.seed % (1 << 64),
            )
            for entry in requests
        ]
        reply = await self._call("Generate", pb.GenerateRequest(policy=policy, prompts=prompts))
        if len(reply.completions) != len(requests):
            raise EngineError(
                f"{self._title} answered {len(reply.completions)} of {len(requests)} prompts"
            )
        self._note(reply.epoch)
        return [_completion(entry) for entry in reply.completions]

    async def update(self, policy: str, file: Path, version: int) -> int:
        """Upload a safetensors file as the weights of a policy; returns its new version."""
        digest = await asyncio.to_thread(_sha256, file)
        header = pb.WeightsHeader(
            policy=policy, version=version, num_bytes=file.stat().st_size, sha256=digest
        )
        reply = await self._call("UpdateWeights", lambda: _chunks(header, file))
        return reply.version

    # -- one call ----------------------------------------------------------------------------------

    def _note(self, epoch: str) -> None:
        self.lost += self._epoch not in ("", epoch)
        self._epoch = epoch

    @property
    def _title(self) -> str:
        return f"the server at {self.address}"

    async def _call(self, method: str, message: Any | Callable[[], AsyncIterator[Any]]) -> Any:
        return await self._retries.run(lambda: self._tried(method, message), self._title)

    async def _tried(self, method: str, message: Any | Callable[[], AsyncIterator[Any]]) -> Any:
        try:
            async with self._access.channel(self._server) as channel:  # of the running event loop
                call = getattr(service_stub(channel, "Policies"), method)
                sent = message() if callable(message) else message
                return await call(sent, timeout=self.timeout, metadata=self._access.metadata())
        except grpc.aio.AioRpcError as error:
            code, reason = error.code(), one_line(short(error.details() or ""))
            failure = f"{code.name.lower()}: {reason}"
            if code in FINAL:
                raise EndpointError(
                    f"{self._title} refuses {method}, {failure}; {FINAL[code]}"
                ) from None
            if code not in PASSING:
                raise EngineError(f"{self._title} failed at {method}, {failure}") from None
            self.lost += code is grpc.StatusCode.UNAVAILABLE
            wait = dict(error.trailing_metadata() or ()).get("retry-after")
            raise Passing(failure, retry_after(wait if isinstance(wait, str) else None)) from None


def _portions(requests: Sequence[Request]) -> list[list[Request]]:
    """Split requests, in order, into portions of at most `PORTION` bytes, with their answers."""
    portions: list[list[Request]] = [[]]
    size = 0
    for request in requests:
        request_bytes = (
            PROMPT_BYTES * len(request.prompt_ids) + ANSWER_BYTES * request.sampling.max_new_tokens
        )
        if portions[-1] and size + request_bytes > PORTION:
            portions.append([])
            size = 0
        portions[-1].append(request)
        size += request_bytes
    return portions


def _completion(answer: Any) -> Completion:
    ids, logprobs = [*answer.token_ids], [*answer.logprobs]
    if len(ids) != len(logprobs) or not ids:
        raise EngineError(f"{len(ids)} tokens came with {len(logprobs)} log-probs")
    reason = "length" if answer.finish_reason == "length" else "stop"
    return Completion(ids, logprobs, answer.text, reason, answer.version)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


async def _chunks(header: Any, file: Path) -> AsyncIterator[Any]:
    yield pb.WeightsChunk(header=header)
    with file.open("rb") as data:
        while part := data.read(CHUNK):
            yield pb.WeightsChunk(data=part)
