"""A program that makes this Linux look like a Mac to the package, and to it alone: without `prctl`,
`/proc`, affinity of processors, seccomp, and with a GPU that has no float64."""

import builtins
import ctypes
import io
import os
import sys
from typing import Any

MISSING = ("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "eventfd")


class Refused:
    """An import hook: modules that another system does not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("pyseccomp", "resource"):
            raise ImportError(f"{name} is of another system")


def _ours() -> bool:
    """Whether the package (and no library, for which this still is Linux) called."""
    name = sys._getframe(2).f_globals.get("__name__", "")
    return name.startswith(("mrlm", "pathlib"))


def become() -> None:
    """From now on; libraries that look at the system when they are imported have to be imported."""
    sys.platform = "darwin"
    sys.modules.pop("resource", None)
    sys.meta_path.insert(0, Refused())  # pyright: ignore[reportArgumentType]
    for name in MISSING:
        if hasattr(os, name):
            delattr(os, name)
    opening, listing, library = io.open, os.listdir, ctypes.CDLL

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file).startswith("/proc") and _ours():
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return opening(file, *args, **kwargs)

    def listed(path: Any = ".") -> list[str]:
        if str(path).startswith("/proc") and _ours():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return listing(path)

    def loaded(name: Any = None, *args: Any, **kwargs: Any) -> Any:
        if name is None and _ours():
            raise OSError("functions of Linux were asked for")
        return library(name, *args, **kwargs)

    builtins.open = io.open = opened  # pyright: ignore[reportAttributeAccessIssue]
    os.listdir = listed  # pyright: ignore[reportAttributeAccessIssue]
    ctypes.CDLL = loaded  # pyright: ignore[reportAttributeAccessIssue]
