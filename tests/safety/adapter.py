"""The project's parts behind the words of an independent suite of attacks: `run`, `grade`, `calc`,
`file`, `math`, `archive`. Workers are not kept, so that after a case no process of ours is there.

    cd tests/safety; PYTHONPATH=../../src:. python .../run_attacks.py adapter:Adapter

The environment variable `MRLM_TEST_ISOLATION` says how programs are shut in (`auto` if not set).
"""

import os
import sys
from pathlib import Path
from typing import Any

from mrlm.sandbox import Limits, LocalSandbox, open_sandbox

sys.path.insert(0, str(Path(__file__).parents[2]))  # the suite runs elsewhere
from tests.safety import driving

LIMITS = Limits(wall=2.0, memory=512 << 20)


class Adapter:
    """What the suite calls. Of a sandbox, first the status, then what it said."""

    def __init__(self) -> None:
        probed = open_sandbox(os.environ.get("MRLM_TEST_ISOLATION", "auto"))
        assert isinstance(probed, LocalSandbox)
        probed.close()
        self.name = probed.name
        self.sandbox = LocalSandbox(probed.tier, LIMITS, reuse=False)

    def run(self, code: str) -> dict[str, str]:
        """A program."""
        result = self.sandbox.run_now(code)
        return {"status": result.status, "out": result.output or result.reason}

    def grade(self, code: str, entry: str, tests: list[list[Any]]) -> float:
        """A solution: one if it gives what it must, else zero."""
        calls = [(arguments, expected) for arguments, expected in tests]
        return float(driving.pays(self.sandbox, code, entry, calls, LIMITS))

    def calc(self, expression: str) -> tuple[str, str]:
        """An expression."""
        value = driving.calculate(expression)
        return ("refused", "") if value is None else ("ok", value)

    def file(self, folder: str, do: str, path: str, content: str | None) -> tuple[str, str]:
        """A path of a workspace."""
        said = driving.use_file(Path(folder), do, path, content or "")
        return ("refused", "") if said is None else ("ok", said)

    def math(self, gold: str, text: str) -> float:
        """A boxed answer. The processes that compute are ended each time."""
        try:
            return float(driving.pays_answer(gold, text))
        finally:
            driving.end_computer_algebra()

    def archive(self, path: str, folder: str) -> tuple[str, str]:
        """An archive: nothing here unpacks any."""
        return ("refused", "")
