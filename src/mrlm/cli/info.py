"""`mrlm info`: versions, devices and every plug-in there is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Annotated

import typer

LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "datasets",
    "pydantic",
    "safetensors",
    "tensorboardX",
    "math-verify",
)


def info(
    plugins: Annotated[bool, typer.Option(help="List the plug-ins of every wing.")] = True,
) -> None:
    """Show versions, devices and plug-ins."""
    from mrlm import __version__

    print(f"mrlm          {__version__}")
    print(f"python        {platform.python_version()} on {platform.platform()}")
    for name in LIBRARIES:
        print(f"{name:<13} {_version(name)}")
    for title, text in _devices():
        print(f"{title:<13} {text}")
    if plugins:
        _plugins()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> list[tuple[str, str]]:
    import torch

    from mrlm.tiny import cache_folder

    rows = [("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            rows.append((f"cuda:{index}", f"{found.name}, {found.total_memory / 2**30:.0f} GiB"))
    else:
        rows.append(("cuda", "none found"))
    return [*rows, ("cache", str(cache_folder()))]


def _plugins() -> None:
    from mrlm.core import registry

    for wing in registry.WINGS:
        print(f"\n{wing}")
        for name in registry.names(wing):
            print(f"  {name:<14} {registry.describe(wing, name)}")
