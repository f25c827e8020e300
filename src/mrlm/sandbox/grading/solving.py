"""A grader's view of a solution in a sandbox: functions that return plain data, raise an error, or
time out. Its answers are untrusted: their form is checked, and none is taken for a verdict."""

import asyncio
import functools
import marshal
import os
import re
import time
import weakref
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, Self, TypeVar

from mrlm.sandbox.grading.verdicts import Clock, Ended, GradingVerdict, of_status
from mrlm.sandbox.types import AnswerError, Limits, Sandbox, SandboxError, Session, SessionEnded

T = TypeVar("T")
RESTARTS = 3
"""How often a solution whose process ended is loaded again for the remaining tests."""
AT_ONCE = 2 * (os.cpu_count() or 1)
"""Most solutions that are graded at one time; waiting does not use up the time of tests."""
NO_ANSWER = GradingVerdict("error", "NoAnswer")
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,79}")


_turns: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


async def verdicts_of(
    tests: Iterable[T], grade: Callable[[T], Awaitable[GradingVerdict]]
) -> list[GradingVerdict]:
    """The verdict of each test, also of those that end early."""
    verdicts = []
    for test in tests:
        try:
            verdicts.append(await grade(test))
        except Ended as ended:
            verdicts.append(ended.verdict)
    return verdicts


def turn() -> asyncio.Semaphore:
    """The semaphore that limits the graders with processes on this event loop."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the solution, as reported by it: its class, the built-in class that it is or
    is derived from, its message, and the line in the solution."""

    error: str
    base: str
    text: str
    line: int | None

    @property
    def verdict(self) -> GradingVerdict:
        """The verdict of a test that did not expect the exception."""
        return GradingVerdict("error", self.error, self.line)


@dataclass(frozen=True, slots=True)
class Value:
    """The return value of a function, and its arguments after the call if requested; packed."""

    packed: Any
    arguments: Any = None


@functools.cache
def program_of(files: tuple[str, ...]) -> str:
    """A program made of files beside this one. It has their code twice: compiled, for a Python with
    the same byte code as this one, since compiling takes longer than grading, and as text."""
    here = Path(__file__)
    text = "\n\n".join(here.with_name(file).read_text("utf-8") for file in files)
    code = marshal.dumps(compile(text, "<grader>", "exec", dont_inherit=True, optimize=0))
    return (
        "import binascii, marshal\n"
        "from _frozen_importlib_external import MAGIC_NUMBER\n"
        f"if MAGIC_NUMBER == {MAGIC_NUMBER!r}:\n"
        f"    exec(marshal.loads(binascii.a2b_base64({b64encode(code)!r})))\n"
        f"else:\n    exec(compile({text!r}, '<grader>', 'exec', dont_inherit=True))"
    )


class SolvingWorker:
    """A grader's program, made of `files` beside this one, in a session, which is restarted a few
    times if it ends. `limits` are those of one test, and of the processes; the clock is charged
    with the time of requests."""

    def __init__(
        self, sandbox: Sandbox[Any], files: Sequence[str], limits: Limits, clock: Clock
    ) -> None:
        self.sandbox: Sandbox[Any] = sandbox
        self.limits: Limits = limits
        self.clock: Clock = clock
        self.program: str = program_of(tuple(files))
        self.session: Session | None = None
        self.starts_left: int = 1 + RESTARTS
        self.last: GradingVerdict | None = None
        """The verdict when no restart is left."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    async def start(self) -> None:
        """Start it. Raises `Ended`: no restart is left; `SandboxError`: it cannot be started."""
        if not self.starts_left:
            assert self.last is not None
            raise Ended(GradingVerdict(self.last.kind, self.last.error))
        self.starts_left -= 1
        limits = self.clock.session_limits(self.limits)
        with suppress(SandboxError, SessionEnded):  # a reused worker may have died meanwhile
            self.session = await self.sandbox.session(self.program, limits=limits)
            return
        try:
            self.session = await self.sandbox.session(self.program, limits=limits)
        except SessionEnded as ended:
            raise SandboxError(
                f"sandbox {self.sandbox.name}: a grader's own program did not start ({ended}); "
                "are the limits enough for Python itself?"
            ) from ended

    async def ask(self, request: dict[str, Any], wall: float) -> dict[str, Any]:
        """Send a request, and charge the clock with its time. Raises `Ended`: no time is left, it
        did not answer in time, or its process ended; `SandboxError`: the sandbox failed."""
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
            raise Ended(NO_ANSWER) from error
        if not isinstance(answer, dict):
            raise Ended(NO_ANSWER)
        self.clock.took(time.monotonic() - begin, answer.get("seconds"))
        return answer


class Solution(SolvingWorker):
    """A solution, loaded when it is first needed."""

    def __init__(self, sandbox: Sandbox[Any], code: str, limits: Limits, clock: Clock) -> None:
        super().__init__(sandbox, ("plain.py", "solution_worker.py"), limits, clock)
        self.code = code
        self.num_lines: int = code.count("\n") + 1
        self.hopeless: GradingVerdict | None = None
        self.functions: dict[str, bool] = {}
        """Requested names -> whether the solution reports them as functions."""
        self.classes: set[str] = set()

    async def load(self) -> None:
        """Load the solution if it is not loaded; ends the test if it cannot be."""
        if self.hopeless is not None:
            raise Ended(self.hopeless)
        if self.session is not None:
            return
        await self.start()
        try:
            loaded = await self.run({"do": "load", "code": self.code}, self.limits.wall)
            if isinstance(loaded, Raised):
                raise Ended(loaded.verdict)
        except Ended as ended:
            self.hopeless = ended.verdict
            await self.stop()
            raise

    async def find(self, names: Collection[str]) -> tuple[list[str], set[str]]:
        """Which of the names are functions, and which of all names requested so far are classes."""
        new = [name for name in names if name not in self.functions]
        if new:
            reply = await self.run({"do": "find", "names": new}, self.clock.next())
            if isinstance(reply, Raised):
                raise Ended(reply.verdict)
            try:
                functions, classes = (
                    {name for name in group if isinstance(name, str)} for group in reply.packed
                )
            except (TypeError, ValueError):
                raise Ended(NO_ANSWER) from None
            self.functions |= {name: name in functions for name in new}
            self.classes |= classes & {*new}
        return [name for name in names if self.functions[name]], self.classes

    async def run(self, request: dict[str, Any], wall: float) -> Value | Raised:
        """Run a request of `solution_worker`. Without a proper answer in time, the test ends."""
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
            raise Ended(NO_ANSWER)
        return Value(answer["value"], answer.get("arguments"))


def _name(claimed: Any) -> str:
    return claimed if type(claimed) is str and NAME.fullmatch(claimed) else "Exception"
