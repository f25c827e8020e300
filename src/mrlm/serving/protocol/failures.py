"""Error messages for clients, without internal details. No network."""

from __future__ import annotations

import logging
import secrets

from mrlm.core.errors import ConfigError, MRLMError, RewardError
from mrlm.core.user_errors import explain, whole
from mrlm.serving import mrlm_pb2 as pb

log: logging.Logger = logging.getLogger("mrlm")


class SlowError(Exception):
    """An environment took longer than its deadline, in seconds; `hung`: a thread of it still
    runs."""

    def __init__(self, seconds: float, hung: bool) -> None:
        super().__init__(f"it took longer than {seconds:g} s")
        self.seconds: float = seconds
        self.hung: bool = hung


class RefusedError(Exception):
    """An invalid request; nothing was executed. Its message is written for the client."""


def failure_of(error: Exception, what: str, opening: bool = False) -> pb.Failure:
    """The `Failure` that a client receives for an error in an environment; `what` names the
    environment and its operation. When `opening` it, a `ConfigError` is the request's fault."""
    if isinstance(error, RefusedError) or (opening and isinstance(error, ConfigError)):
        return pb.Failure(kind=pb.Failure.BAD, message=str(error))
    if isinstance(error, SlowError):
        log.warning("%s took longer than %g s", what, error.seconds)
        words = f"{what} took longer than the {error.seconds:g} s that the server gives it"
        return pb.Failure(kind=pb.Failure.SLOW, message=words)
    kind = pb.Failure.REWARD if isinstance(error, RewardError) else pb.Failure.WORLD
    return pb.Failure(kind=kind, message=log_failure(error, what))


def log_failure(error: BaseException, what: str) -> str:
    """Log an error with the user's stack frames under a fresh number. Returns the text for the
    client: the error's class, its message if that was written for users, and the number."""
    number = secrets.token_hex(4)
    log.error("[%s] %s failed: %s", number, what, explain(error))
    log.debug("[%s] %s", number, whole(error))
    words = f": {error}" if isinstance(error, MRLMError) else ""
    return f"{what} failed with {type(error).__name__}{words} ({number} in the server's log)"
