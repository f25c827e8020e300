"""Requests of the OpenAI protocol, read field by field, and the JSON of its answers."""

import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from mrlm.core.chat import Chat
from mrlm.core.errors import DataError
from mrlm.core.messages import read_message
from mrlm.core.sampling import FIELDS, SamplingParams
from mrlm.core.thoughts import without_thoughts
from mrlm.core.tool_calls import ToolCall, blocks_in
from mrlm.core.types import Completion, Message
from mrlm.record.vocabulary import token_bytes
from mrlm.serving.policies.admission import Refusal, check_size, checked_sampling

JSON = dict[str, Any]
DONE: tuple[str, ...] = (
    "model", "stream", "stream_options", "logprobs", "n", "seed", "max_tokens",
    *(FIELDS.keys() - {"max_new_tokens"}),
)  # fmt: skip
"""Fields that are carried out."""
CHAT = ("messages", "tools", "tool_choice", "max_completion_tokens")
TEXT = ("prompt", "return_token_ids")
"""Fields that only one of the routes carries out."""
WITHOUT_EFFECT = (
    "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "request_id", "priority", "cache_salt",
)  # fmt: skip
"""Fields that change no answer, whatever their value is."""
SPECIAL = ("skip_special_tokens",)
"""A field of the routes that answer with ids: whether special tokens are left out of the text."""
SCORES = "prompt_logprobs"
"""A field of text completions: number of the likeliest tokens whose log-probs are returned at each
position of the prompt, besides that of its own token."""
MOST_SCORED = 100
STREAM_OPTIONS = ("include_usage", "include_obfuscation")
STREAMED = "an object, of a request with stream: true"
_NEUTRAL: tuple[tuple[Any, str], ...] = (
    (0, "frequency_penalty presence_penalty prompt_logprobs min_tokens top_logprobs"),
    (1, "repetition_penalty length_penalty best_of"),
    (False, "echo use_beam_search ignore_eos store continue_final_message add_special_tokens"),
    (False, "include_stop_str_in_output return_tokens_as_token_ids return_token_ids"),
    (True, "parallel_tool_calls add_generation_prompt skip_special_tokens"),
    (True, "spaces_between_special_tokens"),
    ([], "functions stop_token_ids bad_words documents"),
    ({}, "logit_bias chat_template_kwargs"),
    ("", "suffix"),
    ("none", "function_call"),
    (["text"], "modalities"),
    ({"type": "text"}, "response_format"),
)
NEUTRAL: dict[str, Any] = {name: value for value, names in _NEUTRAL for name in names.split()}
"""Fields that would change an answer but are not supported, with the value that has no effect.
Any field in none of the three tables is refused."""
MOST_CHOICES = 64


class Fields:
    """The body of a request; every getter reports what is wrong with its field. `closed`: a field
    that is in no table is refused. `done`: fields that this route carries out, beside `DONE`."""

    def __init__(
        self, body: Mapping[str, Any], closed: bool = False, done: Collection[str] = ()
    ) -> None:
        self.body = body
        for name, value in body.items():
            if value is None or name in DONE or name in WITHOUT_EFFECT or name in done:
                continue
            if not closed and name not in NEUTRAL:
                continue
            neutral = NEUTRAL.get(name)  # none, of an unknown field, as no value is here
            if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
                raise Refusal("bad", f"{name} is not supported by this route", name)

    def _value(self, name: str, default: Any, good: Callable[[Any], bool], what: str) -> Any:
        value = self.body.get(name)
        if value is None:
            return default
        if not good(value):
            raise Refusal("bad", f"{name} must be {what}", name)
        return value

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """An integer from `low` to `high`."""
        what = f"a whole number from {low} to {high}"
        return self._value(name, default, lambda e: type(e) is int and low <= e <= high, what)

    def number(self, name: str, default: float) -> float:
        return float(self._value(name, default, lambda e: type(e) in (int, float), "a number"))

    def flag(self, name: str) -> bool:
        """True or false; false if not given."""
        return self._value(name, False, lambda e: type(e) is bool, "true or false")

    def text(self, name: str) -> str:
        value = self._value(name, "", lambda e: isinstance(e, str), "a text")
        if not value:
            raise Refusal("bad", f"{name} must be a text", name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A text, or a list of them; none if not given."""
        value = self._value(name, [], _are_texts, "a text or a list of texts")
        return (value,) if isinstance(value, str) else tuple(value)

    def choices(self) -> int:
        """Completions of each prompt."""
        return self.whole("n", 1, 1, MOST_CHOICES)

    def limit(self, default: int) -> int:
        """Most tokens of a chat answer."""
        first, name = self.whole("max_tokens", default, 1, 1 << 31), "max_completion_tokens"
        limit = self.whole(name, first, 1, 1 << 31)
        if self.body.get("max_tokens") not in (None, limit):
            raise Refusal("bad", f"max_tokens and {name} differ; give one of them", name)
        return limit

    def count(self) -> int:
        """Total number of completions requested, computed before any prompt is read."""
        prompts: Any = self.body.get("prompt")
        several = isinstance(prompts, list) and not (prompts and isinstance(prompts[0], int))
        return self.choices() * (len(prompts) if several else 1)

    def seed(self) -> int:
        """The seed of the request; a random one if it has none."""
        value = self.whole("seed", secrets.randbits(63), -(1 << 63), (1 << 64) - 1)
        return value % (1 << 64)

    def sampling(self, max_new_tokens: int) -> SamplingParams:
        """Sampling parameters. Whole numbers (`top_k`) may be 0 or -1 for off."""
        read: dict[type, Callable[..., Any]] = {
            int: lambda name, off: max(0, self.whole(name, off, -1, 1 << 31)),
            float: self.number,
            tuple: lambda name, _: self.texts(name),
        }
        names = [name for name in FIELDS if name != "max_new_tokens"]
        values = {name: read[FIELDS[name].kind](name, FIELDS[name].default) for name in names}
        return checked_sampling(SamplingParams(max_new_tokens, **values))

    def streamed(self) -> bool:
        """Whether the answer is streamed, with the options of that."""
        streamed, name = self.flag("stream"), "stream_options"
        options = self._value(name, {}, lambda e: streamed and isinstance(e, dict), STREAMED)
        for key, value in options.items():
            if key not in STREAM_OPTIONS or not isinstance(value, bool | None):
                text = f"{name} may have {' and '.join(STREAM_OPTIONS)}, true or false"
                raise Refusal("bad", text, name)
        return streamed

    def wants_usage(self) -> bool:
        """Whether a streamed answer ends with the token counts."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    # -- conversations -----------------------------------------------------------------------------

    def messages(self, max_context: int) -> list[Message]:
        """The conversation; tools for the chat template are attached to its first message. A
        conversation that cannot fit into `max_context` tokens is refused before tokenisation."""
        entries = self.body.get("messages")
        if not isinstance(entries, list) or not entries:
            raise Refusal("bad", "messages must be a list with at least one message", "messages")
        if len(entries) > max_context:
            text = f"the maximum context length is {max_context} tokens"
            raise Refusal("long", f"{text}; {len(entries)} messages do not fit", "messages")
        try:
            size = _characters(entries) + _characters(self.body.get("tools"))
        except RecursionError:
            raise Refusal("bad", "messages and tools are nested too deep", "messages") from None
        check_size(size, max_context)
        conversation = [
            _message(entry, f"messages[{index}]") for index, entry in enumerate(entries)
        ]
        tools = self.tools()
        if tools:
            conversation[0] = replace(conversation[0], metadata={"tools": tools})
        return conversation

    def tools(self) -> list[JSON]:
        """The tools that may be called."""
        choice = self.body.get("tool_choice")
        if choice not in (None, "auto", "none"):
            raise Refusal("bad", "tool_choice may be 'auto' or 'none' here", "tool_choice")
        entries = self._value("tools", [], lambda e: isinstance(e, list), "a list of objects")
        for index, tool in enumerate(entries):
            function = tool.get("function") if isinstance(tool, dict) else None
            named = isinstance(function, dict) and function.get("name")
            if not (named and isinstance(named, str)) or tool.get("type") != "function":
                text = f'tools[{index}] must be {{"type": "function", "function": {{"name": ...}}}}'
                raise Refusal("bad", text, "tools")
        return [] if choice == "none" else entries


def is_ids(value: Any) -> bool:
    """Whether a JSON value is a list of integers with at least one."""
    plain = isinstance(value, list) and bool(value)
    return plain and all(isinstance(e, int) and not isinstance(e, bool) for e in value)


def _are_texts(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return texts or isinstance(value, str)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0


def _message(entry: Any, where: str) -> Message:
    try:
        return read_message(entry, where)
    except DataError as error:
        raise Refusal("bad", str(error), where) from None


# -- answers ---------------------------------------------------------------------------------------


def head(kind: str, model: str) -> JSON:
    """The fields that every answer begins with."""
    name = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {
        "id": f"{name}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(read: int, completions: Sequence[Completion]) -> JSON:
    """Token counts of prompt and completions."""
    written = sum(len(completion.token_ids) for completion in completions)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def chat_logprobs(chat: Chat, completion: Completion) -> JSON:
    """The log-probs of a chat completion, token by token."""
    columns = _tokens(chat, completion), _bytes(chat, completion), completion.logprobs
    content = [
        {"token": text, "logprob": logprob, "bytes": list(raw_bytes), "top_logprobs": []}
        for text, raw_bytes, logprob in zip(*columns, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(chat: Chat, completion: Completion) -> JSON:
    """The log-probs of a text completion."""
    tokens = _tokens(chat, completion)
    offsets = [0, *accumulate(map(len, tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": completion.logprobs,
        "text_offset": offsets[: len(tokens)],
        "top_logprobs": [{t: p} for t, p in zip(tokens, completion.logprobs, strict=True)],
    }


def prompt_scores(chat: Chat, rows: Sequence[Sequence[tuple[int, float, int]]]) -> list[Any]:
    """The log-probs of a prompt as vLLM gives them: none for the first token, then id -> log-prob,
    rank and text."""
    text = chat.tokenizer.decode
    scores = [
        {
            str(token): {"logprob": logprob, "rank": rank, "decoded_token": text([token])}
            for token, logprob, rank in row
        }
        for row in rows
    ]
    return [None, *scores]


def _tokens(chat: Chat, completion: Completion) -> list[str]:
    return [chat.tokenizer.decode([token]) for token in completion.token_ids]


_vocabulary = lru_cache(maxsize=8)(token_bytes)


def _bytes(chat: Chat, completion: Completion) -> list[bytes]:
    """The bytes of every token: a part of a character has its own, which its text cannot show."""
    vocabulary = _vocabulary(chat.tokenizer)
    return [vocabulary[token] if token < len(vocabulary) else b"" for token in completion.token_ids]


def spoken(completion: Completion, tools: Sequence[JSON], opened: bool = False) -> tuple[JSON, str]:
    """The message of a completion and its finish reason. Calls that a model writes as
    `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` become tool calls if given any, but
    not those in a thought, which its prompt may have `opened`."""
    calls, rest = _calls_in(completion.text, opened) if tools else ([], completion.text)
    if not calls:
        return {"role": "assistant", "content": completion.text}, completion.finish_reason
    content = rest.strip() or None
    return {"role": "assistant", "content": content, "tool_calls": calls}, "tool_calls"


def _calls_in(text: str, opened: bool) -> tuple[list[JSON], str]:
    """The tool calls after the thoughts of a text, and the rest. Malformed calls stay text."""
    calls: list[JSON] = []
    stated = without_thoughts(text, opened)
    rest, text, offset = [text[: len(text) - len(stated)]], stated, 0
    for block in blocks_in(text):
        if isinstance(block.call, ToolCall):
            arguments = json.dumps(block.call.arguments)
            function = {"name": block.call.name, "arguments": arguments}
            name = f"call_{secrets.token_hex(8)}"
            calls.append({"id": name, "type": "function", "function": function})
            rest.append(text[offset : block.start])
            offset = block.end
    return calls, "".join([*rest, text[offset:]])


async def events(first: JSON, choices: list[JSON], counts: JSON | None) -> AsyncIterator[bytes]:
    """Server-sent events of an answer: its choices piece by piece, then its counts if given."""
    for choice in choices:
        parts = _chat_parts(choice) if "message" in choice else _text_parts(choice)
        for part in parts:
            yield _event(first | {"choices": [part]})
    if counts is not None:
        yield _event(first | {"choices": [], "usage": counts})
    yield b"data: [DONE]\n\n"


def _chat_parts(choice: JSON) -> Iterator[JSON]:
    message = choice["message"]
    bare = {"index": choice["index"], "logprobs": None, "finish_reason": None}
    yield bare | {"delta": {"role": "assistant", "content": ""}}
    for piece in pieces(message["content"] or ""):
        yield bare | {"delta": {"content": piece}}
    for number, call in enumerate(message.get("tool_calls", ())):
        yield bare | {"delta": {"tool_calls": [{"index": number, **call}]}}
    last = {key: value for key, value in choice.items() if key != "message"}
    yield last | {"delta": {}}


def _text_parts(choice: JSON) -> Iterator[JSON]:
    for piece in pieces(choice["text"]):
        bare = {"index": choice["index"], "text": piece, "logprobs": None}
        yield bare | {"finish_reason": None}
    yield choice | {"text": ""}


def _event(data: JSON) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """Split a text into words."""
    yield from re.findall(r"\s*\S+|\s+$", text)
