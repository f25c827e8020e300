"""Running programs that nobody trusts: what a sandbox is (`types`), the ones on this machine
(`local`, on `workers` that run the program `_harness` in one of the `tiers`, with the system calls
of `filters`), elsewhere (`docker`, `remote`), and the word that opens one (`opening`). On them
stand the graders (`grading`). It knows nothing of models, worlds or rewards."""

from __future__ import annotations

from mrlm.sandbox.local import LocalSandbox
from mrlm.sandbox.opening import open_sandbox, opened, probe
from mrlm.sandbox.types import (
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    Session,
    SessionEnded,
    Usage,
)

__all__ = [
    "AnswerError",
    "Limits",
    "LocalSandbox",
    "Sandbox",
    "SandboxError",
    "SandboxResult",
    "SandboxUnavailableError",
    "Session",
    "SessionEnded",
    "Usage",
    "open_sandbox",
    "opened",
    "probe",
]
