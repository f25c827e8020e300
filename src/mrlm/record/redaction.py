"""Known secrets in recorded texts: values of environment variables with names of secrets."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
SHORTEST_SECRET = 8
"""Shorter values are too likely to be ordinary words."""


def secrets() -> list[str]:
    """Values of environment variables with names of secrets, longest first."""
    values = {
        value
        for name, value in os.environ.items()
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET
    }
    return sorted(values, key=lambda value: (-len(value), value))


def redacted(data: Any, hidden: Sequence[str]) -> Any:
    """Plain data with known secrets in its texts redacted; keys and numbers stay."""
    if isinstance(data, str):
        for secret in hidden:
            data = data.replace(secret, "[secret]")
        return data
    if not hidden:
        return data
    if isinstance(data, Mapping):
        return {key: redacted(value, hidden) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [redacted(value, hidden) for value in data]
    return data
