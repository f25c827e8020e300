"""The decision whether a config may name code, commands and addresses: not if its folder was pulled
from the Hub, until the user trusts it."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrlm.config.paths import LENT, STAGE
from mrlm.core.errors import ConfigError
from mrlm.core.registry import is_reference

MARK = ".mrlm_pulled"
"""File in a folder that `mrlm pull` wrote, with the name of the repository."""
REACHES: re.Pattern[str] = re.compile(
    r"(?:.*_)?(?:url|uri|endpoint|api_base|address|host|remote|command|server)s?"
    r"|servers_file|trust_remote_code|taskset|eval_taskset"
)
"""Settings that run code, or send texts and keys to a server."""
LENT_BY: Mapping[str, tuple[str, ...]] = {
    "model": (LENT, STAGE),
    "reward_model": (STAGE,),
    "teacher_model": (STAGE,),
}
"""Settings that may name a policy or a stage in the form of a reference."""


GRANT = "_MRLM_TRUST"
"""Environment variable of a process started with `--trust`, and of those that it starts."""


def grant(value: bool) -> None:
    """Trust every config that this process reads, or none from elsewhere."""
    os.environ.pop(GRANT, None)
    if value:
        os.environ[GRANT] = "1"


def mark(folder: Path, origin: str) -> None:
    """Mark a folder as written by others; `origin` is where it is from."""
    (folder / MARK).write_text(f"{origin}\n", encoding="utf-8")


def origin_of(path: Path) -> str | None:
    """The origin of the folder of a file, if that or one above it was pulled."""
    here = path.absolute()
    places = dict.fromkeys((here, *here.parents, *path.resolve().parents))
    marks = (folder / MARK for folder in places)
    return next((mark.read_text("utf-8").strip() for mark in marks if mark.is_file()), None)


def is_trusted(path: Path) -> bool:
    """Whether code may be imported from the folder of a file."""
    return GRANT in os.environ or origin_of(path) is None


def check(data: Any, where: str, path: Path | None = None, advice: str = "add --trust") -> None:
    """Check that settings as written name no code, command or address, unless they are trusted.

    Args:
        where: their name in messages.
        path: their file; without one they are from elsewhere.
        advice: how the caller trusts them.

    Raises:
        ConfigError: a setting needs trust.
    """
    if path is not None and is_trusted(path):
        return
    key = next(settings_to_trust(data), None)
    if key is not None:
        origin = None if path is None else origin_of(path)
        source = f", and the folder was pulled from {origin}" if origin else ""
        raise ConfigError(
            f"{where}: {key} imports code, runs a program or contacts a server{source}; "
            f"read the file, then {advice}"
        )


def settings_to_trust(data: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of settings that need trust: they import code that is no part of the library, or
    contact a server."""
    name = next((part for part in reversed(key.split(".")) if not part.isdecimal()), "")
    if REACHES.fullmatch(name) and data:
        yield key
    elif isinstance(data, Mapping):
        for item, value in data.items():
            path = f"{key}.{item}" if key else str(item)
            if is_reference(str(item)):
                yield path
            yield from settings_to_trust(value, path)
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from settings_to_trust(value, f"{key}.{index}")
    elif isinstance(data, str) and _reaches(name, data):
        yield key


def _reaches(name: str, text: str) -> bool:
    """Whether a text names code or an address."""
    if text.startswith(LENT_BY.get(name, ("\0",))):
        return False
    return (
        is_reference(text)
        or re.match(r"\s*\w+://", text) is not None
        or (name == "id" and bool(re.search("[:.]", text)))  # other libraries import a module
    )
