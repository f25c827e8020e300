"""The endpoint of apps: the routes of the OpenAI protocol under an address for each episode, whose
answers are turns of its agents. An episode is served on the event loop that plays it."""

import asyncio
import functools
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mrlm.core.errors import DataError, RewardError
from mrlm.core.types import Completion, Turn
from mrlm.play.engine import Request
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.serving.apps.session import CURRENT, ENDED, TURNS, AppSession, Speaker
from mrlm.serving.policies.admission import AdmissionLimits, Refusal
from mrlm.serving.policies.http_server import HttpServer
from mrlm.serving.policies.openai_fields import JSON, Fields
from mrlm.serving.policies.openai_http import OpenAIHandler, Route

T = TypeVar("T")
HINT = (
    "agents are called by chat/completions (in the OpenAI Agents SDK: "
    'set_default_openai_api("chat_completions")); a client that should reach another server names '
    "its base_url"
)
MOST = 4096
"""Open connections: those of all episodes come from one address."""


class Inline:
    """Reads and writes of requests, done at once."""

    async def read(self, job: Callable[[], T]) -> T:
        return job()


async def on_loop(loop: asyncio.AbstractEventLoop, job: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs on another event loop, or on this one."""
    if asyncio.get_running_loop() is loop:
        return await job
    if loop.is_closed():
        job.close()
        raise Refusal("gone", "this episode has ended, and so has the run")
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(job, loop))


class AppHandler(OpenAIHandler):
    """Answers the calls of apps. Every episode has an address and a key of its own; a call after
    its end is refused with 410."""

    def __init__(self) -> None:
        limits = AdmissionLimits(connections=MOST, per_address=MOST)
        super().__init__(Inline(), limits=limits)  # type: ignore[arg-type]
        self.sessions: dict[str, AppSession] = {}
        self._opened = 0

    @functools.cached_property
    def asgi(self) -> Any:
        """The application, for transports without a socket."""
        return self.app()

    @functools.cached_property
    def server(self) -> HttpServer:
        """Listens on this machine only, from the first use on."""
        return HttpServer(self).start()

    def routes(self) -> dict[tuple[str, str], Route]:
        table: dict[tuple[str, str], Route] = {("POST", "/e/{episode}/reward"): self.reward}
        for stem in ("/e/{episode}/v1", "/e/{episode}/{agent}/v1"):
            table["POST", f"{stem}/chat/completions"] = self.chat
            table["GET", f"{stem}/models"] = self.models
            table["GET", f"{stem}/models/{{name:path}}"] = self.one_model
            table["POST", f"{stem}/{{what:path}}"] = self.other
        return table

    @contextmanager
    def session(
        self,
        env: EpisodeRunner,
        names: Sequence[str],
        many: Mapping[str, str | None],
        agent_of: Callable[[str], str] | None,
    ) -> Iterator[AppSession]:
        """The endpoint of an episode, as long as the block lasts."""
        self._opened += 1
        made = AppSession(f"{self._opened}", env, names, many, agent_of)
        self.sessions[made.id] = made
        before = CURRENT.set(made)
        try:
            yield made
        finally:
            CURRENT.reset(before)
            del self.sessions[made.id]
            made.close()

    # -- routes ------------------------------------------------------------------------------------

    async def models(self, body: JSON, request: Any) -> JSON:
        names = self._session(request).names
        rows = [{"id": n, "object": "model", "created": 0, "owned_by": "mrlm"} for n in names]
        return {"object": "list", "data": rows}

    async def chat(self, body: JSON, request: Any) -> JSON | AsyncIterator[bytes]:
        session = self._session(request)
        key, again = _identity(body, request)

        async def answer() -> tuple[Any, list[Turn]]:
            turns: list[Turn] = []
            TURNS.set(turns)
            result = await super(AppHandler, self).chat(body, request)
            if isinstance(result, AsyncIterator):
                result = [part async for part in result]
            head = result if isinstance(result, dict) else json.loads(result[0][6:])
            session.responses[head["id"]] = turns
            return result, turns

        job = session.answered(key, again, answer)
        if asyncio.get_running_loop() is session.loop:
            result = await job
        else:
            result = await _while_connected(request, on_loop(session.loop, job))
        return _streamed(result) if isinstance(result, list) else result

    async def other(self, body: JSON, request: Any) -> JSON:
        what = request.path_params["what"]
        raise Refusal("bad", f"{what[:100]} is not served to apps: {HINT}")

    async def reward(self, body: JSON, request: Any) -> JSON:
        """A reward for an agent (its last turn, or the one that `turn` names) or the team."""
        session = self._session(request)
        unknown = body.keys() - {"reward", "agent", "turn"}
        if "reward" not in body or unknown:
            text = "the body is {reward, agent, turn}, of which only reward is required"
            raise Refusal("bad", text, next(iter(unknown), "reward"))

        async def note() -> None:
            session.reward(body["reward"], body.get("agent"), body.get("turn"))

        try:
            await on_loop(session.loop, note())
        except (DataError, RewardError, TypeError) as error:
            raise Refusal("bad", str(error)) from error
        return {"ok": True}

    # -- parts -------------------------------------------------------------------------------------

    def speaker(self, fields: Fields, request: Any) -> Speaker:
        return self._session(request).speaker(fields, request.path_params.get("agent"))

    async def sampled(
        self, served: Any, fields: Fields
    ) -> tuple[Sequence[Request], Sequence[Completion]]:
        return await served.say(fields)

    def _session(self, request: Any) -> AppSession:
        name = request.path_params["episode"]
        session = self.sessions.get(name)
        if session is not None:
            return session
        if name.isdecimal() and len(name) < 20 and 0 < int(name) <= self._opened:
            raise Refusal("gone", ENDED)
        raise Refusal("unknown", f"episode {name[:100]!r} does not exist")

    def _check_token(self, request: Any) -> None:
        session = self._session(request)
        if "origin" in request.headers:
            raise Refusal("browser", "an app is no page of a browser")
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        if not secrets.compare_digest(token.encode(), session.key.encode()):
            raise Refusal("denied", "this is not the key of the episode (OPENAI_API_KEY)")


def _identity(body: JSON, request: Any) -> tuple[Any, bool]:
    """The key that attempts of one call share, and whether this may be a second one."""
    headers = request.headers
    if "idempotency-key" in headers:
        return headers["idempotency-key"], True
    digest = hashlib.blake2b(json.dumps(body, sort_keys=True).encode()).digest()
    again = headers.get("x-stainless-retry-count", "0") != "0"
    return (request.url.path, digest), again


async def _while_connected(request: Any, job: Coroutine[Any, Any, T]) -> T:
    """The result of an answer, which is cancelled when the client closes its connection."""

    async def closed() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = answer, end = asyncio.ensure_future(job), asyncio.ensure_future(closed())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not answer.done():
            raise Refusal("gone", "the client has closed its connection")
        return answer.result()
    finally:
        for task in tasks:
            task.cancel()


async def _streamed(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@functools.cache
def handler() -> AppHandler:
    """The endpoint of this process."""
    return AppHandler()
