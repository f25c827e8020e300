"""Samples through a server of chat completions (OpenAI's interface: vLLM, SGLang, `transformers
serve`, most providers) on behalf of a frozen policy. The only file that imports the library
`openai`."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any, ClassVar, NamedTuple, TypeVar

from mrlm.core import registry
from mrlm.core.errors import ConfigError, EndpointError, EngineError
from mrlm.core.retries import Passing, Retries, one_line, retry_after
from mrlm.core.sampling import FIELDS, SamplingParams
from mrlm.core.sync_async import run_async
from mrlm.core.types import Completion, Message, Role
from mrlm.engines.shared import calls
from mrlm.engines.shared.chat_messages import answer_of, as_sent
from mrlm.play.agent import PromptTooLong
from mrlm.play.engine import Request

T = TypeVar("T")


class _Client(NamedTuple):
    library: Any
    places: asyncio.Semaphore


@dataclass(eq=False, repr=False)
class OpenAIEngine:
    """Samples for one policy through an OpenAI-compatible server. It exchanges messages and text;
    of the tokens only the number is known.

    Calls that fail for a transient reason (408, 409, 425, 429, from 500 on, no connection, a
    timeout, a malformed answer) are repeated after `first_wait` seconds, twice as many each time,
    times a random factor from .5 to 1, or as long as `Retry-After` requests. A permanent failure (a
    wrong key, an unknown model) ends the run with one error.

    Args:
        policy: name of the policy.
        base_url, model, api_key_env, max_retries, requests_per_minute, max_concurrent, timeout,
            price, token_limit, body: the keys of `policies.<name>.endpoint`.

    Raises:
        ConfigError: `openai` is not installed, or the environment variable with the key is not set.
    """

    tokenizer: ClassVar[Any] = None
    max_context: ClassVar[int] = 1 << 30
    """The server enforces its own limit."""

    policy: str
    base_url: str
    model: str
    api_key_env: InitVar[str | None] = None
    max_retries: InitVar[int] = 4
    requests_per_minute: InitVar[float | None] = None
    max_concurrent: int = 16
    timeout: float = 60.0
    price: Mapping[str, float] | None = None
    token_limit: str = "max_tokens"
    body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(
        self, api_key_env: str | None, max_retries: int, requests_per_minute: float | None
    ) -> None:
        self.usage: calls.TokenUsage = calls.TokenUsage()
        self._told: calls.TokenUsage = calls.TokenUsage()
        teacher = self.policy == "distill.teacher_endpoint"
        self._section = self.policy if teacher else f"policies.{self.policy}.endpoint"
        self._key = calls.secret(api_key_env, self._section) or ""
        self._openai = _library(self._section)
        self.retries: Retries = Retries(max_retries)
        self._pace = calls.RequestPace(requests_per_minute)
        self._clients = calls.LoopClients(self._client, lambda client: client.library.close())
        self._refused: EndpointError | None = None

    @classmethod
    def of(cls, endpoint: Mapping[str, Any], policy: str = "client") -> "OpenAIEngine":
        """An engine for the keys of an endpoint, outside a run. Raises `ConfigError`: a key is
        unknown or missing."""
        names = list(signature(cls).parameters)[1:]
        for key in endpoint:
            if key not in names:
                raise ConfigError(registry.unknown(key, names, "keys of an endpoint"))
        for key in ("base_url", "model"):
            if key not in endpoint:
                raise ConfigError(f"an endpoint needs {key!r}; it has {', '.join(endpoint)}")
        return cls(policy, **endpoint)

    def respond(
        self, messages: Sequence[Message], sampling: SamplingParams, seed: int = 0
    ) -> Message:
        request = Request(self.policy, [], sampling, seed, messages=messages)
        return Message(run_async(self.answer(request)).text, Role.ASSISTANT)

    # -- the engine's interface --------------------------------------------------------------------

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; the first that fails is raised."""
        return list(await asyncio.gather(*map(self.answer, requests)))

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Refuse: the weights are not accessible. Raises `EngineError`: always."""
        raise EngineError(f"policy {policy!r} is behind an API; its weights cannot be set")

    def tolerance(self, policy: str) -> None:
        """No tolerance: the weights are not known here."""

    async def answer(self, request: Request) -> Completion:
        """The model's completion for one request. Raises `EngineError`: no answer, after all
        retries; `EndpointError`: the server refuses permanently; `PromptTooLong`: the conversation
        exceeds the model's context."""
        fields = self._fields(request)
        return await self._retried(fields, "chat", self._completion)

    async def score(self, ids: Sequence[Sequence[int]], top: int) -> list[list[dict[int, float]]]:
        """Of each sequence of token ids, for every position but the first token -> log-prob, given
        the tokens before: of its own token, and of the `top` likeliest. Raises as `answer`; and
        `EndpointError`: the server does not score prompts."""

        async def one(prompt: Sequence[int]) -> list[dict[int, float]]:
            fields: dict[str, Any] = {"model": self.model, "prompt": [*prompt], "max_tokens": 1}
            fields["extra_body"] = {"prompt_logprobs": top, **self.body}
            read = partial(_scores, prompt=prompt, title=self.title)
            return await self._retried(fields, "text", read)

        return list(await asyncio.gather(*map(one, ids)))

    async def _retried(self, fields: Mapping[str, Any], kind: str, read: Callable[[Any], T]) -> T:
        """The answer to a request as it is `read`, after retries."""
        tries = itertools.count()

        async def attempt() -> T:
            self.usage.retries += next(tries) > 0
            return read(await self._call(client, fields, kind))

        async with self._clients.here() as client:
            try:
                return await self.retries.run(attempt, self.title)
            except EndpointError:  # reported once, for all callers
                raise
            except EngineError:
                self.usage.failures += 1
                raise

    def take_usage(self) -> dict[str, float]:
        """Counts and cost since the previous call, and `cost_total` of the whole run."""
        now, before = self.state_dict(), asdict(self._told)
        self._told = replace(self.usage)
        new = {name: float(now[name] - before[name]) for name in now}
        return new | {"cost": _cost(self.price, new), "cost_total": _cost(self.price, now)}

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.usage)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.usage, self._told = calls.TokenUsage(**state), calls.TokenUsage(**state)

    # -- one call ----------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The policy and its server, for messages."""
        named = self.policy if self._section == self.policy else f"policy {self.policy!r}"
        return f"{named} ({self.model} at {self.base_url})"

    def _fields(self, request: Request) -> dict[str, Any]:
        """The body of a request. Parameters outside OpenAI's interface are sent only if they are
        set: servers of open-weight models accept them."""
        sampling = request.sampling
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": _spoken(request.messages, self.title),
            "seed": request.seed % (1 << 31),
        }
        more = calls.body_of(sampling, self.title) | {self.token_limit: sampling.max_new_tokens}
        for name, entry in FIELDS.items():
            if entry.body == "set" and getattr(sampling, name) == entry.default:
                del more[name]
        return fields | {"extra_body": more | dict(self.body)}

    async def _call(self, client: _Client, fields: Mapping[str, Any], kind: str) -> Any:
        """The server's answer to one attempt. Raises `Passing`: a transient failure."""
        async with client.places:
            await self._pace.turn()
            if self._refused is not None:  # already reported to other callers
                raise self._refused
            self.usage.requests += 1
            try:
                async with asyncio.timeout(self.timeout):
                    routes = client.library.chat if kind == "chat" else client.library
                    return await routes.completions.create(**fields)
            except (TimeoutError, self._openai.APITimeoutError):
                raise Passing(f"no answer within {self.timeout:g} s") from None
            except self._openai.APIStatusError as error:
                raise self._judged(error) from None
            except self._openai.APIConnectionError as error:
                reason = self._shown(error.__cause__ or error)
                raise Passing(f"no connection: {reason}") from None
            except (self._openai.APIError, ValueError) as error:
                raise Passing(f"an answer that cannot be read: {self._shown(error)}") from None

    def _judged(self, error: Any) -> Exception:
        """The exception that a refusal means. The library's own error is dropped: it may quote the
        key."""
        status, body = error.status_code, error.body if isinstance(error.body, Mapping) else {}
        info, code = self._shown(body.get("message") or error.message), str(body.get("code"))
        text = f"{status}: {info}"
        if any(sign in f"{code} {info}".lower() for sign in calls.TOO_LONG) and status in (
            400,
            413,
            422,
        ):
            return PromptTooLong(f"{self.title}: {text}")
        if status in calls.FINAL or code in calls.FINAL_CODES:
            return self._refusal(status, text)
        if status in calls.PASSING or status >= 500:
            wait = retry_after(error.response.headers.get("retry-after"))
            if wait is not None:
                self._pace.hold(min(wait, self.retries.longest_wait))
            return Passing(text, wait)
        return EngineError(f"{self.title} refused the request: {text}")

    def _refusal(self, status: int, text: str) -> EndpointError:
        """The error that ends the run, the same for all later callers."""
        if self._refused is None:
            key = self._section
            fix = {
                401: f"set the environment variable that {key}.api_key_env names to a valid key",
                403: f"the key in {key}.api_key_env lacks the permission; use another",
                404: f"check {key}.base_url (it ends with /v1 on most servers) and {key}.model",
            }.get(status, f"check {key} and your account there")
            self._refused = EndpointError(f"{self.title} refuses every request, {text}; {fix}")
        return self._refused

    def _completion(self, answer: Any) -> Completion:
        """The answer as a completion. Raises `Passing`: it is malformed."""
        data = answer.model_dump(warnings=False) if hasattr(answer, "model_dump") else {}
        choices = data.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        message = first.get("message") if isinstance(first, Mapping) else None
        if not isinstance(message, Mapping):
            raise Passing(f"an answer that cannot be read: {self._shown(answer)}")
        text = answer_of(message, self.title)
        if text is None:
            raise Passing(f"an answer without text: {self._shown(message)}")
        usage = self.usage.add(data.get("usage"))
        ended = str((first or {}).get("finish_reason"))
        reason = {"length": "length", "content_filter": "abort"}.get(ended, "stop")
        return Completion([], [], text, reason, usage=usage)  # type: ignore[arg-type]

    # -- connections -------------------------------------------------------------------------------

    def _client(self) -> _Client:
        client = self._openai.AsyncOpenAI(
            api_key=self._key or "none",  # else the library reads one from the environment
            base_url=self.base_url,
            max_retries=0,
            timeout=self.timeout,
        )
        return _Client(client, asyncio.Semaphore(self.max_concurrent))

    def _shown(self, what: Any) -> str:
        """A short line for an error message, without the key."""
        text = str(what)
        return one_line(text.replace(self._key, "***") if self._key else text, 200)


def _spoken(messages: Sequence[Message], title: str) -> list[dict[str, Any]]:
    """Messages as they are sent. Tools for a chat template are not sent."""
    if any(message.metadata.get("tools") for message in messages):
        raise ConfigError(
            f"{title}: the conversation has tools for a chat template, and this policy has none "
            "here; describe them in a message (call_format: tool_call)"
        )
    return as_sent(messages)


def _cost(price: Mapping[str, float] | None, counts: Mapping[str, float]) -> float:
    prices = price or {}
    return sum(counts[f"{kind}_tokens"] * each for kind, each in prices.items()) / 1e6


def _scores(answer: Any, prompt: Sequence[int], title: str) -> list[dict[int, float]]:
    """The log-probs of a prompt, from an answer."""
    choice = answer.model_dump(warnings=False)["choices"][0]
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt):
        raise EndpointError(
            f"{title} returns no prompt_logprobs, so that it cannot score tokens; use vLLM or "
            "mrlm serve, or a teacher with weights here (distill.teacher_model)"
        )
    read = [{int(key): float(x["logprob"]) for key, x in (row or {}).items()} for row in rows]
    for token, row in zip(prompt[1:], read[1:], strict=True):
        if token not in row:
            raise EndpointError(
                f"{title} scores other tokens than it was sent ({token} is missing); serve a model "
                "with the tokenizer of the policy"
            )
    return read


def _library(section: str) -> Any:
    try:
        import openai
    except ImportError as error:
        raise ConfigError(f'{section} needs the package openai: pip install "mrlm[llm]"') from error
    return openai


PLUGIN = OpenAIEngine
