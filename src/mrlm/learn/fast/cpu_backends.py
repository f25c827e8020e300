"""What the processor is asked to multiply matrices with, and how memory is kept, while a model
learns. Choices follow from the machine alone, never from a timing, so that a run that is continued
computes the same bits."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WORTHWHILE = 1 << 31
"""Parameters times tokens from which on another backend is worth preparing it for every shape."""
EXACT = 2e-6
"""Largest error of a product in float32, relative to the largest entry, that is taken for
rounding."""


_shared = threading.Event()


@contextmanager
def shared_processor() -> Iterator[None]:
    """Inside, somebody else may compute at any time: products always go through the default
    library, since which one they go through is a switch of the whole process."""
    _shared.set()
    try:
        yield
    finally:
        _shared.clear()


@contextmanager
def quick_products(device: torch.device, size: int) -> Iterator[None]:
    """Inside, float32 products go through oneDNN where that is the faster library (AVX512 on
    processors for which MKL has no kernels of its own) and as exact.

    It keeps prepared kernels per shape: good for training, bad for decoding, where every step has
    another shape; so it is switched on for a while only.

    Args:
        device: where the model is.
        size: parameters times tokens of what is to be computed.
    """
    if device.type != "cpu" or size < WORTHWHILE or _shared.is_set() or not onednn_serves():
        yield
        return
    section = _products()
    before = section.fp32_precision
    section.fp32_precision = "bf16"  # "as low as bf16 if that is faster"; `onednn_serves` looked
    try:
        yield
    finally:
        section.fp32_precision = before


@contextmanager
def small_products() -> Iterator[None]:
    """Inside, products go through the default library, also within `quick_products`: oneDNN takes
    its time to begin, which many small products would all pay."""
    section = _products()
    before = section.fp32_precision
    if before == "bf16":
        section.fp32_precision = "ieee"
    try:
        yield
    finally:
        if before == "bf16":
            section.fp32_precision = before


@functools.cache
def onednn_serves() -> bool:
    """Whether oneDNN is to be preferred here: an AMD processor with AVX512, where its float32
    products are found to be exact. (With AMX it would round to bfloat16.)"""
    if not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or _vendor() != "AuthenticAMD":
        return False
    section = _products()
    before = section.fp32_precision
    section.fp32_precision = "bf16"
    try:
        return exact(lambda a, b: a @ b.t())
    finally:
        section.fp32_precision = before


def exact(product: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether `product(a, b)`, which is to be `a @ b.T`, is computed in float32. A processor that
    computes float32 products in a shorter type stays far above the limit; one without the operation
    computes nothing."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(320, 512, generator=generator)
    wanted = a.double() @ b.double().t()
    with torch.no_grad():
        try:
            found = product(a, b).double()
        except (AttributeError, NotImplementedError, RuntimeError):
            return False
    return float((found - wanted).abs().max() / wanted.abs().max()) < EXACT


def _products() -> Any:
    backend: Any = torch.backends.mkldnn
    return backend.matmul


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    return next(found, "")


@functools.cache
def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next step rather than give it back and ask for it
    again, which costs a twentieth of a step. For glibc; returns whether it took effect."""
    trim_threshold, mmap_threshold, most = -1, -3, 32 << 20
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(
        library.mallopt(trim_threshold, 2**31 - 1) and library.mallopt(mmap_threshold, most)
    )
