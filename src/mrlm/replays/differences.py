"""The differences between a recorded episode and its re-execution."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mrlm.core.prefixes import shared_prefix
from mrlm.record.packing import unpack


def differing(logged: Mapping[str, Any], played: Mapping[str, Any]) -> Iterator[str]:
    """The differences to the log: tokens first, then their consequences.

    Args:
        logged: a row of the record.
        played: the same row of the re-execution.
    """
    was, now = logged["agents"], played["agents"]
    for name in dict.fromkeys([*was, *now]):
        if name not in now or name not in was:
            yield f"agent {name!r} {'did not speak' if name in was else 'spoke'} this time"
            continue
        yield from _differing_turns(name, was[name], now[name])
    for name in was.keys() & now.keys():
        for key in ("policy", "reward"):
            if key in was[name] and was[name][key] != now[name][key]:
                yield f"agent {name!r}: {key} {now[name][key]}, logged {was[name][key]}"
        if _said(was[name]["messages"]) != _said(now[name]["messages"]):
            yield f"agent {name!r}: the conversation is another one"
    for key in ("status", "reward", "error", "environment", "task_id"):
        if logged[key] != played[key]:
            yield f"{key} {played[key]}, logged {logged[key]}"


def _differing_turns(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    before, after = was.get("turns"), now["turns"]
    if before is None:  # a log of an earlier version: texts are compared
        return
    for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
        where = f"agent {name!r}, turn {number}"
        if "text" in one and one["text"] != other.get("text"):
            yield f"{where}: {other.get('text')!r}, logged {one.get('text')!r}"
        elif one["digest"] != other["digest"]:
            yield f"{where}: {_first_token(_ids(one), _ids(other))}"
    if len(before) != len(after):
        yield f"agent {name!r}: {len(after)} turns, logged {len(before)}"


def _said(messages: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [(message["role"], message["content"], message["agent"]) for message in messages]


def _ids(turn: Mapping[str, Any]) -> Sequence[int] | None:
    """The tokens of a recorded turn; a record of an earlier version has them as a list."""
    ids = turn.get("ids")
    return ids if ids is None or isinstance(ids, list) else unpack(ids).tolist()


def _first_token(was: Sequence[int] | None, now: Sequence[int] | None) -> str:
    if was is None or now is None:
        return "other tokens (the log has only their digest: record.tokens, or they hold a secret)"
    at = shared_prefix(was, now)
    if at < min(len(was), len(now)):
        return f"token {at + 1} is {now[at]}, logged {was[at]}"
    return f"{len(now)} tokens, logged {len(was)}"
