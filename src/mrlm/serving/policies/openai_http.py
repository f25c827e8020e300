"""The HTTP routes of policies: the OpenAI protocol (chat and text completions) for any compatible
client, and the routes of `trainer_http.py` for trainers."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from mrlm.core.errors import ChatTemplateError, ConfigError
from mrlm.core.log import log
from mrlm.core.types import Completion, Message, Role
from mrlm.play.engine import Request
from mrlm.serving.policies.admission import AdmissionLimits, Refusal, check_size, parsed
from mrlm.serving.policies.hub import RETRY_AFTER, PolicyHub, ServedPolicy, score
from mrlm.serving.policies.openai_fields import (
    CHAT,
    JSON,
    MOST_SCORED,
    SCORES,
    SPECIAL,
    TEXT,
    Fields,
    chat_logprobs,
    completion_logprobs,
    events,
    head,
    is_ids,
    prompt_scores,
    spoken,
    usage,
)

DEFAULT_TOKENS = 1024
"""Default length of a chat answer in tokens; fewer if the model has less room."""
DEFAULT_TEXT_TOKENS = 16
"""The default for text completions, as the protocol defines it."""
STATUS: dict[str, tuple[int, str, str | None]] = {
    "unknown": (404, "invalid_request_error", "model_not_found"),
    "bad": (400, "invalid_request_error", None),
    "long": (400, "invalid_request_error", "context_length_exceeded"),
    "busy": (429, "rate_limit_error", "rate_limit_exceeded"),
    "asleep": (503, "server_error", "asleep"),
    "slow": (504, "server_error", "timeout"),
    "forbidden": (403, "invalid_request_error", "forbidden"),
    "failed": (500, "server_error", None),
    "denied": (401, "authentication_error", None),
    "browser": (403, "invalid_request_error", None),
    "late": (408, "invalid_request_error", None),
    "large": (413, "invalid_request_error", None),
    "gone": (410, "invalid_request_error", "episode_over"),
}


BOTH = "transfer-encoding"
Route = Callable[[JSON, Any], Awaitable[Any]]
"""`route(body, request)` returns JSON, a text, or an iterator of server-sent events."""


class OpenAIHandler:
    """The routes of the OpenAI protocol over a dispatcher. Every request needs `token` as
    `Authorization: Bearer`, unless it is `None`."""

    def __init__(
        self, hub: PolicyHub, token: str | None = None, limits: AdmissionLimits | None = None
    ) -> None:
        self.hub = hub
        self.limits: AdmissionLimits = limits or AdmissionLimits()
        self._held = 0
        self._token = None if token is None else _digest(token)

    def app(self) -> Any:
        """The application, for any ASGI server. Raises `ConfigError`: no starlette here."""
        try:
            from starlette.applications import Starlette
            from starlette.routing import Route as Page
        except ImportError as error:
            raise ConfigError(
                'policies over HTTP need starlette and uvicorn: pip install "mrlm[serve]"'
            ) from error

        paths = [
            Page(path, self._guarded(route), methods=[method])
            for (method, path), route in self.routes().items()
        ]
        return Starlette(routes=paths, exception_handlers={404: _no_page, 405: _no_page})

    def routes(self) -> dict[tuple[str, str], Route]:
        """(method, path) -> its route."""
        from mrlm.serving.policies.trainer_http import trainer_routes

        return {
            ("GET", "/health"): self.health,
            ("GET", "/v1/models"): self.models,
            ("GET", "/v1/models/{name:path}"): self.one_model,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.complete,
            **trainer_routes(self.hub),
        }

    # -- routes ------------------------------------------------------------------------------------

    async def health(self, body: JSON, request: Any) -> JSON:
        return {"status": "asleep" if self.hub.asleep else "ok", "waiting": self.hub.waiting}

    async def models(self, body: JSON, request: Any) -> JSON:
        """The list of policies; `mrlm` holds the version of their weights."""
        served = list(self.hub.served.values())
        return {"object": "list", "data": await asyncio.to_thread(lambda: [*map(_model, served)])}

    async def one_model(self, body: JSON, request: Any) -> JSON:
        rows = {row["id"]: row for row in (await self.models(body, request))["data"]}
        if (name := request.path_params["name"]) not in rows:
            raise Refusal("unknown", f"model {name!r} does not exist on this server", "model")
        return rows[name]

    async def chat(self, body: JSON, request: Any) -> JSON | AsyncIterator[bytes]:
        fields = Fields(body, closed=True, done=CHAT)
        served = self.speaker(fields, request)
        tools = fields.tools()
        streamed, logprobs = fields.streamed(), fields.flag("logprobs")

        def choice(sent: Request, completion: Completion) -> JSON:
            chat = served.chat  # none, of a policy behind an API
            opened = chat is not None and chat.thoughts.opened(sent.prompt_ids) is not None
            message, reason = spoken(completion, tools, opened)
            scores = chat_logprobs(chat, completion) if logprobs and chat is not None else None
            return {"message": message, "logprobs": scores, "finish_reason": reason}

        kind = "chat.completion.chunk" if streamed else "chat.completion"
        return await self._completed(kind, fields, self.sampled(served, fields), choice)

    def speaker(self, fields: Fields, request: Any) -> Any:
        """The policy that a chat request names."""
        return self.hub.find(fields.text("model"))

    async def sampled(
        self, served: Any, fields: Fields
    ) -> tuple[Sequence[Request], Sequence[Completion]]:
        """The requests of a chat request, one for each choice, and their completions."""

        def asked() -> list[Request]:
            prompt = _rendered(served, fields.messages(served.max_context))
            room = max(1, served.max_context - len(prompt))
            limit = fields.limit(min(room, DEFAULT_TOKENS))
            return _requests(served, fields, [prompt], limit)

        return await self.hub.sample(fields.count(), asked)

    async def complete(self, body: JSON, request: Any) -> JSON | AsyncIterator[bytes]:
        """Completions of texts or of lists of token ids."""
        fields = Fields(body, closed=True, done=(*TEXT, *SPECIAL, SCORES))
        special = SPECIAL[0] in body and not fields.flag(SPECIAL[0])
        served = self.hub.find(fields.text("model"))
        limit = fields.whole("max_tokens", DEFAULT_TEXT_TOKENS, 1, 1 << 31)
        scored = body.get("logprobs") is not None and fields.whole("logprobs", 0, 0, 5) >= 0
        shows_ids = fields.flag("return_token_ids")
        fields.streamed()  # checked before anything is sampled
        scores: dict[int, list[JSON | None]] = {}
        most = None if body.get(SCORES) is None else fields.whole(SCORES, 0, 0, MOST_SCORED)

        def asked() -> list[Request]:
            return _requests(served, fields, _prompts(served, body.get("prompt")), limit)

        def choice(sent: Request, completion: Completion) -> JSON:
            ids = {"token_ids": completion.token_ids, "prompt_token_ids": sent.prompt_ids}
            text = completion.text
            return {
                "text": served.chat.tokenizer.decode(completion.token_ids) if special else text,
                "logprobs": completion_logprobs(served.chat, completion) if scored else None,
                "finish_reason": completion.finish_reason,
                "stop_reason": None,
                **(ids if shows_ids else {}),
                **({} if most is None else {SCORES: scores[id(sent.prompt_ids)]}),
            }

        async def sampled() -> tuple[Sequence[Request], Sequence[Completion]]:
            sent, completions = await self.hub.sample(fields.count(), asked)
            for request in sent:
                if most is not None and id(request.prompt_ids) not in scores:
                    rows = await score(self.hub, served, request.prompt_ids, most)
                    scores[id(request.prompt_ids)] = prompt_scores(served.chat, rows)
            return sent, completions

        return await self._completed("text_completion", fields, sampled(), choice)

    # -- parts -------------------------------------------------------------------------------------

    async def _completed(
        self,
        kind: str,
        fields: Fields,
        sampled: Awaitable[tuple[Sequence[Request], Sequence[Completion]]],
        choice: Callable[[Request, Completion], JSON],
    ) -> JSON | AsyncIterator[bytes]:
        """The answer with one choice for each completion, streamed if the request says so."""
        sent, completions = await sampled

        def answer() -> JSON | AsyncIterator[bytes]:
            pairs = enumerate(zip(sent, completions, strict=True))
            choices = [{"index": index, **choice(*pair)} for index, pair in pairs]
            read = sum(len(request.prompt_ids) for request in sent[:: fields.choices()])
            first, counts = head(kind, sent[0].policy), usage(read, completions)
            if not fields.flag("stream"):
                return first | {"choices": choices, "usage": counts}
            return events(first, choices, counts if fields.wants_usage() else None)

        return await self.hub.read(answer)

    def _guarded(self, route: Route) -> Any:
        """A route with the checks that all of them share."""
        from starlette.responses import JSONResponse, StreamingResponse

        async def answer(request: Any) -> Any:
            data = bytearray()
            try:
                self._check_token(request)
                await self._receive(request, data)
                limits = self.limits
                body = await self.hub.read(lambda: parsed(data, limits.parts)) if data else {}
                result = await route(body, request)
                if isinstance(result, AsyncIterator):
                    return StreamingResponse(result, media_type="text/event-stream")
                return await self.hub.read(lambda: JSONResponse(result))
            except Refusal as refusal:
                status, kind, code = STATUS[refusal.kind]
                return _error(status, str(refusal), kind, code, refusal.field)
            except Exception:
                log.exception("a request to %s failed", request.url.path)
                return _error(500, "the server failed; its log says why", "server_error")
            finally:
                self._held -= len(data)

        return answer

    def _check_token(self, request: Any) -> None:
        if self._token is None:
            if "origin" in request.headers:  # a web page in a browser on this machine
                raise Refusal("browser", "browsers are let in with a token only")
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        good = secrets.compare_digest(_digest(token.strip()), self._token)
        if scheme.lower() != "bearer" or not good:
            raise Refusal("denied", "the token is missing or wrong")

    async def _receive(self, request: Any, data: bytearray) -> None:
        """Read the body of a request, within the limits of memory; `_held` counts its size."""
        if request.method == "GET":
            return
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            raise Refusal("bad", "give content-length or transfer-encoding, not both", BOTH)
        limits = self.limits
        large = Refusal("large", f"the request is larger than {limits.body} bytes")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limits.body:
            raise large
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for chunk in request.stream():
                    data += chunk
                    self._held += len(chunk)
                    if len(data) > limits.body:
                        raise large
                    if self._held > limits.bodies:
                        raise Refusal(
                            "busy", "too many large requests at once; send it again later"
                        )
        except TimeoutError:
            text = f"the request did not arrive within {limits.body_seconds:g} s"
            raise Refusal("late", text) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _error(
    status: int, message: str, kind: str, code: str | None = None, field: str | None = None
) -> Any:
    from starlette.responses import JSONResponse

    body = {"message": message, "type": kind, "param": field, "code": code}
    headers = {"retry-after": f"{RETRY_AFTER:g}"} if status == 429 else {}
    if field == BOTH:  # where the request ends is disputed, so nothing after it is read
        headers["connection"] = "close"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": body}, status, headers)


async def _no_page(request: Any, error: Any) -> Any:
    return _error(error.status_code, "unknown route", "invalid_request_error")


def _another(seed: int, index: int) -> int:
    """The seed of the choice at an index; the first uses the seed of the request."""
    if not index:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest())


def _model(served: ServedPolicy) -> JSON:
    return {
        "id": served.name,
        "object": "model",
        "created": 0,
        "owned_by": "mrlm",
        "root": served.model,
        "parent": served.parent,
        "max_model_len": served.max_context,
        "mrlm": {"version": served.version, "fingerprint": list(served.fingerprint())},
    }


def _requests(
    served: ServedPolicy, fields: Fields, prompts: list[list[int]], limit: int
) -> list[Request]:
    sampling, seed, count = fields.sampling(limit), fields.seed(), fields.choices()
    return [
        Request(served.name, prompt, sampling, _another(seed, index * count + choice))
        for index, prompt in enumerate(prompts)
        for choice in range(count)
    ]


def _rendered(served: ServedPolicy, messages: list[Message]) -> list[int]:
    if served.system_prompt and messages[0].role is not Role.SYSTEM:
        first = Message(served.system_prompt, Role.SYSTEM, metadata=messages[0].metadata)
        messages = [first, *messages]
    try:
        return served.chat.prompt(messages).ids
    except ChatTemplateError as error:
        raise Refusal("bad", str(error), "messages") from error


def _prompts(served: ServedPolicy, prompt: Any) -> list[list[int]]:
    """The prompts in ids: from a text, several texts, one list of ids, or several."""

    def encoded(text: str) -> list[int]:
        # a raw prompt was rendered by the client: control tokens in it are control, as in every
        # server of this protocol. Text that must not act as control goes through chat, or as ids
        check_size(len(text), served.max_context)
        return served.chat.encode(text)

    several: Any = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
    if isinstance(several, list) and several:
        if all(isinstance(item, str) and item for item in several):
            return [*map(encoded, several)]
        if all(map(is_ids, several)):
            return several
    raise Refusal("bad", "prompt must be a text, token ids, or a list of one of them", "prompt")
