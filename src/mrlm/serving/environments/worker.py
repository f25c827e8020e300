"""A worker process of an environment server: one environment instance per session. It receives its
operations over a socket, and is independent of network, leases and call numbers.

Started as `python -m mrlm.serving.environments.worker DESCRIPTOR`.
"""

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from typing import Any

from mrlm.core.errors import MRLMError
from mrlm.core.log import log
from mrlm.core.sync_async import BackgroundJobs
from mrlm.serving.environments.ipc import NOBODY, End, Frame, Frames, Op
from mrlm.serving.environments.worker_sessions import Host

ENDING = 5.0
"""Seconds a worker may continue after its server is gone."""


class SessionWorker:
    """Answers the frames of its server; sets `over` when the server is gone."""

    def __init__(self, over: asyncio.Event) -> None:
        self.frames: Frames = Frames(self._heard, over.set)
        self._host: Host | None = None
        self._pause = 1.0
        self._jobs = BackgroundJobs()

    def _heard(self, frame: Frame) -> None:
        self._jobs.start(self._answer(frame))

    async def _answer(self, frame: Frame) -> None:
        if frame.kind == Op.HELLO:
            end, body = self._begin(json.loads(frame.body))
        else:
            assert self._host is not None
            end, body = await self._host.answer(frame.kind, frame.session, frame.body)
        self.frames.send(frame.number, end, frame.session, body)

    def _begin(self, hello: dict[str, Any]) -> tuple[End, bytes]:
        sys.path[:] = hello["path"]
        try:
            self._host = Host(hello["environments"], hello["most_bytes"], hello["arguments"])
        except MRLMError as error:
            return End.REFUSED, str(error).encode()
        except Exception as error:  # an error in a user's module at import
            log.error("the environments cannot be loaded", exc_info=error)
            return End.REFUSED, f"the environments cannot be loaded: {error!r}".encode()
        self._pause = hello["beat"]
        return End.DONE, b""

    async def beat(self) -> None:
        while True:
            self.frames.send(0, End.DONE, NOBODY, b"")
            await asyncio.sleep(self._pause)

    def close(self) -> None:
        if self._host is not None:
            self._host.close()


def _outlive(seconds: float) -> None:
    """Exit with the server, the other end of standard input, even if an environment hangs."""
    while os.read(0, 1024):
        pass
    threading.Event().wait(seconds)
    os._exit(1)


async def _work(descriptor: int) -> None:
    over = asyncio.Event()
    worker = SessionWorker(over)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: worker.frames, sock=socket.socket(fileno=descriptor))
    beating = asyncio.ensure_future(worker.beat())
    await over.wait()
    beating.cancel()
    worker.close()


def main() -> None:
    """Serve until the server is gone."""
    logging.basicConfig(format=f"worker {os.getpid()}: %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    threading.Thread(target=_outlive, args=(ENDING,), daemon=True).start()
    asyncio.run(_work(int(sys.argv[1])))
    os._exit(0)  # threads of environments that hang do not keep it alive


if __name__ == "__main__":
    main()
