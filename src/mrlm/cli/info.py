"""`mrlm info`: versions, devices and all plug-ins; or the contents of a server."""

import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING

from mrlm.cli._options import refuse

if TYPE_CHECKING:
    from mrlm.serving.client.calling import Access

LIBRARIES = (
    *("torch", "transformers", "peft", "datasets"),
    *("pydantic", "safetensors", "tensorboardX", "math-verify"),
)


def info(
    plugins: bool = True,
    server: str | None = None,
    wait: float = 0.0,
    token: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> None:
    """Show versions, devices and plug-ins, or what a server offers."""
    if server is not None:
        from mrlm.serving.client.calling import access_of

        refuse("is for this machine; remove it or --server", no_plugins=not plugins)
        return _server(server, wait, access_of(token, None, tls_ca, tls_cert, tls_key))
    access = {"token": token, "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    refuse("is for a server; add --server HOST:PORT, or remove it", wait=wait or None, **access)
    from mrlm import __version__

    print(f"mrlm          {__version__}")
    print(f"python        {platform.python_version()} on {platform.platform()}")
    for name in LIBRARIES:
        print(f"{name:<13} {_version(name)}")
    for title, text in _devices():
        print(f"{title:<13} {text}")
    if plugins:
        _plugins()


def _server(address: str, wait: float, access: "Access") -> None:
    from mrlm.serving.client.calling import address_of
    from mrlm.serving.client.link import server_info

    info = server_info(address_of(address), wait, access)
    print(f"server        {address}{', draining: it takes no new sessions' * info.draining}")
    print(f"mrlm          {info.version}")
    print(f"epoch         {info.epoch}")
    print(f"environments  {', '.join(info.environments) or 'none'}")
    print(f"policies      {', '.join(info.policies) or 'none'}")
    print(f"sessions      {info.sessions} of {info.max_sessions}, lease {info.lease_seconds:g} s")
    print(f"workers       {info.workers}")
    print(f"messages      up to {info.max_message_bytes / 2**20:g} MiB")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> list[tuple[str, str]]:
    import torch

    from mrlm.core.tiny_model import cache_folder

    rows = [("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory = f"{properties.total_memory / 2**30:.0f} GiB"
            rows.append((f"cuda:{index}", f"{properties.name}, {memory}"))
    else:
        rows.append(("cuda", "none found"))
    return [*rows, ("cache", str(cache_folder()))]


def _plugins() -> None:
    from mrlm.core import registry

    for wing in registry.WINGS:
        print(f"\n{wing}")
        for name in registry.names(wing):
            print(f"  {name:<14} {registry.describe(wing, name)}")
