"""Runs that are killed again and again, checkpoints whose bits flip, disks that are full: whatever
happens, a run that is started again comes to the numbers of one that nobody disturbed.
`python tests/recovery/soak.py` says what came out; a short form is a test.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from recovery.disks import cut_off, filled_up, limits
from recovery.flips import flipped
from recovery.kills import killed, log
from recovery.runs import MODES, TEAM, Found, Runner, launchers, undisturbed


def main() -> int:
    """Say what came out; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000, help="50 are one kill")
    parser.add_argument("--only", choices=("kills", "flips", "disks"))
    parser.add_argument("--modes", nargs="*", help=f"of {', '.join(mode.name for mode in MODES)}")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    chosen, _ = parser.parse_known_args()  # others are for the campaign of the sandbox
    modes = [mode for mode in MODES if not chosen.modes or mode.name in chosen.modes]
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, launchers(1) as (launcher,):
        place = Path(folder)
        if chosen.only in (None, "kills"):
            kills = max(1, chosen.count // 50)
            found["kills"] = killed(kills, modes, place / "kills", chosen.jobs, chosen.seed)
        if chosen.only in (None, "flips"):
            runner = Runner(TEAM, place / "flips", launcher)
            undisturbed(runner)
            found["flips"] = flipped(max(1, chosen.count // 10), runner.folder, chosen.seed)
        if chosen.only in (None, "disks"):
            runner = Runner(TEAM, place / "sizes", launcher)
            whole = undisturbed(runner)
            every = limits(runner.folder, least=4096)
            every = every[:: max(1, len(every) * 250 // chosen.count)]
            found["file limits"] = cut_off(every, whole, Runner(TEAM, place / "cut", launcher))
            if shutil.which("bwrap"):
                steps = max(2, chosen.count // 500)
                found["full disks"] = filled_up(steps, TEAM, place / "full", launcher)
    print(json.dumps({name: asdict(each) for name, each in found.items()}, indent=2))
    return int(any(each.wrong for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
