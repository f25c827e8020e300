"""Opens a sandbox by name, and tests its isolation with a canary."""

import json
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.operating_system import is_linux
from mrlm.core.registry import unknown
from mrlm.sandbox import docker, remote
from mrlm.sandbox.local import LocalSandbox
from mrlm.sandbox.tiers import TIER_A, TIER_B, TIER_C, python
from mrlm.sandbox.types import Limits, Sandbox, SandboxError, SandboxUnavailableError

log: logging.Logger = logging.getLogger(__name__)

Isolation = Literal["auto", "bubblewrap", "landlock", "none-i-understand", "docker", "remote"]
FIX = (
    "Install bubblewrap: apt-get install bubblewrap (Fedora: dnf install bubblewrap; Arch: pacman "
    "-S bubblewrap). If it is installed and user namespaces are forbidden, allow them: sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0"
)
TIERS = {"bubblewrap": TIER_A, "landlock": TIER_B, "none-i-understand": TIER_C}
WORDS = ("auto", *TIERS, "docker", "remote")
CANARY_LIMITS = Limits(wall=10.0)

CANARY = Path(__file__).with_name("canary.txt").read_text(encoding="utf-8")
"""A program that tries what is forbidden, and prints what it could do."""

_opened: dict[str, LocalSandbox] = {}
_lock = threading.Lock()


def open_sandbox(
    isolation: Isolation | str | Mapping[str, Any] = "auto", limits: Limits | None = None
) -> Sandbox[Any]:
    """Open a sandbox by name. Local ones are opened once per process and shared.

    Args:
        isolation: `auto` (bubblewrap, else Landlock, else an error that names what to install), one
            of them by name, `none-i-understand` (limits only: the host is not protected), `docker`
            or `remote`; the last two with their arguments, as in `{"remote": {"url":
            "https://10.0.0.5:8070", "token_file": "token"}}`.
        limits: default limits of programs.

    Raises:
        SandboxUnavailableError: the requested isolation is not available.
        ConfigError: an unknown name.
    """
    word, options = _read(isolation)
    if word == "docker":
        return docker.from_words(options, limits)
    if word == "remote":
        return remote.from_words(options, limits)
    if options:
        raise ConfigError(f"isolation {word!r} takes no arguments, not {', '.join(options)}")
    with _lock:
        if word not in _opened or _opened[word].closed:
            _opened[word] = _first_that_holds(word)
        shared = _opened[word]
    if shared.tier is TIER_C:  # every run is warned
        log.warning(
            "isolation none-i-understand: programs that a model writes run as you, with limits and "
            "no isolation; what they delete is gone"
        )
    return shared if limits is None else shared.with_limits(limits)


def _read(isolation: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    mapping = {isolation: {}} if isinstance(isolation, str) else dict(isolation)
    if len(mapping) != 1:
        raise ConfigError(f"isolation must be one word with its arguments, not {isolation!r}")
    ((word, options),) = mapping.items()
    if word not in WORDS:
        raise ConfigError(unknown(str(word), list(WORDS), "isolation"))
    if not isinstance(options or {}, Mapping):
        raise ConfigError(f"isolation {word!r}: its arguments must be a mapping, not {options!r}")
    return word, dict(options or {})


def opened() -> list[dict[str, str]]:
    """The local sandboxes that this process has opened, for the log of a run."""
    entries = {}
    for sandbox in _opened.values():
        tier = sandbox.tier
        result = "not probed" if tier is TIER_C else "a canary did not escape"
        entries[tier.name] = {"name": tier.name, "tier": tier.letter, "probe": result}
    return list(entries.values())


def _first_that_holds(isolation: str) -> LocalSandbox:
    if isolation != "none-i-understand" and not is_linux():
        raise SandboxUnavailableError(
            f"programs can be isolated on Linux only, not on {sys.platform}, so none is run; set "
            "isolation: docker, or remote with a server on Linux"
        )
    tiers = (TIER_A, TIER_B) if isolation == "auto" else (TIERS[isolation],)
    reasons = []
    python()  # where it is missing, no tier can be used
    for tier in tiers:
        sandbox = LocalSandbox(tier)
        try:
            broken = [] if tier is TIER_C else probe(sandbox)
            if not broken:
                if reasons:
                    log.warning(
                        "sandbox: %s is used, which isolates less than bubblewrap (%s). %s",
                        sandbox.name,
                        "; ".join(reasons),
                        FIX,
                    )
                else:
                    log.info("sandbox: %s", sandbox.name)
                return sandbox
            reasons.append(f"{tier.name}: a program {', '.join(broken)}")
        except (SandboxUnavailableError, SandboxError) as error:
            reasons.append(str(error))
        sandbox.close()
    raise SandboxUnavailableError(
        f"programs cannot be isolated on this machine, so none is run ({'; '.join(reasons)}). "
        f"{FIX}. Or use a kernel with Landlock (5.13 or newer), or set isolation: docker or remote"
    )


def probe(sandbox: LocalSandbox) -> list[str]:
    """The forbidden actions that a program could do in a sandbox: it tries to read, change, reach
    and signal a canary outside. Raises `SandboxError`: it cannot be run."""
    folder = tempfile.mkdtemp(prefix="mrlm-canary-")
    os.chmod(folder, 0o777)
    canary = Path(folder, "canary")
    secret = secrets.token_hex(16)
    canary.write_text(secret, encoding="utf-8")
    canary.chmod(0o666)
    name = f"mrlm-{secret}"
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0" + name)
        local.listen()
        canary_args = {
            "file": str(canary),
            "folder": folder,
            "secret": secret,
            "port": port.getsockname()[1],
            "socket": name,
            "pid": os.getpid(),
        }
        os.environ["MRLM_CANARY"] = secret
        try:
            result = sandbox.run_now(f"GIVEN = {canary_args!r}\n{CANARY}", limits=CANARY_LIMITS)
            untouched = (
                os.listdir(folder) == ["canary"] and canary.read_text(encoding="utf-8") == secret
            )
        finally:
            del os.environ["MRLM_CANARY"]
            shutil.rmtree(folder)
    if not result.ok:
        message = result.reason or result.stderr.strip()[-500:] or result.status
        raise SandboxError(f"{sandbox.name}: {message}")
    return json.loads(result.stdout) + ([] if untouched else ["changed a file of the host"])
