"""Cases of a kind in one tier, one after the other or side by side: what is wrong with which."""

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.safety import driving, running
from tests.safety.cases import Program, Solution, answers, calculations, files, read

from mrlm.sandbox import LocalSandbox
from mrlm.sandbox.tiers import Tier

CASES: dict[str, Sequence[Any]] = {
    **{name: read(name, Program) for name in ("programs", "hosts", "tricks")},
    "solutions": read("solutions", Solution),
    "calculations": calculations.CASES,
    "files": files.CASES,
    "answers": answers.CASES,
}
IN_ORDER = ("calculations", "files", "answers")
"""Kinds whose cases run one after the other."""


def sweep(
    tier: Tier, kind: str, kept: bool = True, part: int = 0, parts: int = 1, at_once: int = 0
) -> dict[str, list[str]]:
    """Run cases of a kind.

    Args:
        tier: of the sandbox, where there is one.
        kind: of `CASES`.
        kept: whether workers are kept between cases.
        part, parts: which of how many parts of the cases.
        at_once: how many run side by side; if not given, as many as is good for the kind.

    Returns:
        Name -> what is wrong; `(traces)` stands for what all of them left.
    """
    at_once = at_once or (1 if kind in IN_ORDER else running.SIDE_BY_SIDE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mrlm-work-")))
        stack.enter_context(_temporary_files_in(folder))
        host = running.Host()
        stack.callback(host.close)
        traces = running.Traces()
        sandbox = LocalSandbox(tier, running.LIMITS, reuse=kept)
        stack.callback(sandbox.close)
        attempt = attempts(kind, sandbox, host, folder)
        if at_once == 1 and not kept and kind not in IN_ORDER:
            attempt = functools.partial(_and_traces, attempt)
        found = running.try_all(CASES[kind][part::parts], attempt, at_once)
        sandbox.close()
        if kind == "answers":
            driving.end_computer_algebra()
        if left := traces.left():
            found["(traces)"] = left
    return found


def attempts(
    kind: str, sandbox: LocalSandbox, host: running.Host, folder: Path
) -> Callable[[Any], list[str]]:
    """What tries a case of a kind."""
    if kind == "solutions":

        def pays(case: Any, code: str) -> bool:
            limits = running.PATIENT if case.paid else running.LIMITS
            return driving.pays(sandbox, code, case.entry, case.calls, limits)

        return lambda case: running.try_solution(host, case, pays)
    if kind == "calculations":
        return lambda case: running.try_calculation(host, case, driving.calculate)
    if kind == "files":
        use = functools.partial(driving.use_file, folder)
        return lambda case: running.try_file(host, case, folder, use)
    if kind == "answers":
        return lambda case: running.try_answer(host, case, driving.pays_answer)
    return lambda case: running.try_program(sandbox, host, case)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Make temporary files in a folder of our own, where nobody else leaves any."""
    before, inside = tempfile.tempdir, folder / "temporary"
    folder.chmod(0o711)
    inside.mkdir(0o711)
    tempfile.tempdir = str(inside)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _and_traces(attempt: Callable[[Any], list[str]], case: Any) -> list[str]:
    """Try a case and look at once what it left."""
    traces = running.Traces()
    return [*attempt(case), *traces.left()]
