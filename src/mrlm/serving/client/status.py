"""A status request to a server, for the command line."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio

from mrlm.core.errors import MRLMError
from mrlm.core.sync_async import run_async
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.calling import Access, Broken, ServerAddress
from mrlm.serving.protocol.stubs import service_stub

PAUSE = 0.2
"""Seconds between two attempts."""
LEAST = 5.0
"""Seconds allowed for one attempt, however short the wait."""


def server_info(address: ServerAddress, wait: float, access: Access) -> pb.InfoReply:
    """Ask a server for its environments, policies and load.

    Args:
        address: the server.
        wait: seconds to keep trying while the server does not answer.
        access: credentials of this client.

    Raises:
        MRLMError: the server does not answer in time, or rejects the credentials.
        ConfigError: the token would be sent unencrypted.
    """
    return run_async(_asked(address, wait, access))


async def _asked(address: ServerAddress, wait: float, access: Access) -> pb.InfoReply:
    deadline = time.monotonic() + wait
    async with access.channel(address) as channel:
        stub = service_stub(channel, "Environments")
        while True:
            left = max(deadline - time.monotonic(), LEAST)
            call = stub.Info(pb.InfoRequest(), timeout=left, metadata=access.metadata())
            try:
                return await call
            except grpc.aio.AioRpcError as error:
                broken = Broken.of(error)
                final = broken.final(address)
                if final is not None:
                    raise MRLMError(final) from error
                if time.monotonic() + PAUSE > deadline:
                    hint = "" if access.tls_ca else "; if it speaks TLS, give --tls-ca"
                    raise MRLMError(
                        f"no server answers at {address} within {wait:g} s ({broken}){hint}"
                    ) from error
            await asyncio.sleep(PAUSE)
