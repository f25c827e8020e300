"""Control tokens: the tokens that only a chat template may write into a prompt, and tokenisation of
text that spells them."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, islice
from typing import Any

from jinja2 import TemplateError

from mrlm.core.errors import well_formed

GUARD = "\ufdd0"
"""Marker after the first character of a control token spelled in a text, while the text is rendered
by a template. It is a Unicode noncharacter, which does not occur in text."""

FEW = 64
ESCAPE = " "
"""Replacement of the guard if a tokenizer has no ordinary tokens for the spelling."""


class Control:
    r"""The control tokens of one tokenizer.

    These are its special tokens and the added tokens with which a template opens roles, even if
    they are not marked as special (as DeepSeek's). Markup that a model writes itself (`<think>`,
    `<tool_call>`) is text, even if it is a single token.

    `guard` marks spelled control tokens in a text, the template is rendered with guarded texts, and
    `encode` converts the result to ids: tokens of the template are encoded as themselves, tokens
    spelled in a text as ordinary ids of the spelling. Text without one is unchanged by both.

    Args:
        tokenizer: a Hugging Face tokenizer.
        openings: role -> the template's text before a message of that role. If the assistant's has
            no control token (`\\nAssistant:\\n`), messages that spell it are escaped with a
            backslash, as no token distinguishes them.
        say: called with a warning when a text spells a control token.
    """

    def __init__(
        self,
        tokenizer: Any,
        openings: Mapping[str, Sequence[str]] | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.tokenizer = tokenizer
        self._say = say
        added = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
        names = {name for name, token in added.items() if token.special}
        names |= {str(name) for name in tokenizer.all_special_tokens}
        ordinary = [name for name in added if name not in names and name.strip()]
        openings = openings or {}
        names |= _role_tokens(ordinary, names, openings)
        self._ids: dict[str, int] = {
            name: tokenizer.convert_tokens_to_ids(name) for name in names if name
        }
        self.ids: frozenset[int] = frozenset(self._ids.values())
        """Ids of the control tokens."""
        self._pattern: re.Pattern[str] = _any_of(self._ids)
        self.longest: int = max(map(len, self._ids), default=1)
        """Characters of the longest control token."""
        markers = [
            text
            for text in openings.get("assistant", ())
            if text.strip() and not self._pattern.search(text)
        ]
        self._marker: re.Pattern[str] | None = _markers(markers)
        self._spelling = lru_cache(None)(self._spell)
        self.end_id: int | None = tokenizer.eos_token_id
        """The token that ends a message of the assistant."""
        self._matched_normal = any(added[name].normalized for name in names if name in added)

    def guard(self, text: str) -> str:
        """The text with a guard in every spelled control token. Raises `DataError`: the text has
        half of a surrogate pair."""
        well_formed(text, "a text of a conversation")
        text = text.replace(GUARD, "")
        match = self._pattern.search(text)
        if match is None and self._normal is not None:
            normal = self._normal(text)
            match = self._pattern.search(normal)
            text = normal if match else text
        if match is not None:
            self._say(
                f"a message spells the control token {match.group()!r}; it is read as ordinary text"
            )
            text = self._pattern.sub(_guarded, text)
        if self._marker is not None and (marked := self._marker.search(text)):
            self._say(
                f"the chat template begins a role with the ordinary text {marked.group().strip()!r}"
                ", which a message spells too; it is escaped there with a backslash. A template "
                "with tokens for roles cannot be imitated"
            )
            text = self._marker.sub(_escaped, text)
        return text

    def count(self, text: str) -> tuple[int, ...]:
        """How often each control token is in a rendered text, but for guarded ones."""
        if len(self._ids) <= FEW:  # a search by name is faster than a pattern
            return tuple(map(text.count, self._ids))
        counts = Counter(self._pattern.findall(text))
        return tuple(counts[name] for name in self._ids)

    def guard_all(self, value: Any) -> Any:
        """Plain data (tool calls, schemas of tools) with all texts guarded."""
        return _mapped(value, self.guard)

    def ends(self, text: str) -> bool:
        """Whether a rendered text ends with a control token."""
        return any(text.endswith(name) for name in self._ids)

    def boundary(self, text: str, position: int) -> int:
        """The position, or the beginning of the control token that it is in."""
        for match in self._pattern.finditer(text, max(0, position - self.longest)):
            if match.start() < position < match.end():
                return match.start()
            if match.start() >= position:
                break
        return position

    def begins(self, text: str) -> str:
        """The control token that a rendered text begins with, with white space before it."""
        start = len(text) - len(text.lstrip())
        match = self._pattern.match(text, start)
        return text[: match.end()] if match else ""

    def encode(self, guarded: str) -> list[int]:
        """Ids of a rendered text whose messages were guarded."""
        if GUARD not in guarded:
            return self._plain(guarded)
        parts = self.spelled(self._plain(unguarded(guarded)), guarded)
        if parts is None:
            return self._plain(self.escape(guarded))
        return [token for part in parts for token in part]

    def spelled(self, ids: Sequence[int], guarded: str) -> list[list[int]] | None:
        """For each id of a text, the id itself, or the ids of the spelling if a message spelled it.
        `None` if the tokenizer has no ordinary tokens for it, or finds unexpected tokens: then the
        text must be escaped.

        Args:
            ids: ids of the text without guards.
            guarded: the text with guards.
        """
        *places, length = accumulate(map(len, guarded.split(GUARD)))
        forged = {index for index in places if index < length}
        text = unguarded(guarded)
        matches = [(match.group(), match.start() + 1) for match in self._pattern.finditer(text)]
        held = [index for index, token in enumerate(ids) if token in self.ids]
        if [self._ids[name] for name, _ in matches] != [ids[index] for index in held]:
            return None
        parts = [[token] for token in ids]
        for index, (name, start) in zip(held, matches, strict=True):
            if start in forged:
                spelling = self._spelling(name)
                if spelling is None:
                    return None
                parts[index] = spelling
        return parts

    def escape(self, guarded: Any) -> Any:
        """Rendered text, or plain data, with guards replaced by a space."""
        self._say(
            "the tokenizer has no ordinary tokens for a control token that a message spells; a "
            "space is put into it"
        )
        return _mapped(guarded, lambda text: text.replace(GUARD, ESCAPE))

    def _plain(self, text: str) -> list[int]:
        core = self._core
        if core is None or core.truncation or core.padding or core.encode_special_tokens:
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return core.encode_batch_fast([text], add_special_tokens=False)[0].ids

    @cached_property
    def _core(self) -> Any:
        """The compiled part of the tokenizer, which takes a third of the time; `None` where it has
        none, or does more in Python than transformers does for all."""
        kind = type(self.tokenizer)
        for name in ("__call__", "_encode_plus"):
            owner = next((parent for parent in kind.__mro__ if name in vars(parent)), None)
            if owner is None or not owner.__module__.startswith("transformers.tokenization_utils"):
                return None
        return getattr(self.tokenizer, "backend_tokenizer", None)

    @cached_property
    def _normal(self) -> Callable[[str], str] | None:
        """The tokenizer's normaliser before the search for control tokens, if it has one."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        normalizer = getattr(backend, "normalizer", None)
        return normalizer.normalize_str if self._matched_normal and normalizer else None

    def _spell(self, name: str) -> list[int] | None:
        """The ids of a control token's characters, tokenised in two halves so that neither is a
        control token."""
        for cut in range(1, len(name)):
            ids = [*self._within(name[:cut]), *self._within(name[cut:])]
            if not self.ids.intersection(ids) and name in self.tokenizer.decode(ids):
                return ids
        return None

    def _within(self, text: str) -> list[int]:
        """Ids of a text following another one, without a prefix of the first word."""
        for before in ("\n", "a"):
            prefix_ids, whole = self._plain(before), self._plain(before + text)
            if whole[: len(prefix_ids)] == prefix_ids:
                return whole[len(prefix_ids) :]
        return self._plain(text)


def unguarded(value: Any) -> Any:
    """Text or plain data without guards."""
    return _mapped(value, lambda text: text.replace(GUARD, ""))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    return value


def _role_tokens(
    ordinary: Sequence[str], special: set[str], openings: Mapping[str, Sequence[str]]
) -> set[str]:
    """The added tokens that open a role without being special. Tokens after the first one before an
    assistant's message are markup of the message (`<think>`)."""
    pattern, tokens = _any_of([*ordinary, *special]), set[str]()
    for role, texts in openings.items():
        most = 1 if role == "assistant" else None
        for text in texts:
            tokens.update(match.group() for match in islice(pattern.finditer(text), most))
    return tokens.difference(special)


def _any_of(names: Any) -> re.Pattern[str]:
    """A pattern of the names, longest first; it never matches without names."""
    longest = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or r"(?!)")


def _markers(texts: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern of texts that open roles, also if a message begins or ends within one."""
    patterns = []
    for text in sorted(set(texts), key=len, reverse=True):
        core = text.strip()
        before, _, after = text.partition(core)
        lead, trail = (re.escape(part) for part in (before, after))
        patterns.append(rf"(?:\A\s*|{lead}){re.escape(core)}(?:{trail}|\s*\Z)")
    return re.compile("|".join(patterns)) if patterns else None


def _guarded(match: re.Match[str]) -> str:
    name = match.group()
    return f"{name[0]}{GUARD}{name[1:]}" if len(name) > 1 else f"\\u{ord(name):04x}"


def _escaped(match: re.Match[str]) -> str:
    text = match.group()
    start = len(text) - len(text.lstrip())
    return f"{text[:start]}\\{text[start:]}"


def end_of_answer(
    apply: Callable[[list[dict[str, Any]], bool], str], control: Control
) -> int | None:
    """The token that ends a message of the assistant: the tokenizer's end token if the template
    writes it after an answer, else the control token that follows (`<|im_end|>` where the tokenizer
    has `<|endoftext|>`), else the tokenizer's. `apply` renders messages."""
    texts = {"user": "x", "assistant": "\ue0003", "next": "\ue0004"}
    dicts = [
        {"role": role.replace("next", "user"), "content": text, "sources": [index]}
        for index, (role, text) in enumerate(texts.items())
    ]
    rests: list[str] = []  # the text after an answer that is the last message, and one that is not
    for count in (2, 3):
        try:
            text = apply(dicts[:count], False)
        except TemplateError:
            break
        if texts["assistant"] in text:
            rests.append(text.rpartition(texts["assistant"])[2].partition(texts["next"])[0])
    eos = control.tokenizer.eos_token
    if not (eos and rests and all(eos in rest for rest in rests)):
        end = next(filter(None, map(control.begins, rests)), "")
        if end:
            return control.encode(end)[-1]
    return control.tokenizer.eos_token_id
