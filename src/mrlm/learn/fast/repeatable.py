"""Sums on a GPU in the same order every time, so that a resumed or repeated run computes the same
bits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from torch.nn.attention import SDPBackend, sdpa_kernel

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable without which torch warns of every matrix product."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Context in which torch adds up in a fixed order on a GPU, as in gradients of attention and
    sums by index; an operation that has no such order warns. Nothing is changed if the program has
    chosen this itself."""
    if device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        yield
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")
    memory: Any = torch.utils.deterministic
    filled, memory.fill_uninitialized_memory = memory.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = filled


@contextmanager
def without_cudnn(device: torch.device) -> Iterator[None]:
    """Context in which torch computes attention on a GPU by its other kernels: the order of sums
    in gradients of cuDNN's is not fixed, and it is the likely cause of gradients that were NaN
    where padding has nothing to see."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


@contextmanager
def strictly() -> Iterator[None]:
    """Context inside `repeatable` for gradients of attention: torch takes their fixed order only
    where an operation without one would be an error."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if not (torch.are_deterministic_algorithms_enabled() and warns):
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)
