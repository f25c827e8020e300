"""Importing the library a tracker needs."""

from __future__ import annotations

import importlib
from typing import Any

from mrlm.core.errors import PluginError


def library(name: str) -> Any:
    """The module called `name`.

    Raises:
        PluginError: it is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PluginError(
            f"training.report_to: the tracker {name!r} is not installed: pip install 'mrlm[{name}]'"
        ) from error
