"""What a user imports has types that a checker can read."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

GENERATED = "serving.mrlm_pb2"
"""Stubs of the protocol, as the compiler writes them."""
PACKAGE = ROOT / "src" / "mrlm"


@pytest.mark.slow
def test_the_public_face_is_typed(tmp_path: Path) -> None:
    """Of every public symbol, all but a few have a known
    type."""
    shutil.copytree(PACKAGE, tmp_path / "site" / "mrlm")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--verifytypes",
            "mrlm",
            "--ignoreexternal",
            "--outputjson",
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "site"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # of its libraries
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    ours = [s for s in report["symbols"] if s["isExported"] and GENERATED not in s["name"]]
    unknown = [s["name"] for s in ours if not s["isTypeKnown"]]
    assert len(unknown) < 0.02 * len(ours), unknown
    face = [name for name in unknown if name.count(".") == 1 and "__" not in name]
    assert not face
