"""Nothing that a model writes harms the host, is paid for nothing, hangs, or leaves something."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.safety.sweeping import CASES, IN_ORDER, sweep

from mrlm.sandbox import Limits, LocalSandbox, probe, workers
from mrlm.sandbox.opening import TIERS

pytestmark = pytest.mark.system

IN_SANDBOX = [kind for kind in CASES if kind not in IN_ORDER]
PARTS = 4
"""The cases of a kind are run in as many parts, side by side in each."""
ROOT = Path(__file__).parents[2]


@cache
def unavailable(tier: str) -> str:
    """Why a tier cannot be tried here; empty if it can."""
    sandbox = LocalSandbox(TIERS[tier], workers=1)
    try:
        assert not probe(sandbox)
    except Exception as error:
        return str(error)
    finally:
        sandbox.close()
    return ""


def needed(tier: str) -> None:
    """Skip where a tier is missing."""
    if reason := unavailable(tier):
        pytest.skip(reason)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [(kind in IN_ORDER and kind, case.name) for kind in CASES for case in CASES[kind]]
    assert len(names) == len(set(names))


def parts(tier: str) -> list[object]:
    """All parts of all kinds; where they are tried in a second tier, half of the parts are slow
    tests, and most of the solutions, which are judged by the same grader everywhere."""
    return [
        pytest.param(
            kind,
            part,
            marks=[pytest.mark.slow] * (tier == "landlock" and part > (kind != "solutions")),
        )
        for kind in IN_SANDBOX
        for part in range(PARTS)
    ]


@pytest.mark.parametrize(("kind", "part"), parts("bubblewrap"))
def test_in_namespaces(kind: str, part: int) -> None:
    needed("bubblewrap")
    assert sweep(TIERS["bubblewrap"], kind, part=part, parts=PARTS) == {}


@pytest.mark.parametrize(("kind", "part"), parts("landlock"))
def test_under_landlock(kind: str, part: int) -> None:
    needed("landlock")
    assert sweep(TIERS["landlock"], kind, part=part, parts=PARTS) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", IN_SANDBOX)
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_one_at_a_time_in_a_worker_of_its_own(tier: str, kind: str) -> None:
    needed(tier)
    assert sweep(TIERS[tier], kind, kept=False, at_once=1) == {}


@pytest.mark.parametrize("kind", IN_ORDER)
def test_without_a_sandbox(kind: str) -> None:
    assert sweep(TIERS["bubblewrap"], kind) == {}


def as_ordinary_user(tier: str, kind: str, part: int, parts: int) -> dict[str, list[str]]:
    """Run a part of the cases as a user that nobody is."""
    if os.getuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    needed(tier)
    words = [tier, kind, str(part), str(parts)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.safety.as_ordinary_user", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("tier", "kind"),
    [("bubblewrap", kind) for kind in (*IN_SANDBOX, "files")]
    + [
        pytest.param("landlock", kind, marks=[pytest.mark.slow] * (kind != "hosts"))
        for kind in IN_SANDBOX
        if kind != "solutions"
    ],
)
def test_some_as_an_ordinary_user(tier: str, kind: str) -> None:
    part = 0 if tier == "bubblewrap" else 3
    assert as_ordinary_user(tier, kind, part, 1 if kind in IN_ORDER else 6) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", IN_SANDBOX)
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_all_as_an_ordinary_user(tier: str, kind: str) -> None:
    assert as_ordinary_user(tier, kind, 0, 1) == {}


def test_reading_waits_for_nobody() -> None:
    """A program may take from its own output what was there a moment ago."""
    source, sink = os.pipe()
    os.set_blocking(source, False)
    written = {source: bytearray()}
    assert workers._drained(source, written, 10)
    os.write(sink, b"x" * 20)
    assert not workers._drained(source, written, 10)
    assert written == {source: b"x" * 10}
    os.close(sink)
    sandbox = LocalSandbox(TIERS["none-i-understand"])
    worker = sandbox.take()
    running = worker.begin(b"import time; time.sleep(9)", {}, sandbox.limits, source)
    os.close(source)
    assert not os.get_blocking(running.output) and not os.get_blocking(running.errors)
    worker.end("timeout")
    worker.release(running)
    sandbox.give_back(worker)
    sandbox.close()


def test_a_program_that_dies_slowly_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program can make a failure of the sandbox out of its own end."""
    monkeypatch.setattr(workers, "ENDING", 0.0)
    sandbox = LocalSandbox(TIERS["none-i-understand"], Limits(wall=0.3))
    result = sandbox.run_now("x = bytearray(1 << 27)\nwhile True: pass")
    assert (result.status, result.stdout) == ("timeout", "")
    assert sandbox.run_now("print(1)", limits=Limits(wall=9)).ok
    sandbox.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in IN_ORDER if kind != "files"])
def test_all_without_a_sandbox_as_an_ordinary_user(kind: str) -> None:
    """Workers of the mathematics run in this Python itself, which that user has to reach."""
    python = Path(sys.executable).absolute()
    private = [str(path) for path in (python, *python.parents) if not path.stat().st_mode & 0o005]
    private += [str(path) for path in python.resolve().parents if not path.stat().st_mode & 0o005]
    if private:
        pytest.skip(f"an ordinary user may not run this Python: {private[0]} is private")
    assert as_ordinary_user("bubblewrap", kind, 0, 1) == {}
