"""Verification of answers: numbers, lists and simple inequalities are compared here, everything
else by math-verify in child processes, which are reused, killed at the deadline and replaced.
Thread-safe."""

import os
import queue
import re
from functools import lru_cache

from mrlm.core.log import log
from mrlm.environments.math import answers, units
from mrlm.environments.shared.child_process import ChildEnded, ChildProcess, TooLate

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
    stated, expected = answers.cleaned(answer), answers.cleaned(gold)
    if not stated:
        return None
    if "".join(stated.split()) == "".join(expected.split()):
        return True
    if len(expected) == 1 and answers.letter(expected):
        return answers.letter(stated) == expected
    if question and answers.repeats(stated, question):
        return False
    decided = _decided(stated, expected, bool(_PERCENT.search(question)))
    if decided is not None:
        return decided
    if units.factor(units.split(stated)[1], units.split(expected)[1]) != 1:
        return False
    reply = _shared.compare(stated, expected, timeout)
    if reply == "gold":
        log.debug(
            "the gold answer %r cannot be read as mathematics; only the same text counts", gold
        )
    return {"right": True, "wrong": False, "gold": False}.get(reply)


def _decided(stated: str, expected: str, percents: bool) -> bool | None:
    """The verdict without computer algebra; `None` if it is needed."""
    gold = answers.number(expected)
    if gold is not None:
        answer = answers.number(stated)
        if answer is None:  # a calculation that ends in the answer: 3 + 4 = 7
            answer = answers.number(_EQUALS.split(stated)[-1].strip())
        if answer is not None:
            return answers.same_number(answer, gold, percents)
        return False if answers.unworked(stated) else None
    if answers.approximates(stated, expected):
        return False
    plain = "\\" not in stated and stated[0] not in "([{"
    items = answers.several(expected)
    if items is not None and (plain or answers.several(stated) is not None):
        return answers.same_list(answers.several(stated), items)
    condition = answers.relation(expected)
    if condition is not None and (plain or any(sign in stated for sign in "<>")):
        return answers.relation(stated) == condition
    return None
