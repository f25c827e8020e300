"""Where things are: the project, its tests, and what processes of tests import from."""

import os
import socket
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
FIXTURES = TESTS / "fixtures"
HELPERS = TESTS / "helpers"
FOLDERS = sorted({path.parent for path in TESTS.rglob("test_*.py")} | {HELPERS})
"""Folders of the classes that configs of tests name, as `test_ray:Letters`."""
IMPORTS = os.pathsep.join(map(str, FOLDERS))
"""For `PYTHONPATH`."""


def file_of(name: str) -> Path:
    """The file of tests with a name, whichever folder it is in."""
    (found,) = TESTS.rglob(name)
    return found


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
