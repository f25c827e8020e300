"""Verification of answers: numbers, lists and simple inequalities are compared here, everything
else by math-verify in child processes, which are reused, killed at the deadline and replaced.
Thread-safe."""

from __future__ import annotations

import logging
import os
import queue
import re
from functools import lru_cache

from mrlm.environments.math import answers, lists, units
from mrlm.environments.shared.child_process import ChildEnded, ChildProcess, TooLate

log: logging.Logger = logging.getLogger("mrlm")

_EQUALS = re.compile(r"(?<![<>!])=")
_PERCENT = re.compile(r"%|\bper ?cent", re.IGNORECASE)

TIMEOUT = 3.0
"""Time limit of computer algebra for one answer, in seconds."""


class Verifier:
    """A pool of processes that run math-verify, started on first use.

    Args:
        remembered: number of cached verdicts, as the samples of a group often agree.
    """

    def __init__(self, workers: int = 2, remembered: int = 4096) -> None:
        hint = "; is math-verify installed? (pip install 'math-verify[antlr4_13_2]')"
        self._all = [
            ChildProcess("mrlm.environments.math.worker", "the math verifier", hint)
            for _ in range(workers)
        ]
        self._idle: queue.LifoQueue[ChildProcess] = queue.LifoQueue()
        for worker in self._all:
            self._idle.put(worker)
        self._known = lru_cache(remembered)(self._verdict)

    def compare(self, answer: str, gold: str, timeout: float = TIMEOUT) -> str:
        """`right`, `wrong`, `unparseable`, `gold` (the gold answer cannot be parsed) or `timeout`.
        Raises `EpisodeError`: no worker can be started."""
        for _ in range(2):
            try:
                return self._known(answer, gold, timeout)
            except TooLate:
                return "timeout"
            except ChildEnded:  # of a cause other than the deadline
                continue
        return "unparseable"

    def _verdict(self, answer: str, gold: str, timeout: float) -> str:
        worker = self._idle.get()
        try:
            request = {"answer": answer, "gold": gold, "seconds": timeout}
            return worker.ask(request, timeout)["verdict"]
        finally:
            self._idle.put(worker)

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return sorted(worker.pid for worker in self._all if worker.pid is not None)

    def close(self) -> None:
        """Kill all workers. The next comparison starts new ones."""
        for worker in self._all:
            worker.close()


_shared = Verifier()


def _renew() -> None:
    """Discard the workers in a forked child, which starts its own."""
    global _shared
    _shared = Verifier()


os.register_at_fork(after_in_child=_renew)


def verify(
    answer: str | None, gold: str, *, question: str = "", timeout: float = TIMEOUT
) -> bool | None:
    """Whether an answer equals the gold answer as mathematics.

    Args:
        answer: the answer alone, plain or LaTeX, as returned by `answers.stated`.
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
    return _compared(said, wanted, question, timeout) if said else None


def _compared(said: str, wanted: str, question: str, timeout: float) -> bool | None:
    """The verdict on two cleaned texts."""
    if "".join(said.split()) == "".join(wanted.split()):
        return True
    if question and answers.repeats(said, question):
        return False
    (letter, value), (right, text) = lists.choice(said), lists.choice(wanted)
    if letter and right:
        return letter == right
    if (letter and value) or (right and text):
        said, wanted = value, text
    elif right:
        return False
    decided = _decided(said, wanted, bool(_PERCENT.search(question)))
    if decided is not None:
        return decided
    listed = lists.compared(said, wanted, lambda a, b: _compared(a, b, "", timeout))
    if listed is not None:
        return listed
    if units.factor(units.split(said)[1], units.split(wanted)[1]) != 1:
        return False
    reply = _shared.compare(said, wanted, timeout)
    if reply == "gold":
        log.debug(
            "the gold answer %r cannot be read as mathematics; only the same text counts", wanted
        )
    return {"right": True, "wrong": False, "gold": False}.get(reply)


def _decided(said: str, wanted: str, percents: bool) -> bool | None:
    """The verdict on single values without computer algebra; `None` if it is needed."""
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
    value = answers.exact(wanted)
    if value is not None and (answer := answers.exact(said)) is not None:
        return answer == value
    condition = answers.relation(wanted)
    plain = "\\" not in said and said[0] not in "([{"
    if condition is not None and (plain or any(sign in said for sign in "<>")):
        return answers.relation(said) == condition
    return None
