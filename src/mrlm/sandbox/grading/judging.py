"""Out-of-process graders of untrusted code. The solution's process receives the arguments of one
call at a time, or one standard input; expected values are known and compared only in this process.
Its answers are data; nothing it does can be a verdict."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrlm.core.errors import DataError
from mrlm.sandbox.grading.comparing import SHOWN, same_packed, show
from mrlm.sandbox.grading.plain import NotPlain, pack
from mrlm.sandbox.grading.solving import RESTARTS, Raised, Solution, turn, verdicts_of
from mrlm.sandbox.grading.verdicts import Clock, GradingVerdict, checked, of_status, refused
from mrlm.sandbox.types import Limits, Sandbox, SandboxResult

_PLACE = re.compile(r'^  File "[^"/\\]*", line (\d{1,6})', re.MULTILINE)
_ERROR = re.compile(r"^([A-Za-z_][A-Za-z_0-9.]{0,199})(?::|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call and its expected value.

    Args:
        args: arguments by position: plain data (see `plain.pack`).
        expected: the expected value, compared by `same`.
    """

    args: Sequence[Any] = ()
    expected: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    also: Sequence[Any] = ()


async def grade_calls(
    sandbox: Sandbox[Any],
    code: str,
    entry: str,
    calls: Sequence[FunctionCall],
    limits: Limits | None = None,
    rel_tol: float = 0.0,
) -> list[GradingVerdict]:
    """Grade a function by its return values: a verdict per call.

    The code is loaded once, as a module that is not `__main__`; then `entry` is called, with fresh
    arguments each time. A call that times out, or ends the process, fails its own test: the code is
    loaded again for the rest, at most `solving.RESTARTS` times; the remaining tests then get the
    same verdict. All calls together have the time of `verdicts.TESTS_OF_TIME` deadlines, or of a
    quarter of the calls.

    Args:
        limits: `wall` is the deadline of each call, and of loading the code.
        rel_tol: see `same`.

    Raises:
        DataError: arguments or an expected value are not plain data, or `entry` is not a name.
        SandboxError: the sandbox failed; there is no verdict then.
    """
    checked(entry)
    packed = [_packed(entry, number, call) for number, call in enumerate(calls)]
    if not packed:
        return []
    if verdict := refused(code):
        return [verdict] * len(packed)
    limits = limits or Limits()
    clock = Clock(limits, len(packed))
    async with turn(), Solution(sandbox, code, limits, clock) as solution:
        return await verdicts_of(packed, lambda call: _one(solution, *call, rel_tol))


async def _one(
    solution: Solution, call: dict[str, Any], accepted: Sequence[Any], rel_tol: float
) -> GradingVerdict:
    await solution.load()
    came = await solution.run(call, solution.clock.next())
    if isinstance(came, Raised):
        return came.verdict
    try:
        right = any(same_packed(came.packed, one, rel_tol) for one in accepted)
    except NotPlain:
        return GradingVerdict("error", NotPlain.__name__)
    return GradingVerdict("passed" if right else "wrong", got=show(came.packed))


def _packed(entry: str, number: int, call: FunctionCall) -> tuple[dict[str, Any], list[Any]]:
    try:
        arguments = {"args": pack(list(call.args)), "kwargs": pack(dict(call.kwargs))}
        accepted = [pack(one) for one in (call.expected, *call.also)]
        return {"do": "call", "name": entry, **arguments}, accepted
    except NotPlain as error:
        raise DataError(
            f"test {number} of {entry!r}: arguments and expected value must be plain data "
            f"(numbers, text, lists, tuples, sets, dictionaries): {error}"
        ) from error


async def grade_programs(
    sandbox: Sandbox[Any], code: str, cases: Sequence[tuple[str, str]], limits: Limits | None = None
) -> list[GradingVerdict]:
    """Grade a program that reads standard input and writes standard output: a verdict per case,
    which is its input and the expected output. `limits` are those of a case.

    Its output is compared exactly, except for white space at the ends of lines and blank lines at
    the end. It must end with exit code 0. Each case is a separate run; after `solving.RESTARTS + 1`
    timeouts, the rest counts as timed out.

    Raises:
        SandboxError: the sandbox failed; there is no verdict then.
    """
    if cases and (verdict := refused(code)):
        return [verdict] * len(cases)
    limits = limits or Limits()
    verdicts: list[GradingVerdict] = []
    too_long = 0
    for stdin, expected in cases:
        if too_long > RESTARTS:
            verdicts.append(GradingVerdict("timeout"))
            continue
        result = await sandbox.run(code, stdin=stdin, limits=limits)
        verdicts.append(_ran(result, expected, code.count("\n") + 1))
        too_long += verdicts[-1].kind == "timeout"
    return verdicts


def _ran(result: SandboxResult, expected: str, num_lines: int) -> GradingVerdict:
    if result.status == "error":
        errors, places = _ERROR.findall(result.stderr), _PLACE.findall(result.stderr)
        line = int(places[-1]) if places else None
        is_inside = line is not None and 0 < line <= num_lines
        name = errors[-1].rsplit(".", 1)[-1][:80] if errors else "ExitCode"
        return GradingVerdict("error", name or "ExitCode", line if is_inside else None)
    if not result.ok:
        return of_status(result.status, result.reason)
    got = _lines(result.stdout)
    return GradingVerdict(
        "passed" if got == _lines(expected) else "wrong", got=_shown(result.stdout)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _shown(text: str) -> str:
    return show(text) if len(text) > SHOWN else repr(text)
