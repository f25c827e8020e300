"""Started as root, it becomes a user that nobody is, runs attacks as that one and prints what is
wrong as JSON. Everything is imported first: the new user may not read where it lies.

    python -m tests.safety.as_ordinary_user TIER KIND PART PARTS
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path


def readable_copy() -> str:
    """A folder with the package, which everybody may read."""
    import mrlm

    folder = tempfile.mkdtemp(prefix="mrlm-copy-")
    there = Path(folder, "mrlm")
    shutil.copytree(Path(mrlm.__file__).parent, there)
    for path in (Path(folder), *Path(folder).rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def main() -> None:
    """Import, become the user, run."""
    tier_name, kind, part, parts = sys.argv[1:]
    if os.getuid() == 0 and "MRLM_COPY" not in os.environ:
        folder = readable_copy()
        os.environ["MRLM_COPY"] = folder
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.getcwd()])
        try:
            again = [sys.executable, "-m", "tests.safety.as_ordinary_user", *sys.argv[1:]]
            code = os.spawnv(os.P_WAIT, sys.executable, again)
        finally:
            shutil.rmtree(folder)
        sys.exit(code)
    from tests.safety import sweeping

    from mrlm.sandbox import opening, tiers
    from mrlm.sandbox.filters import seccomp

    tier = opening.TIERS[tier_name]
    seccomp(tier.landlock)  # loads its library
    for name in ("mrlm.sandbox.grading", "mrlm.environments.tools"):
        importlib.import_module(name)
    user = tiers.strangers()[-1]
    os.chdir("/")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    home = tempfile.mkdtemp(prefix="mrlm-user-")
    tempfile.tempdir = os.environ["HOME"] = os.environ["TMPDIR"] = home
    try:
        print(json.dumps(sweeping.sweep(tier, kind, True, int(part), int(parts))))
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
