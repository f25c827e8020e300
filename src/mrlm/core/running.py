"""Coroutines from ordinary code, also where an event loop is running already (a notebook)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
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
        return pool.submit(lambda: asyncio.run(wait())).result()
