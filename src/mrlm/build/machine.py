"""A check-up of the machine: versions, devices, isolation of programs, ports, disk and threads."""

import importlib.metadata
import platform
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from mrlm.core.errors import MRLMError
from mrlm.core.operating_system import processors
from mrlm.doctor.check import Check
from mrlm.sandbox import open_sandbox

LIBRARIES = ("torch", "transformers", "pydantic", "safetensors")
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ROOM = 2 * 2**30
"""Bytes of disk below which a run may not be saved."""


def check_machine(folder: Path) -> Iterator[Check]:
    """Checks of this machine, and of the disk of the folder where runs are written."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    yield Check("versions", "ok", f"python {platform.python_version()}, {', '.join(versions)}")
    yield _gpu()
    memory = psutil.virtual_memory()
    room = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    yield Check("memory", "ok", room)
    yield _threads()
    yield _sandbox()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    text_found = browser or "none found; mrlm view and run.html need a browser on your own machine"
    yield Check("browser", "ok", text_found)
    yield _ports()
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free in {folder.resolve()}"
    yield Check("disk", "ok" if free > ROOM else "warn", text)


def _gpu() -> Check:
    if not torch.cuda.is_available():
        return Check("gpu", "ok", "none; models run on the CPU")
    try:
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        free, total = torch.cuda.mem_get_info()
        (torch.ones(8, device="cuda") * 2).sum().item()
    except RuntimeError as error:  # a driver that does not fit, or no memory
        return Check("gpu", "fail", f"a computation on it failed: {' '.join(str(error).split())}")
    room = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return Check("gpu", "ok", f"{len(names)} x {names[0]}, {room}")


def _threads() -> Check:
    """More threads than cores slow every step down."""
    cores, threads = processors(), torch.get_num_threads()
    text = f"{threads} threads of torch on {cores} cores"
    if threads > cores:
        return Check("threads", "warn", f"{text}; set OMP_NUM_THREADS or training.threads")
    return Check("threads", "ok", text)


def _sandbox() -> Check:
    """Whether programs that models write can be isolated: a canary tries to escape."""
    try:
        return Check("sandbox", "ok", f"{open_sandbox().name}: a canary did not escape")
    except MRLMError as error:
        return Check("sandbox", "warn", " ".join(str(error).split()))


def _ports() -> Check:
    try:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(1)
            return Check("ports", "ok", f"127.0.0.1:{sock.getsockname()[1]} can be listened on")
    except OSError as error:
        return Check("ports", "fail", f"no local port can be listened on: {error.strerror}")
