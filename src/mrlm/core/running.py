"""Coroutines from ordinary code, also where an event loop is running already (a notebook), and
ordinary code from coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_async(job: Awaitable[T]) -> T:
    """The result of a coroutine; in a thread of its own if this one has a running event loop."""

    async def wait() -> T:
        return await job

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(max_workers=1) as pool:
        context = contextvars.copy_context()
        return pool.submit(context.run, lambda: asyncio.run(wait())).result()


async def in_thread(function: Callable[[], T]) -> T:
    """The result of a function that may block. Its thread is a daemon: one that never returns can
    be given up, and does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # given up
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # handed to whoever waits
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), daemon=True, name="mrlm-world").start()
    return await future
