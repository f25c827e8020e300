"""The reasons why a request for a policy is refused, independent of the protocol."""

from __future__ import annotations

from typing import Literal

from mrlm.core.errors import MRLMError

Kind = Literal["unknown", "bad", "long", "busy", "asleep", "slow", "failed", "forbidden"]


class Refusal(MRLMError):
    """A request that is refused.

    Args:
        kind: the reason, translated by each protocol: `unknown` (no such policy), `bad` and `long`
            (the request can never be answered), `busy` and `asleep` (a retry may succeed), `slow`
            (the deadline passed), `forbidden`, `failed` (an error of this server; its log says
            more).
        message: text for the client.
        field: the part of the request that is wrong.
    """

    def __init__(self, kind: Kind, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.field: str | None = field
