"""Why a request for a policy is not answered, for the doors to translate."""

from __future__ import annotations

from typing import Literal

from mrlm.core.errors import MRLMError

Kind = Literal["unknown", "bad", "long", "busy", "asleep", "slow", "failed", "forbidden"]


class Refusal(MRLMError):
    """A request that is not answered.

    Args:
        kind: why, for the doors to translate: `unknown` (no such policy), `bad` and `long` (the
            request can never be answered), `busy` and `asleep` (later, perhaps), `slow` (the
            deadline passed), `forbidden`, `failed` (this server's fault; its log says more).
        message: what the client may know.
        field: the part of the request that is wrong.
    """

    def __init__(self, kind: Kind, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.field: str | None = field
