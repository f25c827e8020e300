"""Seeds of single devices, and threads that record a CUDA graph or draw random numbers."""

import re
import threading
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mrlm.learn.policy.randomness import Exclusion, seeded
from places import ROOT


def test_random_numbers_continue_after_a_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(6)
    torch.manual_seed(5)
    first = torch.rand(3)
    with seeded(7, torch.device("cpu")):
        within = torch.rand(3)
    assert torch.equal(torch.cat([first, torch.rand(3)]), expected)
    torch.manual_seed(7)
    assert torch.equal(within, torch.rand(3))


def test_only_the_device_of_a_model_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with eight GPUs, as far as torch is told."""
    calls: list[Any] = []

    @contextmanager
    def device(which: torch.device):
        calls.append(("within", which))
        yield

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: calls.append(("seed", seed)))
    states = {"get_rng_state": ("read",), "set_rng_state": ("write",)}
    for name, (verb,) in states.items():
        monkeypatch.setattr(torch.cuda, name, lambda *x, verb=verb: calls.append((verb, x[-1])))
    with seeded(3, torch.device("cpu")):
        pass
    assert not calls
    third = torch.device("cuda", 3)
    with seeded(3, third):
        pass
    assert calls == [("read", third), ("within", third), ("seed", 3), ("write", third)]


def test_nothing_else_forks_generators_of_all_devices() -> None:
    """`fork_rng` without devices initialises every GPU of the machine."""
    found = [
        path.name
        for folder in ("src", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"fork_rng\((?!devices=)", path.read_text())
    ]
    assert found == [], "use `seeded`, or name the devices"


def test_recording_and_drawing_exclude_each_other() -> None:
    """A thread that draws makes another one not record, and waits for one that records."""
    one = Exclusion()
    with one.drawing(), one.drawing(), one.recording() as free:
        assert not free
    drawn = threading.Event()

    def draw() -> None:
        with one.drawing():
            drawn.set()

    thread = threading.Thread(target=draw)
    with one.recording() as free:
        assert free
        with one.recording() as again:
            assert not again
        thread.start()
        assert not drawn.wait(0.05)
    assert drawn.wait()
    thread.join()
    with one.recording() as free:
        assert free
