"""Calls of coroutines from synchronous code, also inside a running event loop (a notebook), and of
synchronous code from coroutines."""

import asyncio
import contextvars
import functools
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from mrlm.core.errors import EpisodeError, PlayerLeft
from mrlm.core.user_errors import in_user_code, title

T = TypeVar("T")

PATIENCE = 10.0
"""Time in seconds for cancelled work to end."""


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception must end the run: Ctrl-C, a human player who quits, a cancelled task, a
    closed coroutine. Exceptions raised by user code itself (`sys.exit()`, `raise
    KeyboardInterrupt`, its own class) are excluded."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return not in_user_code(error)
    if isinstance(error, PlayerLeft):
        return True
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # signals are delivered only to the main thread
    # a handler in Python is the innermost frame; that of the interpreter leaves none
    handler = signal.getsignal(signal.SIGINT)
    return handler is signal.default_int_handler or not in_user_code(error)


def as_failure(error: BaseException) -> Exception:
    """An exception of user code, converted to one that fails only its episode."""
    if isinstance(error, Exception):
        return error
    failure = EpisodeError(
        f"{title(error)}, raised by code that the run calls (an environment, a workflow, a reward "
        "function)"
    )
    failure.__cause__ = error
    return failure


_ENDS_LOOP = (SystemExit, KeyboardInterrupt, GeneratorExit)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine that converts `SystemExit` and `KeyboardInterrupt`, which would end the event
    loop, and `GeneratorExit`, which would close another task, to failures when user code raises
    them."""

    def __init__(self, job: Coroutine[Any, Any, Any]) -> None:
        self._job = job

    def send(self, value: Any) -> Any:
        return self._advanced(self._job.send, value)

    def throw(self, *thrown: Any) -> Any:
        return self._advanced(self._job.throw, *thrown)

    def _advanced(self, advance: Callable[..., Any], *values: Any) -> Any:
        try:
            return advance(*values)
        except _ENDS_LOOP as error:
            if is_interrupt(error):
                raise
            raise as_failure(error) from error

    def close(self) -> None:
        self._job.close()

    def __await__(self) -> Any:
        return self._job.__await__()


def _contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Contain every task of a loop, including those created by workflows."""

    def task(loop: asyncio.AbstractEventLoop, job: Any, **more: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Contained(job), loop=loop, **more)

    loop.set_task_factory(task)


def run_async(job: Awaitable[T]) -> T:
    """The result of a coroutine; run in its own thread if this one has a running event loop."""

    async def wait() -> T:
        _contain_tasks(asyncio.get_running_loop())
        return await job

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_Contained(wait()))
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, _Contained(wait())).result()


class BackgroundJobs(set["asyncio.Task[Any]"]):
    """Jobs that are not awaited; each is referenced until it is done."""

    def start(self, job: Coroutine[Any, Any, T] | asyncio.Task[T]) -> asyncio.Task[T]:
        """Start a job on the running event loop."""
        task = asyncio.ensure_future(job)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


def is_by_hand() -> bool:
    """Whether synchronous user code is running: no event loop, and no thread of `in_thread`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return not _INSIDE.get()
    return False


@functools.cache
def _background() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="mrlm-by-hand").start()
    return loop


def in_background(job: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine from code without an event loop. All run in one loop, so that they
    can share resources (a process, a connection)."""
    return asyncio.run_coroutine_threadsafe(job, _background()).result()


async def in_thread(function: Callable[[], T]) -> T:
    """The result of a function that may block. Its thread is a daemon: one that never returns can
    be abandoned, and does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(put: Callable[[Any], None], value: object) -> None:
        if not future.done():  # else it was abandoned
            put(value)

    def work() -> None:
        _INSIDE.set(True)
        put, value = future.set_result, None
        try:
            value = function()
        except BaseException as error:  # passed to the caller
            put, value = future.set_exception, as_failure(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, put, value)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), daemon=True, name="mrlm-world")
    _threads.add(thread)
    thread.start()
    return await future


_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def join_threads(patience: float = PATIENCE) -> None:
    """Waits for the threads of `in_thread` that have not ended, for so many seconds in all. One
    that frees a process group while the interpreter ends would abort the process."""
    end = time.monotonic() + patience
    for thread in list(_threads):
        thread.join(max(0.0, end - time.monotonic()))


class Background:
    """An event loop in its own thread, for concurrent work. The thread is a daemon: it does not
    keep the process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        _contain_tasks(self._loop)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._loop.run_forever,), daemon=True, name=name
        )
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def start(self, job: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(job, self._loop)

    async def call(self, job: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine run in the thread, without blocking the caller's loop."""
        return await asyncio.wrap_future(self.start(job))

    def close(self) -> None:
        """Cancel all work in the thread, and end it."""

        async def end() -> None:
            current, patience = asyncio.current_task(), self._loop.time() + PATIENCE
            # a task that completes at this moment continues, and may start others
            while (tasks := asyncio.all_tasks() - {current}) and self._loop.time() < patience:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=1.0)
            await self._loop.shutdown_default_executor()

        self.start(end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
