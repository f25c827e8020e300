"""A program in the sandbox: what comes back, what it may use, that nothing is left, and that none
runs where nothing can be isolated."""

import asyncio
import copy
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.sandbox import (
    AnswerError,
    Limits,
    LocalSandbox,
    Sandbox,
    SandboxUnavailableError,
    SessionEnded,
    open_sandbox,
    probe,
)
from mrlm.sandbox.scratch import remove_tree
from mrlm.sandbox.tiers import TIER_A, TIER_B, TIER_C, Tier
from places import TESTS

sys.path.insert(0, str(TESTS / "safety"))
import soak

SHORT = Limits(wall=1.0, memory=128 << 20)
ENOUGH = SHORT.with_wall(60.0)
"""For what ends by itself: it ends so on a busy machine too."""


def unavailable(tier: Tier) -> str:
    """Why a tier cannot be tried here; empty if it can."""
    sandbox = LocalSandbox(tier, workers=1)
    try:
        broken = probe(sandbox)
    except Exception as error:
        return str(error)
    finally:
        sandbox.close()
    assert not broken
    return ""


@pytest.fixture(scope="module", params=[TIER_A, TIER_B], ids=lambda tier: tier.name)
def sandbox(request: pytest.FixtureRequest) -> Iterator[LocalSandbox]:
    reason = unavailable(request.param)
    if reason:
        pytest.skip(reason)
    made = LocalSandbox(request.param, Limits(wall=30.0))
    yield made
    made.close()


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("print(6 * 7)", "ok", "42\n"),
        ("import sys; print(sys.stdin.read()[::-1])", "ok", "dlrow\n"),
        ("print(open('given/data.txt').read())", "ok", "some data\n"),
        ("import helper; print(helper.VALUE)", "ok", "7\n"),
        ("import sys; sys.exit(3)", "error", ""),
        ("import sys; sys.exit('why')", "error", "why\n"),
        ("raise SystemExit", "ok", ""),
        ("def f():\n    return 1 / 0\nf()", "error", "ZeroDivisionError"),
        ("x = (1,", "error", "SyntaxError"),
        ("import atexit; atexit.register(print, 'last'); print('first')", "ok", "first\nlast\n"),
        ("import threading; threading.Timer(0.1, print, ['late']).start()", "ok", "late\n"),
        ("print(__name__, __builtins__.__name__)", "ok", "__main__ builtins\n"),
        ("import os; os.kill(os.getpid(), 9)", "killed", ""),
        ("while True: pass", "timeout", ""),
        ("import time; time.sleep(60)", "timeout", ""),
        ("x = []\nwhile True: x.append(bytearray(1 << 24))", "oom", ""),
        ("while True: print('x' * 9999)", "output_limit", "xxx"),
        ("print('\\ud800')", "error", "UnicodeEncodeError"),
        ("x = '\ud800'", "refused", ""),
        ("x = '\0'", "refused", ""),
    ],
)
def test_ends(sandbox: LocalSandbox, program: str, status: str, said: str) -> None:
    files = {"given/data.txt": b"some data", "helper.py": b"VALUE = 7"}
    limits = SHORT if status == "timeout" else ENOUGH
    result = sandbox.run_now(program, "world", files, limits)
    assert (result.status, said in result.output) == (status, True), result
    assert status != "timeout" or SHORT.wall <= result.usage.wall <= ENOUGH.wall


def test_a_traceback_shows_the_program_and_nothing_of_ours(sandbox: LocalSandbox) -> None:
    result = sandbox.run_now("def f():\n    return 1 / 0\nf()")
    assert result.stderr.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "main.py", line 3, in <module>',
        "    f()",
    ]
    assert "harness" not in result.stderr


def test_usage_is_what_was_used(sandbox: LocalSandbox) -> None:
    busy = sandbox.run_now("import time\nwhile time.process_time() < 0.3: pass")
    assert 0.28 <= busy.usage.cpu <= busy.usage.wall + 0.1
    big = sandbox.run_now("x = bytearray(200 << 20)\nimport time; time.sleep(0.1)")
    assert 200 << 20 <= big.usage.memory <= 300 << 20
    killed = sandbox.run_now("while True: pass", limits=Limits(wall=2.0))
    assert killed.status == "timeout" and killed.usage.cpu > 0.02  # of a machine that is shared


def test_limits_are_kept(sandbox: LocalSandbox) -> None:
    program = "f = open('big', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20))\nf.close()"
    assert sandbox.run_now(program).status != "ok"
    assert sandbox.run_now(program, limits=Limits(file_size=80 << 20, disk=100 << 20)).ok
    thread = "import threading\nfor _ in range(20): threading.Timer(0.2, int).start()"
    assert sandbox.run_now(thread).ok
    if sandbox.tier is TIER_A:
        assert (
            "can't start new thread" in sandbox.run_now(thread, limits=Limits(processes=5)).stderr
        )


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="'wall'"):
        Limits(wall=0)
    with pytest.raises(ConfigError, match="'memory'"):
        Limits(memory=-1)


def test_runs_are_the_same_every_time(sandbox: LocalSandbox) -> None:
    program = "import random; print(random.random(), hash('a'), list({'x', 'y', 'z'}))"
    assert len({sandbox.run_now(program).stdout for _ in range(4)}) == 1


def test_runs_know_nothing_of_each_other(sandbox: LocalSandbox) -> None:
    one = LocalSandbox(sandbox.tier, SHORT, workers=1)
    leave = "import json, tempfile\njson.dumps = None\nopen('left', 'w').write('x')\n"
    one.run_now(leave + "open(tempfile.gettempdir() + '/left', 'w').write('x')")
    result = one.run_now("import json, os\nprint(json.dumps(os.listdir('.')))")
    one.close()
    assert result.stdout == "[]\n"


def test_files_stay_inside() -> None:
    with pytest.MonkeyPatch.context():
        sandbox = LocalSandbox(TIER_C)
        for path in ("../x", "/etc/x", "a/../../x", "", "a\0b"):
            assert sandbox.run_now("1", files={path: b""}).status == "refused"
        sandbox.close()


# -- many at a time --------------------------------------------------------------------------------


def test_programs_wait_their_turn_and_their_time_begins_then(sandbox: LocalSandbox) -> None:
    async def all_at_once() -> list[str]:
        program = "import time; time.sleep(0.5)"
        limits = Limits(wall=0.5 * runs / sandbox.workers)  # what the last one waits
        every = (sandbox.run(program, limits=limits) for _ in range(runs))
        return [result.status for result in await asyncio.gather(*every)]

    runs = 8 * sandbox.workers
    assert run_async(all_at_once()) == ["ok"] * runs


def test_copies_of_a_world_share_the_sandbox(sandbox: LocalSandbox) -> None:
    assert copy.deepcopy([sandbox])[0] is sandbox
    assert isinstance(sandbox, Sandbox)


def test_nothing_is_left(sandbox: LocalSandbox) -> None:
    programs = [
        "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(60)",
        "import time; time.sleep(60)",
        "import os\nfor i in range(200): os.makedirs('d/' * 20, exist_ok=True); os.chdir('d')",
        "import os\nos.makedirs('a/b'); open('a/b/c', 'w').close()",
        "print(1)",
    ]
    with soak.own_temporary_files():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(sandbox.run_now, ["1"] * 8))
        sandbox.run_now("1")
        before = soak.things()
        for program in programs * 2:
            sandbox.run_now(program, limits=Limits(wall=0.5))
        assert soak.things() == before


def test_closing_ends_everything() -> None:
    others = psutil.Process().children()
    made = LocalSandbox(TIER_C, workers=2)
    session = run_async(made.session("def answer(request): return request"))
    made.run_now("1")
    workers = [child for child in psutil.Process().children() if child not in others]
    assert len(workers) >= 2
    made.close()
    assert not psutil.wait_procs(workers)[1]
    assert made.closed
    with pytest.raises((SessionEnded, RuntimeError)):
        run_async(session.ask(1, 1.0))


def test_the_sandbox_dies_with_whoever_opened_it(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, threading, time
        from mrlm.sandbox import open_sandbox, Limits
        sandbox = open_sandbox()
        threading.Thread(target=sandbox.run_now, args=("import time; time.sleep(60)",),
                         kwargs={"limits": Limits(wall=60)}, daemon=True).start()
        time.sleep(0.5)
        print("running", flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        below = psutil.Process(process.pid).children(recursive=True)
        assert below
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not psutil.wait_procs(below)[1]


def test_a_worker_that_dies_is_replaced(sandbox: LocalSandbox) -> None:
    sandbox.run_now("1")
    for worker in sandbox._free:
        worker.process.kill()
        worker.process.wait()
    assert sandbox.run_now("print(1)").stdout == "1\n"


def test_a_sandbox_that_fails_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from mrlm.sandbox import workers

    def broken(*_: object, **__: object) -> None:
        raise OSError("no processes left")

    monkeypatch.setattr(workers.subprocess, "Popen", broken)
    made = LocalSandbox(TIER_C)
    result = made.run_now("print(1)")
    made.close()
    assert result.status == "infra_error"
    assert "no processes left" in result.reason


# -- sessions --------------------------------------------------------------------------------------

COUNTER = """
total = 0
def answer(request):
    global total
    total += request
    return total
"""
FORGED = """
import os
def answer(request):
    for fd in range(3, 64):
        try: os.write(fd, b'FRAME')
        except OSError: pass
"""


def test_a_session_keeps_its_state(sandbox: LocalSandbox) -> None:
    async def play() -> list[object]:
        session = await sandbox.session(COUNTER)
        answers = [await session.ask(number, 1.0) for number in (1, 2, 39)]
        with pytest.raises(AnswerError, match="TypeError"):
            await session.ask("x", 1.0)
        answers.append(await session.ask(0, 1.0))
        await session.close()
        with pytest.raises(SessionEnded, match="closed"):
            await session.ask(1, 1.0)
        return answers

    assert run_async(play()) == [1, 3, 42, 42]


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("1 / 0", "error"),
        ("x = 1", "error"),
        ("import os; os._exit(0)", "killed"),
        ("import time; time.sleep(60)", "timeout"),
        ("def answer(request):\n    while True: pass", "timeout"),
        ("def answer(request):\n    import os; os._exit(0)", "killed"),
        ("def answer(request): return 'x' * (2 << 20)", "output_limit"),
        (FORGED.replace("FRAME", "\\x02\\0\\0\\0{}"), "error"),
        (FORGED.replace("FRAME", "\\x05\\0\\0\\0[[[[["), "error"),
    ],
)
def test_a_session_that_does_not_answer_is_over(
    sandbox: LocalSandbox, program: str, status: str
) -> None:
    async def play() -> None:
        wall = 0.6 if status == "timeout" else 60.0
        session = await sandbox.session(program, limits=Limits(wall=wall))
        await session.ask(1, wall)

    with pytest.raises(SessionEnded) as caught:
        run_async(play())
    assert caught.value.status == status, caught.value
    assert sandbox.run_now("print(1)").ok


def test_many_sessions_live_side_by_side(sandbox: LocalSandbox) -> None:
    async def play() -> list[object]:
        sessions = await asyncio.gather(*(sandbox.session(COUNTER) for _ in range(8)))
        for _ in range(3):
            answers = await asyncio.gather(*(s.ask(i, 60.0) for i, s in enumerate(sessions)))
        await asyncio.gather(*(session.close() for session in sessions))
        return answers

    assert run_async(play()) == [3 * i for i in range(8)]


# -- which one -------------------------------------------------------------------------------------


def test_auto_is_the_best_there_is() -> None:
    reasons = {tier.name: unavailable(tier) for tier in (TIER_A, TIER_B)}
    if all(reasons.values()):
        with pytest.raises(SandboxUnavailableError):
            open_sandbox()
        return
    best = next(name for name, reason in reasons.items() if not reason)
    assert open_sandbox().name == best
    assert open_sandbox() is open_sandbox("auto")
    assert open_sandbox(limits=SHORT).limits == SHORT  # type: ignore[attr-defined]


def test_no_isolation_is_asked_for_by_its_whole_name(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="none-i-understand"):
        open_sandbox("none")
    for _ in range(2):
        opened = open_sandbox("none-i-understand")
        assert "no isolation" in caplog.text
        caplog.clear()
    opened.close()


@pytest.mark.parametrize(
    ("isolation", "said"),
    [
        ({"auto": {"image": "x"}}, "takes no arguments, not image"),
        ({"remote": {}}, "needs the url"),
        ({"remote": {"url": "http://127.0.0.1:1", "token": "x"}}, "token_file"),
        ({"remote": "x"}, "must be a mapping"),
        ({"docker": {"imgae": "x"}}, "did you mean 'image'"),
        ({}, "one word"),
        ("bubblewrp", "did you mean 'bubblewrap'"),
    ],
)
def test_words_that_cannot_be_understood(isolation: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_sandbox(isolation)


BLOCKED = """
import errno, json, os, sys
import pyseccomp as library
from mrlm.sandbox import open_sandbox, SandboxUnavailableError
blocked = library.SyscallFilter(library.ALLOW)
for name in ("unshare", "setns", *(["landlock_create_ruleset"] if sys.argv[1] == "both" else [])):
    blocked.add_rule(library.ERRNO(errno.EPERM), name)
of_users = library.Arg(0, library.MASKED_EQ, 0x10000000, 0x10000000)
blocked.add_rule(library.ERRNO(errno.EPERM), "clone", of_users)
blocked.add_rule(library.ERRNO(errno.ENOSYS), "clone3")
blocked.load()
try:
    print(open_sandbox().name)
except SandboxUnavailableError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("what", ["namespaces", "both"])
def test_fails_closed(what: str) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED, what], capture_output=True, text=True)
    if what == "namespaces" and not unavailable(TIER_B):
        assert done.stdout == "landlock\n", done
    else:
        assert done.stdout.startswith(
            "refused: programs cannot be isolated on this machine, so none is run"
        )
        assert "apt-get install bubblewrap" in done.stdout


@pytest.mark.parametrize("isolation", ["auto", "bubblewrap"])
def test_without_bubblewrap_one_message_names_the_fix(
    isolation: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mrlm.sandbox import opening, tiers

    monkeypatch.setattr(opening, "_opened", {})
    monkeypatch.setattr(tiers.shutil, "which", lambda *_, **__: None)
    if isolation == "auto" and not unavailable(TIER_B):
        opened = open_sandbox()
        opened.close()  # type: ignore[attr-defined]
        assert opened.name == "landlock"
        message = caplog.messages[-1]
    else:
        with pytest.raises(SandboxUnavailableError) as raised:
            open_sandbox(isolation)
        message = str(raised.value)
    for part in ("bubblewrap is not installed", "apt-get install bubblewrap"):
        assert message.count(part) == 1, message


def test_a_tier_whose_canary_escapes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from mrlm.sandbox import opening

    broken = LocalSandbox(TIER_C)
    escaped = probe(broken)
    broken.close()
    assert "read a file of the host" in escaped
    monkeypatch.setattr(opening, "_opened", {})
    monkeypatch.setattr(opening, "TIER_A", TIER_C)
    monkeypatch.setattr(opening, "TIER_B", Tier("B", "weak", filtered=False))
    monkeypatch.setattr(opening, "TIER_C", TIER_B)  # so that it is probed like the others
    with pytest.raises(SandboxUnavailableError, match="read a file of the host"):
        open_sandbox()


# -- clean-up --------------------------------------------------------------------------------------


def test_whatever_lies_in_a_folder_goes_and_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    full = tmp_path / "full"
    full.mkdir()
    here = os.getcwd()
    os.chdir(full)
    try:
        for _ in range(3000):
            os.mkdir("d")
            Path("f").touch()
            os.chdir("d")
    finally:
        os.chdir(here)
    os.symlink(kept, full / "link")
    os.symlink(kept / "file", full / "d" / "link")
    (full / "closed").mkdir()
    (full / "closed" / "in").mkdir()
    (full / "closed").chmod(0)
    remove_tree(str(full))
    remove_tree(str(full))
    assert not full.exists()
    assert json.dumps([path.name for path in kept.iterdir()]) == '["file"]'


FORKED = """
import ctypes
from mrlm.sandbox.tiers import TIER_B
from mrlm.sandbox.workers import SandboxWorker
found = []
prepare = ctypes.CFUNCTYPE(None)(lambda: found.append(1))
ctypes.CDLL(None).__register_atfork(prepare, None, None, None)
worker = SandboxWorker(TIER_B)
worker.close()
print(len(found))
"""


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="needs util-linux's setpriv")
def test_a_worker_is_begun_without_what_libraries_do_at_forks() -> None:
    """gRPC begins threads in every forked child, also in one that is about to become a worker."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
