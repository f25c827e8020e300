"""Trainers and config classes under TRL's names, with its defaults and its counts: change the
import of a script and leave its arguments. Their names are those of
`mrlm/config/compatible.yaml`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mrlm.core.lazy import face
from mrlm.trainer import compatible_names

__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, {}, derived=partial(compatible_names, "trl"))
