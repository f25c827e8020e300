"""Thousands of programs through one sandbox: honest, broken and hostile ones, with deadlines of all
lengths, one after the other and side by side. `python tests/safety/soak.py 10000` says what came
out; a short form is a test."""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from mrlm.sandbox import Limits, LocalSandbox, SandboxResult
from mrlm.sandbox.opening import TIERS

SLACK = 0.5
"""Seconds beyond its limit that a run may take."""

Check = Callable[[SandboxResult], bool]


def says(text: str) -> Check:
    return lambda result: result.ok and result.stdout == text


def ends(*statuses: str) -> Check:
    return lambda result: result.status in statuses


FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
FULL = ends("error", "killed", "timeout")
MIX: list[tuple[int, str, Check]] = [
    (30, "print(sum(range(1000)))", says("499500\n")),
    (10, "import json, re, collections\nprint(json.dumps({'a': [1, 2]}))", says('{"a": [1, 2]}\n')),
    (8, "open('x', 'w').write('y' * 100000)\nprint(len(open('x').read()))", says("100000\n")),
    (8, "raise ValueError('no')", ends("error")),
    (4, "import sys; sys.exit(7)", ends("error")),
    (4, "x = (", ends("error")),
    (4, "import os; os.kill(os.getpid(), 11)", ends("killed")),
    (4, "import os; os._exit(0)", ends("ok")),
    (3, "while True: pass", ends("timeout")),
    (3, "import time; time.sleep(60)", ends("timeout")),
    (3, "while True: print('x' * 5000)", ends("output_limit", "timeout")),
    (
        2,
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        ends("timeout", "oom"),
    ),
    (3, "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)", ends("ok")),
    (2, "x = []\nwhile True: x.append(bytearray(1 << 22))", ends("oom", "timeout")),
    (2, "import os\nwhile True: os.mkdir('d'); os.chdir('d')", FULL),
    (2, "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))", FULL),
    (2, "import threading\nfor _ in range(8): threading.Timer(0.01, print).start()", ends("ok")),
    (2, "import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass", ends("timeout")),
    (1, "import os; os.close(1); os.close(2)", ends("ok", "error")),
    (1, "import subprocess\nprint(subprocess.run(['/bin/echo', 'hi']).returncode)", ends("ok")),
    (2, "x = '\0'", ends("refused")),
]
WITHOUT_PROCESSES = ("fork", "subprocess")
"""Programs that start processes, which is refused where there are no namespaces."""


@dataclass(slots=True)
class Found:
    """What a campaign came to.

    Args:
        runs: how many.
        statuses: how often each.
        late: the most seconds that one took beyond its limit.
        wrong: programs that ended in another way than they had to, at most twenty.
        left: processes, descriptors and files that were not there before.
        memory_before, memory_after: bytes of this process and its workers, after a tenth of the
            runs and at the end.
        seconds: in all.
    """

    runs: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    late: float = 0.0
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    memory_before: int = 0
    memory_after: int = 0
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """Of memory, as a share."""
        return self.memory_after / self.memory_before - 1


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """A folder for temporary files that nobody else uses; everybody may pass through it."""
    before = tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="soak-")
    os.chmod(folder, 0o755)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder)


def things() -> dict[str, int]:
    """What may not become more: processes, descriptors, mounts, temporary files."""
    own = psutil.Process()
    return {
        "processes": len(own.children(recursive=True)),
        "descriptors": own.num_fds(),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "files": len(os.listdir(tempfile.gettempdir())),
    }


def memory() -> int:
    """Bytes that this process and those below it hold for themselves."""
    own = psutil.Process()
    return sum(one.memory_full_info().uss for one in [own, *own.children(recursive=True)])


def campaign(sandbox: LocalSandbox, count: int, seed: int = 0) -> Found:
    """Run `count` programs, as many side by side as the sandbox has workers."""
    chance = random.Random(seed)
    mix = MIX
    if not sandbox.tier.namespaces:
        mix = [row for row in MIX if not any(word in row[1] for word in WITHOUT_PROCESSES)]
    weights = [weight for weight, _, _ in mix]
    jobs = [
        (*chance.choices(mix, weights)[0][1:], chance.choice((0.15, 0.2, 0.35)))
        for _ in range(count)
    ]
    found, statuses = Found(count), Counter[str]()

    def one(job: tuple[str, Check, float]) -> None:
        program, check, wall = job
        hangs = any(word in program for word in ("while True", "sleep(60)"))
        limits = Limits(wall=wall if hangs else 5.0, memory=256 << 20, disk=8 << 20)
        started = time.monotonic()
        result = sandbox.run_now(program, limits=limits)
        took = time.monotonic() - started
        if not sandbox.tier.namespaces:
            took = result.usage.wall  # removing what it left on the host's disk comes after it
        found.late = max(found.late, took - limits.wall)
        statuses[result.status] += 1
        if not check(result) and len(found.wrong) < 20:
            found.wrong.append(f"{program!r}: {result.status} {result.output[-200:]}")

    started = time.monotonic()
    first = max(count // 10, 20)
    with own_temporary_files():
        with ThreadPoolExecutor(sandbox.workers) as pool:
            list(pool.map(sandbox.run_now, ["import time; time.sleep(0.1)"] * sandbox.workers))
            before = things()
            list(pool.map(one, jobs[:first]))
            found.memory_before = memory()
            for at in range(first, count, first):  # what waits to be run takes memory too
                list(pool.map(one, jobs[at : at + first]))
        found.memory_after = memory()
        found.seconds = time.monotonic() - started
        found.statuses = dict(statuses.most_common())
        after = things()
    more = {name: after[name] - before[name] for name in after}
    found.left = [f"{count} {name}" for name, count in more.items() if count > 0]
    return found


def main() -> int:
    """Say what came out; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--isolation", choices=TIERS, default="bubblewrap")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sandbox = LocalSandbox(TIERS[chosen.isolation])
    found = campaign(sandbox, chosen.count, chosen.seed)
    sandbox.close()
    print(json.dumps(asdict(found) | {"growth": round(found.growth, 4)}, indent=2))
    return int(bool(found.wrong or found.left or found.late > SLACK or found.growth > 0.02))


if __name__ == "__main__":
    sys.exit(main())
