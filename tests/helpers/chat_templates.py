"""Chat templates of other projects, conversations for them, and a tokenizer with their tokens."""

import copy
import re
import zipfile
from functools import lru_cache
from typing import Any

from places import FIXTURES

JSON = dict[str, Any]
ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|return|>",
    "<turn|>",
)
TOKENS = re.compile("<[|\uff5c][^<>\\s'\"{}]*[|\uff5c]>")
TOOLS: list[JSON] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city."}},
                "required": ["city"],
            },
        },
    }
]


@lru_cache(maxsize=1)
def templates() -> dict[str, str]:
    """Name -> template, such as `trl/qwen3` and `llama.cpp/GLM-4.6`."""
    with zipfile.ZipFile(FIXTURES / "templates" / "templates.zip") as file:
        return {name.removesuffix(".jinja"): file.read(name).decode() for name in file.namelist()}


def user(text: str) -> JSON:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> JSON:
    return {"role": "assistant", "content": text, **more}


def call(number: int, city: str) -> JSON:
    function = {"name": "weather", "arguments": {"city": city}}
    return {"id": f"call0000{number}", "type": "function", "function": function}


RESULT: JSON = {
    **{"role": "tool", "tool_call_id": "call00001", "name": "weather"},
    "content": "rain, 7 degrees",
}
CONVERSATIONS: dict[str, tuple[list[JSON], list[JSON] | None]] = {
    "plain": ([user("Is it warm?"), said("Quite warm.")], None),
    "system": (
        [{"role": "system", "content": "Be brief."}, user("Is it warm?"), said("Quite warm.")],
        None,
    ),
    "turns": (
        [user("Is it warm?"), said("Quite warm."), user("And later?"), said("Colder then.")],
        None,
    ),
    "call": ([user("Oslo?"), said("", tool_calls=[call(1, "Oslo")])], TOOLS),
    "parallel": ([user("Both?"), said("", tool_calls=[call(1, "Oslo"), call(2, "Bergen")])], TOOLS),
    "results": (
        [
            *(user("Oslo?"), said("", tool_calls=[call(1, "Oslo")])),
            *(RESULT, said("It rains in Oslo.")),
        ],
        TOOLS,
    ),
    "reasoning": (
        [user("Is it warm?"), said("Quite warm.", reasoning_content="Think of July here.")],
        None,
    ),
    "tools": ([user("Is it warm?"), said("Quite warm.")], TOOLS),
}


def tokenizer_for(tokenizer: Any, template: str) -> Any:
    """A copy of a tokenizer that knows the tokens of a template."""
    own = copy.deepcopy(tokenizer)
    names = [*sorted(set(TOKENS.findall(template))), "<|endoftext|>"]
    eos = next((name for name in ENDS if name in template), "<|endoftext|>")
    own.add_special_tokens(
        {"additional_special_tokens": names, "eos_token": eos, "bos_token": "<s>"}
    )
    own.chat_template = template
    return own
