"""A solution in a sandbox, as a grader sees it: functions that give plain data, an error, or
nothing in time. Whatever its process says is a claim, which is checked for its form and never
believed to be a verdict."""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mrlm.sandbox.grading.verdicts import Clock, Ended, GradingVerdict, of_status
from mrlm.sandbox.types import (
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    Session,
    SessionEnded,
)

RESTARTS = 3
"""How often a solution whose process ended is loaded again for the tests that are left."""
AT_ONCE = 2 * (os.cpu_count() or 1)
"""Solutions that are judged at one time. More would only mean more processes, which have to be
started; whoever waits uses up no time of its tests."""
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,79}")


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
    weakref.WeakKeyDictionary()
)


def turn() -> asyncio.Semaphore:
    """Whose it is holds processes of a grader; all others of this event loop wait."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the solution, as it says.

    Args:
        error: its class.
        base: the built-in class that it is.
        text: its message.
        line: of the solution.
    """

    error: str
    base: str
    text: str
    line: int | None

    @property
    def verdict(self) -> GradingVerdict:
        """Of a test that did not expect it."""
        return GradingVerdict("error", self.error, self.line)


@dataclass(frozen=True, slots=True)
class Value:
    """What a function gave, and its arguments after the call if they were asked for; packed."""

    packed: Any
    arguments: Any = None


class SolvingWorker:
    """A program of a grader in a session, which is started again when it has ended, a few times.

    Args:
        sandbox: where.
        files: names of the program's parts beside this file, in their order.
        limits: of one test, and of the processes.
        clock: what requests take is taken from it.
    """

    def __init__(
        self, sandbox: Sandbox, files: Sequence[str], limits: Limits, clock: Clock
    ) -> None:
        self.sandbox: Sandbox = sandbox
        self.limits: Limits = limits
        self.clock: Clock = clock
        here = Path(__file__)
        self.program: str = "\n\n".join(here.with_name(file).read_text("utf-8") for file in files)
        self.session: Session | None = None
        self.starts_left: int = 1 + RESTARTS
        self.last: GradingVerdict | None = None
        """What to say when it may not be started again."""

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Kill it."""
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    async def start(self) -> None:
        """Start it.

        Raises:
            Ended: it was started too often.
            SandboxError: it cannot be started; nothing of a solution has run in it.
        """
        if not self.starts_left:
            assert self.last is not None
            raise Ended(GradingVerdict(self.last.kind, self.last.error))
        self.starts_left -= 1
        limits = self.clock.session_limits(self.limits)
        for attempt in (1, 2):
            try:
                self.session = await self.sandbox.session(self.program, limits=limits)
                return
            except SandboxError:  # a worker that was kept for reuse may have died meanwhile
                if attempt == 2:
                    raise
            except SessionEnded as ended:
                if attempt == 2:
                    raise SandboxError(
                        f"sandbox {self.sandbox.name}: a grader's own program did not start "
                        f"({ended}); are the limits enough for Python itself?"
                    ) from ended

    async def ask(self, request: dict[str, Any], wall: float) -> dict[str, Any]:
        """Ask, and take the time from the clock.

        Raises:
            Ended: no time is left, it did not answer in time, or its process ended.
            SandboxError: the sandbox failed.
        """
        assert self.session is not None
        if wall <= 0:
            raise Ended(GradingVerdict("timeout"))
        begin = time.monotonic()
        try:
            answer = await self.session.ask(request, wall)
        except SessionEnded as ended:
            await self.stop()
            self.last = of_status(ended.status, ended.reason)
            self.clock.left -= wall if ended.status == "timeout" else 0.0
            raise Ended(self.last) from ended
        except AnswerError as error:
            raise Ended(GradingVerdict("error", "NoAnswer")) from error
        if not isinstance(answer, dict):
            raise Ended(GradingVerdict("error", "NoAnswer"))
        self.clock.took(time.monotonic() - begin, answer.get("seconds"))
        return answer


class Solution(SolvingWorker):
    """A solution, loaded when it is first needed."""

    FILES: ClassVar[tuple[str, ...]] = ("plain.py", "solution_worker.py")

    def __init__(self, sandbox: Sandbox, code: str, limits: Limits, clock: Clock) -> None:
        super().__init__(sandbox, self.FILES, limits, clock)
        self.code = code
        self.num_lines: int = code.count("\n") + 1
        self.hopeless: GradingVerdict | None = None
        self.functions: dict[str, bool] = {}
        """Names that were asked for -> whether the solution says that they are functions."""
        self.classes: set[str] = set()

    async def __aenter__(self) -> Solution:
        return self

    async def load(self) -> None:
        """Make sure that it is there.

        Raises:
            Ended: it cannot be loaded: then no test can be passed.
        """
        if self.hopeless is not None:
            raise Ended(self.hopeless)
        if self.session is not None:
            return
        await self.start()
        try:
            loaded = await self._do({"do": "load", "code": self.code}, self.limits.wall)
            if isinstance(loaded, Raised):
                raise Ended(loaded.verdict)
        except Ended as ended:
            self.hopeless = ended.verdict
            await self.stop()
            raise

    async def find(self, names: Collection[str]) -> tuple[list[str], set[str]]:
        """Which of the names are functions, and which of all names ever asked for are classes."""
        new = [name for name in names if name not in self.functions]
        if new:
            found = await self._do({"do": "find", "names": new}, self.clock.next())
            if isinstance(found, Raised):
                raise Ended(found.verdict)
            try:
                functions, classes = (
                    {name for name in each if isinstance(name, str)} for each in found.packed
                )
            except (TypeError, ValueError):
                raise Ended(GradingVerdict("error", "NoAnswer")) from None
            self.functions |= {name: name in functions for name in new}
            self.classes |= classes & {*new}
        return [name for name in names if self.functions[name]], self.classes

    async def call(self, call: dict[str, Any], wall: float) -> Value | Raised:
        """Call a function (or, where objects are kept, do what `do` says).

        Args:
            call: `name`, `args` and `kwargs` (packed), and whether to `keep` the object or to say
                what became of the arguments (`in_place`).
            wall: seconds.

        Raises:
            Ended: no answer came in time, or none that is one.
        """
        return await self._do({"do": "call", **call}, wall)

    async def _do(self, request: dict[str, Any], wall: float) -> Value | Raised:
        answer = await self.ask(request, wall)
        if "error" in answer:
            text, line = answer.get("text"), answer.get("line")
            return Raised(
                _name(answer["error"]),
                _name(answer.get("base")),
                text[:500] if isinstance(text, str) else "",
                line if type(line) is int and 0 < line <= self.num_lines else None,
            )
        if "value" not in answer:
            raise Ended(GradingVerdict("error", "NoAnswer"))
        return Value(answer["value"], answer.get("arguments"))


def _name(claimed: Any) -> str:
    return claimed if type(claimed) is str and NAME.fullmatch(claimed) else "Exception"
