"""The part of settings that may be published: no secrets, and no paths of this machine."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrlm.config.paths import LENT, OUTPUT, PROGRAM
from mrlm.core.tiny_model import portable_name
from mrlm.record.redaction import SECRET_NAME, redacted, secrets

REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""`module:Name`: code that is imported."""


def public(data: Any) -> Any:
    """Plain data for other machines, `without_secrets`; of paths of files and folders only the last
    part stays."""
    return _without_paths(without_secrets(data))


def without_secrets(data: Any) -> Any:
    """Plain data without secrets: values of environment variables with names of secrets are
    redacted, and text under a key with such a name is left out."""
    return redacted(_without_named(data), secrets())


def _without_named(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {
            key: _without_named(value)
            for key, value in data.items()
            if not (isinstance(value, str) and SECRET_NAME.search(str(key)))
        }
    return [_without_named(item) for item in data] if isinstance(data, list | tuple) else data


def _without_paths(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _without_paths(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_paths(item) for item in data]
    if not isinstance(data, str) or not is_local(data):
        return data
    name = portable_name(data)
    return Path(data).name if name == data else name


def is_local(text: str) -> bool:
    """Whether a text is the absolute path of an existing file or folder."""
    try:
        return os.path.isabs(text) and len(Path(text).parts) > 1 and Path(text).exists()
    except (OSError, ValueError):  # too long to be a path, or with a null character
        return False


def local_files(data: Any) -> bool:
    """Whether settings name a file or folder of this machine."""
    if isinstance(data, Mapping):
        return any(map(local_files, data.values()))
    if isinstance(data, list | tuple):
        return any(map(local_files, data))
    return isinstance(data, str) and is_local(data)


def needed(data: Any) -> Iterator[str]:
    """Names of files, modules and live objects of a program that another machine needs, beside a
    config, to repeat its run."""
    if isinstance(data, Mapping | list | tuple):
        items = data.items() if isinstance(data, Mapping) else enumerate(data)
        for key, value in items:
            if key != OUTPUT:  # a folder that the run writes
                yield from needed(value)
    elif isinstance(data, str) and is_local(data):
        name = portable_name(data)
        if name == data:
            yield f"`{Path(data).name}`"
    elif isinstance(data, str) and data.startswith(PROGRAM):
        yield data.removeprefix(PROGRAM)
    elif isinstance(data, str) and REFERENCE.fullmatch(data) and not data.startswith(LENT):
        yield f"the module `{data.partition(':')[0]}`"
