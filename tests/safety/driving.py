"""The project's own parts, each behind the plainest function that an attack needs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrlm.core.sync_async import run_async
from mrlm.sandbox import Limits, Sandbox


def pays(
    sandbox: Sandbox, code: str, entry: str, calls: Sequence[tuple[Any, Any]], limits: Limits
) -> bool:
    """Whether the grader of calls pays a solution: it passes all."""
    from mrlm.sandbox.grading import FunctionCall, grade_calls

    wanted = [FunctionCall(arguments, expected) for arguments, expected in calls]
    verdicts = run_async(grade_calls(sandbox, code, entry, wanted, limits))
    return len(verdicts) == len(calls) and all(verdict.passed for verdict in verdicts)


def calculate(expression: str) -> str | None:
    """What the calculator gives; `None` if it refuses."""
    from mrlm.environments.tools.calculator import calculate as project
    from mrlm.environments.tools.tool import ToolError

    try:
        return project(expression)
    except ToolError:
        return None


def use_file(folder: Path, do: str, path: str, content: str) -> str | None:
    """What a workspace gives for a path; `None` if it refuses."""
    from mrlm.environments.tools.files import Workspace
    from mrlm.environments.tools.tool import ToolError

    workspace = Workspace(folder)
    known = {
        "read": lambda: workspace.read_file(path),
        "write": lambda: workspace.write_file(path, content),
    }
    try:
        return known[do]() if do in known else None
    except ToolError:
        return None
    finally:
        workspace.close()


def pays_answer(gold: str, text: str) -> bool:
    """Whether a boxed answer is right as mathematics."""
    from mrlm.environments.math.answers import boxed
    from mrlm.environments.math.verifier import verify

    return verify(boxed(text), gold) is True


def end_computer_algebra() -> None:
    """End the processes that the math world keeps."""
    from mrlm.environments.math import verifier

    verifier._shared.close()
    verifier._renew()
