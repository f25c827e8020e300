"""Execution of untrusted programs: the interface (`types`), what the sandboxes share (`base`),
sandboxes on this machine (`local`, whose `workers` run the `_harness_*` files as one program in one
of the `tiers`, with the system call filters of `filters`) and elsewhere (`docker`, `remote`), the
function that opens one by name (`opening`), and the graders (`grading`)."""

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
    "AnswerError", "Limits", "LocalSandbox", "Sandbox", "SandboxError", "SandboxResult",
    "SandboxUnavailableError", "Session", "SessionEnded", "Usage", "open_sandbox", "opened",
    "probe",
]  # fmt: skip
