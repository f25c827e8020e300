"""CPU settings for training: matmul backend and memory allocation. Choices depend on the machine
only, never on timings, so that a resumed run computes the same bits."""

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mrlm.core.operating_system import processor_vendor

WORTHWHILE = 1 << 31
"""Parameters times tokens from which preparing oneDNN for every shape is worthwhile."""
REPEATED = 1 << 26
"""Parameters times tokens from which it is worthwhile for blocks, whose shapes repeat."""
EXACT = 2e-6
"""Largest error of a float32 product, relative to the largest entry, that counts as rounding."""
KEPT_KERNELS = 192
"""Kernels of oneDNN that are kept: those of blocks of rows, and of a few other shapes."""


_shared = threading.Event()
_blockwise = threading.Event()


@contextmanager
def shared_processor() -> Iterator[None]:
    """Context in which other threads may compute: the library is chosen for the whole process."""
    _shared.set()
    try:
        yield
    finally:
        _shared.clear()


@contextmanager
def quick_products(device: torch.device, size: int, blocks: bool = False) -> Iterator[None]:
    """Runs float32 products through oneDNN inside the context if it is faster (AVX512 on CPUs for
    which MKL has no kernels of its own) and as exact.

    oneDNN caches kernels per shape, which suits training but not decoding with its changing shapes,
    so it is on inside the context only.

    Args:
        device: where products are computed.
        size: parameters times tokens of the computation.
        blocks: a small one may be `in_blocks`, whose shapes repeat.
    """
    least = REPEATED if blocks else WORTHWHILE
    if device.type != "cpu" or size < least or _shared.is_set() or not onednn_serves():
        yield
        return
    if size < WORTHWHILE:
        _blockwise.set()
    try:
        # allows bf16 if faster; `onednn_serves` checked that float32 is kept
        with _precision("bf16"):
            yield
    finally:
        _blockwise.clear()


def in_blocks() -> bool:
    """Whether products of few rows are computed in blocks of rows, as `quick_products` chose."""
    return _blockwise.is_set() and quick()


def small_products() -> AbstractContextManager[None]:
    """Runs products through the default library inside the context, also within `quick_products`:
    the start-up cost of oneDNN would slow many small products."""
    return _precision("ieee") if quick() else nullcontext()


def other_products() -> AbstractContextManager[None]:
    """Runs products through the default library inside the context, if others are `in_blocks`."""
    return small_products() if _blockwise.is_set() else nullcontext()


def quick() -> bool:
    """Whether `quick_products` has chosen oneDNN."""
    return torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # pyright: ignore


@contextmanager
def _precision(kind: str) -> Iterator[None]:
    section: Any = torch.backends.mkldnn.matmul  # pyright: ignore
    before = section.fp32_precision
    section.fp32_precision = kind
    try:
        yield
    finally:
        section.fp32_precision = before


@functools.cache
def onednn_serves() -> bool:
    """Whether to prefer oneDNN: an AMD CPU with AVX512 whose float32 products are exact. (With AMX
    they would round to bfloat16.)"""
    if not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or processor_vendor() != "AuthenticAMD":
        return False
    with _precision("bf16"):
        return exact(lambda a, b: a @ b.t())


def exact(product: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether `product(a, b)`, meant to be `a @ b.T`, is available and computed in float32; a
    shorter type exceeds the limit by far."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(320, 512, generator=generator)
    reference = a.double() @ b.double().t()
    with torch.no_grad():
        try:
            result = product(a, b).double()
        except (AttributeError, NotImplementedError, RuntimeError):
            return False
    return float((result - reference).abs().max() / reference.abs().max()) < EXACT


def limit_kept_kernels() -> None:
    """Limits the kernels that oneDNN, and torch over it, keep for shapes. Each holds up to a MiB:
    with the 1,024 of their default, memory would grow for as many shapes of steps. Variables of the
    environment that are set stay; takes effect before the first kernel."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KEPT_KERNELS))


@functools.cache
def keep_freed_memory() -> bool:
    """Makes the C library (glibc) keep freed memory for the next step, since returning and
    requesting it again costs 5 % of a step; and in one heap for all threads, so that training uses
    what sampling has freed. Returns whether it took effect."""
    trim_threshold, mmap_threshold, most, arena_max = -1, -3, 32 << 20, -8
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    pairs = [(trim_threshold, 2**31 - 1), (mmap_threshold, most), (arena_max, 1)]
    return all(library.mallopt(*pair) for pair in pairs)
