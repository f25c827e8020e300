"""HTTP clients of an app in this process: their calls of agents go to the episode of the code that
makes them, without a socket."""

import asyncio
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from mrlm.core.addresses import APP
from mrlm.core.errors import EpisodeError
from mrlm.serving.apps.handler import handler
from mrlm.serving.apps.session import CURRENT, AppSession, note

LIBRARIES = ("httpx", "httpx2")
"""HTTP libraries of OpenAI clients."""
CALLED = ("/chat/completions", "/responses")
_HOST = APP.removeprefix("http://").partition("/")[0]
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_running: int = 0


@contextmanager
def routed_clients() -> Iterator[None]:
    """Route the calls of agents by the HTTP libraries that are installed, as long as one of these
    blocks lasts; other calls are made as before."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            installed = (name for name in LIBRARIES if find_spec(name) is not None)
            _undo[:] = [_route(importlib.import_module(name)) for name in installed]
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            for undo in () if _running else _undo:
                undo()


def _route(library: Any) -> Callable[[], None]:
    """Wrap the transports of a library; the result unwraps those that no one has wrapped again."""
    there, there_sync = library.AsyncHTTPTransport, library.HTTPTransport
    send, send_sync = there.handle_async_request, there_sync.handle_request

    async def handle_async_request(self: Any, request: Any) -> Any:
        session = _session_of(request)
        if session is None:
            return await send(self, request)
        return await _answer(library, session, request)

    def handle_request(self: Any, request: Any) -> Any:
        session = _session_of(request)
        return send_sync(self, request) if session is None else _wait(library, session, request)

    there.handle_async_request, there_sync.handle_request = handle_async_request, handle_request

    def undo() -> None:
        if there.handle_async_request is handle_async_request:
            there.handle_async_request = send
        if there_sync.handle_request is handle_request:
            there_sync.handle_request = send_sync

    return undo


def _session_of(request: Any) -> AppSession | None:
    """The episode that a request belongs to: one to the address of apps, or one for a model with
    the name of an agent, wherever its client was made to send it."""
    session = CURRENT.get()
    if request.url.host == _HOST:
        if session is None:
            raise EpisodeError(
                f"{request.url}: this call is not made by an app in an episode, or in a thread "
                "that does not know it; start the thread with contextvars.copy_context().run, or "
                "make the client with base_url=mrlm.app.base_url(), api_key=mrlm.app.api_key()"
            )
        return session
    path = request.url.path  # below /e/ it is an address that names the episode itself
    if session is None or path.startswith("/e/") or not path.endswith(CALLED):
        return None
    try:
        model = json.loads(request.content).get("model")
    except (ValueError, AttributeError, RuntimeError):  # no JSON object, or not read yet
        return None
    if str(model).partition("#")[0] in session.names:
        return session
    note(f"a call of model {model!r} at {request.url.host} is none of an agent: it is not trained")
    return None


async def _answer(library: Any, session: AppSession, request: Any) -> Any:
    path = request.url.path
    path = path[path.rfind("/v1/") :] if request.url.host != _HOST else path
    headers = {**request.headers, "authorization": f"Bearer {session.key}"}
    url = f"{APP.removesuffix('/v1')}/e/{session.id}{path}"
    sent = library.Request(request.method, url, headers=headers, stream=request.stream)
    transport = library.ASGITransport(handler().asgi, raise_app_exceptions=False)
    return await transport.handle_async_request(sent)


def _wait(library: Any, session: AppSession, request: Any) -> Any:
    """The answer to a client that is no coroutine."""

    async def whole() -> Any:
        response = await _answer(library, session, request)
        return library.Response(
            response.status_code, headers=response.headers, content=await response.aread()
        )

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is session.loop:
        raise EpisodeError(
            "a synchronous client in a coroutine would wait for itself: use AsyncOpenAI, or make "
            "the app a plain function, which runs in a thread"
        )
    return asyncio.run_coroutine_threadsafe(whole(), session.loop).result()
