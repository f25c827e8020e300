"""Execution of untrusted programs: the interface (`types`), what the sandboxes share (`base`),
sandboxes on this machine (`local`, whose `workers` run the `_harness_*` files as one program in one
of the `tiers`, with the system call filters of `filters`) and elsewhere (`docker`, `remote`), the
function that opens one by name (`opening`), and the graders (`grading`)."""

from mrlm.sandbox.local import LocalSandbox as LocalSandbox
from mrlm.sandbox.opening import open_sandbox as open_sandbox
from mrlm.sandbox.opening import opened as opened
from mrlm.sandbox.opening import probe as probe
from mrlm.sandbox.types import AnswerError as AnswerError
from mrlm.sandbox.types import Limits as Limits
from mrlm.sandbox.types import Sandbox as Sandbox
from mrlm.sandbox.types import SandboxError as SandboxError
from mrlm.sandbox.types import SandboxResult as SandboxResult
from mrlm.sandbox.types import SandboxUnavailableError as SandboxUnavailableError
from mrlm.sandbox.types import Session as Session
from mrlm.sandbox.types import SessionEnded as SessionEnded
from mrlm.sandbox.types import Usage as Usage
