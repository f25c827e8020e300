"""Verification of answers: numbers, lists and simple inequalities are compared here, everything
else by math-verify in child processes, which are reused, killed at the deadline and replaced.
Thread-safe."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

from mrlm.core.errors import EpisodeError
from mrlm.environments.math import answers, units

log: logging.Logger = logging.getLogger("mrlm")

_EQUALS = re.compile(r"(?<![<>!])=")
_PERCENT = re.compile(r"%|\bper ?cent", re.IGNORECASE)

TIMEOUT = 3.0
"""Time limit of computer algebra for one answer, in seconds."""
STARTUP = 120.0
"""Time limit for loading a worker's libraries, in seconds."""
KEPT_VARIABLES = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
)


class VerifierWorker:
    """A child process that runs math-verify."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-u", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self.killed = False
        if self._line(STARTUP) != "ready":
            self.close()
            raise EpisodeError(
                f"the math verifier could not be started with {sys.executable}; is math-verify "
                f"installed? "
                "(pip install 'math-verify[antlr4_13_2]')"
            )

    def ask(self, answer: str, gold: str, seconds: float) -> str | None:
        """The worker's verdict; `None` if it took longer than `seconds` or died, after which it
        must not be used again."""
        request = json.dumps({"answer": answer, "gold": gold, "seconds": seconds})
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(request.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return None
        return self._line(seconds)

    @property
    def alive(self) -> bool:
        return not self.killed and self.process.poll() is None

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unsent data has no reader any more
                    log.debug("a pipe to a math verifier was closed with unsent data")

    def _line(self, seconds: float) -> str | None:
        timer = threading.Timer(seconds, self._too_late)
        timer.daemon = True
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline(64)
        timer.cancel()
        timer.join()  # afterwards it is certain whether the timer has fired
        return line.decode().strip() or None

    def _too_late(self) -> None:
        self.killed: bool = True
        self.process.kill()


class Verifier:
    """A pool of workers, started on first use.

    Args:
        workers: maximum number of processes.
        remembered: number of cached verdicts, as the samples of a group often agree.
    """

    def __init__(self, workers: int = 2, remembered: int = 4096) -> None:
        self._idle: queue.LifoQueue[VerifierWorker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._all: set[VerifierWorker] = set()
        self._verdicts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._remembered = remembered
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def compare(self, answer: str, gold: str, timeout: float = TIMEOUT) -> str:
        """`right`, `wrong`, `unparseable`, `gold` (the gold answer cannot be parsed) or `timeout`.

        Raises:
            EpisodeError: no worker can be started.
        """
        with self._lock:
            known = self._verdicts.get((answer, gold))
        if known is not None:
            return known
        reply = self._asked(answer, gold, timeout) or self._asked(answer, gold, timeout)
        if reply is None:
            return "unparseable"
        if reply == "timeout":
            return reply
        with self._lock:
            self._verdicts[answer, gold] = reply
            if len(self._verdicts) > self._remembered:
                self._verdicts.popitem(last=False)
        return reply

    def _asked(self, answer: str, gold: str, timeout: float) -> str | None:
        """One worker's verdict; `None` if it died of a cause other than the deadline."""
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                self._forget(worker)
                worker = None
                worker = self._started()
            reply = worker.ask(answer, gold, timeout)
            late = worker.killed
            if reply is None or late:
                self._forget(worker)
                worker = None
            return "timeout" if reply is None and late else reply
        finally:
            self._idle.put(worker)

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        with self._lock:
            return sorted(worker.process.pid for worker in self._all if worker.alive)

    def close(self) -> None:
        """Kill all workers. The next comparison starts new ones."""
        if os.getpid() != self._owner:  # a forked child must not kill its parent's workers
            return
        with self._lock:
            workers = list(self._all)
            self._all.clear()
        for worker in workers:
            worker.close()

    def _started(self) -> VerifierWorker:
        worker = VerifierWorker()
        with self._lock:
            self._all.add(worker)
        return worker

    def _forget(self, worker: VerifierWorker | None) -> None:
        if worker is not None:
            with self._lock:
                self._all.discard(worker)
            worker.close()


_shared = Verifier()


def _renew() -> None:
    """Discard the workers in a forked child, which starts its own."""
    global _shared
    _shared = Verifier()


os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: _shared.close())


def verify(
    answer: str | None, gold: str, *, question: str = "", timeout: float = TIMEOUT
) -> bool | None:
    """Whether an answer equals the gold answer as mathematics.

    Args:
        answer: the answer alone, plain or LaTeX, as returned by `answers.stated`.
        gold: the right answer.
        question: the question; an expression copied from it does not count as an answer.
        timeout: time limit of computer algebra, in seconds.

    Returns:
        `True`, `False`, or `None` if the answer cannot be parsed (within the time limit).

    Raises:
        EpisodeError: computer algebra is needed and cannot be started.
    """
    if answer is None or not answer.strip() or answers.costly(answer):
        return None
    said, wanted = answers.cleaned(answer), answers.cleaned(gold)
    if not said:
        return None
    if "".join(said.split()) == "".join(wanted.split()):
        return True
    if question and answers.repeats(said, question):
        return False
    decided = _decided(said, wanted, bool(_PERCENT.search(question)))
    if decided is not None:
        return decided
    if units.factor(units.split(said)[1], units.split(wanted)[1]) != 1:
        return False
    reply = _shared.compare(said, wanted, timeout)
    if reply == "gold":
        log.debug(
            "the gold answer %r cannot be read as mathematics; only the same text counts", gold
        )
    return {"right": True, "wrong": False, "gold": False}.get(reply)


def _decided(said: str, wanted: str, percents: bool) -> bool | None:
    """The verdict without computer algebra; `None` if it is needed."""
    gold = answers.number(wanted)
    if gold is not None:
        answer = answers.number(said)
        if answer is None:  # a calculation that ends in the answer: 3 + 4 = 7
            answer = answers.number(_EQUALS.split(said)[-1].strip())
        if answer is not None:
            return answers.same_number(answer, gold, percents)
        return False if answers.unworked(said) else None
    if answers.approximates(said, wanted):
        return False
    plain = "\\" not in said and said[0] not in "([{"
    numbers = answers.several(wanted)
    if numbers is not None and (plain or answers.several(said) is not None):
        return answers.several(said) == numbers
    condition = answers.relation(wanted)
    if condition is not None and (plain or any(sign in said for sign in "<>")):
        return answers.relation(said) == condition
    return None
