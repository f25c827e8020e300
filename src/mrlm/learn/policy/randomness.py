"""Generators of random numbers of the CPU and of one device."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of a device. Unlike `torch.manual_seed`, it leaves other
    devices alone, and takes no millisecond for absent ones."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Context in which random numbers of the CPU and of a device begin with a seed; afterwards both
    continue as before. Other devices are not initialised, which takes memory on each of them."""
    cuda_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices, device_type="cuda"):
        seed_generators(seed, device)
        yield


class Exclusion:
    """Lets either one thread record a CUDA graph, or any number of threads draw random numbers of a
    device: torch refuses numbers of a generator while another thread records with it, and two
    threads cannot record at once."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._drawing = 0
        self._recording = False

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Context to draw in; waits while a thread records."""
        with self._state:
            self._state.wait_for(lambda: not self._recording)
            self._drawing += 1
        try:
            yield
        finally:
            with self._state:
                self._drawing -= 1

    @contextmanager
    def recording(self) -> Iterator[bool]:
        """Context to record in, if it returns true; it does not wait for other threads."""
        with self._state:
            free = not self._recording and not self._drawing
            self._recording |= free
        try:
            yield free
        finally:
            if free:
                with self._state:
                    self._recording = False
                    self._state.notify_all()


GENERATORS = Exclusion()
"""That of this process."""
