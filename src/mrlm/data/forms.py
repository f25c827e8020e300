"""Rows for training in the forms of other projects: they are read as `messages`, `prompt` and
`completion`, or `prompt`, `chosen` and `rejected`, or refused by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.errors import DataError
from mrlm.core.types import Role
from mrlm.data.tasks import Row, row_messages

SHAREGPT = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant",
    "assistant": "assistant", "tool": "tool", "observation": "tool",
}  # fmt: skip
"""Names of speakers in ShareGPT's form -> roles."""
MEDIA = ("images", "image", "videos", "audios", "audio")
WEIGHTS = ("weight", "weights", "sample_weight")


def training_row(row: Row, where: str, pairs: bool = False) -> Row:
    """A row for training, with its columns in our form.

    Args:
        row: the row: in our form; of Alpaca (`instruction`, `input`, `output`, `history`); of
            ShareGPT (`conversations` of `from` and `value`); of KTO (`label`); or a pair of
            conversations that repeat their prompt, also with a system message of their own.
        pairs: whether it must be a preference pair.

    Returns:
        The row. The answers of a pair are what follows the prompt.

    Raises:
        DataError: a column cannot be used (images, weights, a bad answer, an empty answer), or the
            row has none of the forms.
    """
    _refuse(row, where)
    row = _alpaca(_sharegpt(row, where), where)
    sides = ("chosen", "rejected")
    if row.get("prompt") is not None:
        row = _without_prompt(row, where)
    answers = [name for name in ("completion", *sides) if row.get(name) is not None]
    for name in answers:
        if isinstance(row[name], str) and not row[name].strip():
            raise DataError(
                f"{where}, column {name!r}: it is empty, and only the end of the answer would be "
                "trained; give an answer, or skip such rows with on_bad_row: skip"
            )
    paired = all(row.get(name) is not None for name in sides)
    if not (paired if pairs else paired or row.get("messages") is not None or answers):
        needed = "chosen and rejected" if pairs else "messages, or prompt and completion, or a pair"
        raise DataError(
            f"{where}: it needs {needed}; it has {', '.join(map(str, row)) or 'none'} (columns can "
            "be renamed with data.columns)"
        )
    return row


def refuse_media(row: Row, where: str) -> Row:
    """A row without images, videos and sounds. Raises `DataError`: a column has them."""
    for name in MEDIA:
        if row.get(name) is not None and row[name] not in ("", []):
            raise DataError(
                f"{where}, column {name!r}: only text is trained; remove such rows, or the column"
            )
    return row


def _refuse(row: Row, where: str) -> None:
    """Raise a `DataError` for a column that would change what is trained, and cannot be used."""
    refuse_media(row, where)
    for name in WEIGHTS:
        weights = row.get(name)
        if weights is not None and any(w != 1 for w in _listed(weights)):
            raise DataError(
                f"{where}, column {name!r}: rows and messages are not weighted here; remove the "
                "column, or repeat the rows that count more"
            )
    if row.get("label") in (False, 0, "false", "False") and row.get("completion") is not None:
        raise DataError(
            f"{where}, column 'label': it marks a bad answer (KTO), which must not be trained as a "
            "good one; skip such rows with on_bad_row: skip, or make pairs of chosen and rejected"
        )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _sharegpt(row: Row, where: str) -> Row:
    """A row with `conversations`, whose messages have `from` and `value`."""
    if row.get("conversations") is None or row.get("messages") is not None:
        return row
    rest = {name: value for name, value in row.items() if name != "conversations"}
    messages = _speeches(row["conversations"], f"{where}, column 'conversations'")
    sides = {name: rest[name] for name in ("chosen", "rejected") if rest.get(name) is not None}
    for name, value in sides.items():
        rest[name] = _speeches(value, f"{where}, column {name!r}")
    row_messages(messages, f"{where}, column 'conversations'")
    return rest | {"prompt" if sides else "messages": messages}


def _speeches(value: Any, where: str) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    return [_speech(item, f"{where}, message {number}") for number, item in enumerate(value)]


def _speech(value: Any, where: str) -> Any:
    if not isinstance(value, Mapping) or "from" not in value:
        return value
    if value["from"] not in SHAREGPT:
        raise DataError(
            f"{where}: unknown speaker {value['from']!r}; use {', '.join(SHAREGPT)}, or write the "
            "conversation as messages with role and content"
        )
    return {"role": SHAREGPT[value["from"]], "content": value.get("value")}


def _alpaca(row: Row, where: str) -> Row:
    """A row with `instruction`, `input` and `output`, and the earlier turns in `history`."""
    if row.get("instruction") is None:
        if row.get("history") not in (None, "", []):
            raise DataError(
                f"{where}, column 'history': it is read beside instruction only; put the earlier "
                "messages into prompt or messages"
            )
        return row
    parts = [row["instruction"], row.get("input") or ""]
    if row.get("prompt") is not None or not all(isinstance(part, str) for part in parts):
        raise DataError(
            f"{where}: instruction and input must be text, without a column prompt beside them"
        )
    used = ("instruction", "input", "output", "history", "system")
    rest = {name: value for name, value in row.items() if name not in used}
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for number, turn in enumerate(row.get("history") or []):
        if not isinstance(turn, Sequence) or isinstance(turn, str) or len(turn) != 2:
            raise DataError(
                f"{where}, column 'history', item {number}: expected a question and its answer"
            )
        roles = zip(("user", "assistant"), turn, strict=True)
        messages += [{"role": role, "content": text} for role, text in roles]
    question = "\n".join(part for part in parts if part)
    messages.append({"role": "user", "content": question})
    row_messages(messages, where)
    answer = {} if row.get("output") is None else {"completion": row["output"]}
    return rest | {"prompt": messages if len(messages) > 1 else question} | answer


def _without_prompt(row: Row, where: str) -> Row:
    """A row whose answers do not repeat the prompt; a system message of theirs belongs to it."""
    prompt_messages = row_messages(row["prompt"], f"{where}, column 'prompt'")
    begins: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for name in ("completion", "chosen", "rejected"):
        value = row.get(name)
        if value is None or isinstance(value, str):
            continue
        label = f"{where}, column {name!r}"
        messages, answer = row_messages(value, label), list(value)
        system = messages[0] if messages[0].role is Role.SYSTEM else None
        first = 0 if system is None else 1
        bare = prompt_messages[1:] if prompt_messages[0].role is Role.SYSTEM else prompt_messages
        count = first + len(bare)
        if [*map(_said, messages[first:count])] == [*map(_said, bare)]:
            both = system is not None and bare is not prompt_messages
            if both and _said(system) != _said(prompt_messages[0]):
                raise DataError(f"{label}: its system message differs from that of prompt")
            begins[name] = None if system is None else value[0]
            answers[name] = answer[count:]
        elif messages[0].role not in (Role.ASSISTANT, Role.TOOL):
            raise DataError(
                f"{label}: it begins with a message of {messages[0].role}, but does not repeat the "
                "prompt; give what follows the prompt, or whole conversations without prompt"
            )
        if name in answers and not answers[name]:
            raise DataError(f"{label}: it repeats the prompt and has no answer")
    systems = [value for value in begins.values() if value is not None]
    if not systems or prompt_messages[0].role is Role.SYSTEM:
        return row | answers
    texts = {_said(message) for message in row_messages(systems, where)}
    if len(systems) < len(begins) or len(texts) > 1:
        raise DataError(f"{where}: chosen and rejected have different system messages")
    prompt = row["prompt"]
    opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return row | answers | {"prompt": [systems[0], *opening]}


def _said(message: Any) -> tuple[Any, str]:
    """The role and the text of a message, without differences of white space."""
    return message.role, " ".join(message.content.split())
