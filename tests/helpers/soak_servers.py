"""Long campaigns against environment servers: thousands of steps through a network that fails, and
a thousand sessions of which half vanish. `python tests/helpers/soak_servers.py` says what came
out and ends with 1 if a step happened twice or never, or a session was lost or kept; short forms
are tests."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil

from counting import Figures, campaign, vanishing
from faults import Faults, Network
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.environment import RemoteEnvironment
from mrlm.serving.protocol.channels import service_stub
from servers import Process

COUNTING = "faults:Counting"
ROUGH = Faults(drop=0.02, double=0.05, hold=0.03, late=0.05, reset=0.004, swallow=0.0005, slow=0.03)
"""Chances of a message, or of a piece of bytes."""
MIB = 1 << 20


@dataclass(slots=True)
class Sessions:
    """What became of many sessions at once, round after round.

    Args:
        count: at once; half of them vanish.
        lease: seconds.
        rounds: how often.
        freed: seconds after which those who vanished were freed, the longest of all rounds.
        kept: that were not freed, or not there any more though somebody was.
        resident: MiB of the server and its worker after each round.
    """

    count: int
    lease: float
    rounds: int
    freed: float = 0.0
    kept: int = 0
    resident: list[float] = field(default_factory=list)


def through_faults(steps: int, at_once: int, seed: int) -> tuple[Figures, dict[str, int]]:
    """Steps through both: what came of them, and what the network did."""
    server = Process(COUNTING)
    network = Network(server.port, ROUGH, seed)
    try:
        world = RemoteEnvironment(
            COUNTING, server=f"127.0.0.1:{network.port}", patience=1.0, deadline=300.0
        )
        found = campaign(world, steps, at_once, length=100)
    finally:
        happened = network.close()
        server.kill()
    return found, happened


def many_sessions(count: int, lease: float, rounds: int) -> Sessions:
    """Open many, let half vanish, and look at the server's memory."""
    server = Process(COUNTING, lease=lease, max_calls=2 * count)
    found = Sessions(count, lease, rounds)
    try:
        with grpc.insecure_channel(server.address) as channel:
            stub = service_stub(channel, "Environments")

            def sessions() -> int:
                return stub.Info(pb.InfoRequest(), timeout=30).sessions

            world = RemoteEnvironment(
                COUNTING, server=server.address, patience=30.0, deadline=300.0
            )
            for _ in range(rounds):
                ended = vanishing(world, count, sessions, lease)
                found.freed = max(found.freed, ended.seconds)
                found.kept += abs(ended.left - count // 2) + ended.lost
                until = time.monotonic() + 3 * lease
                while sessions() and time.monotonic() < until:
                    time.sleep(0.1)
                found.kept += sessions()
                found.resident.append(_resident(server.pid))
    finally:
        server.kill()
    return found


def _resident(pid: int) -> float:
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return round(sum(each.memory_info().rss for each in family) / MIB, 1)


def main(given: Sequence[str] | None = None) -> int:
    """Both campaigns; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=50, help="episodes of a hundred steps")
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--lease", type=float, default=20.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a file for the figures, as JSON")
    chosen = parser.parse_args(given)
    record: dict[str, Any] = {}
    broken = False
    if chosen.steps:
        steps, happened = through_faults(chosen.steps, chosen.at_once, chosen.seed)
        print(
            f"{steps.steps:,} steps in {steps.seconds:.0f} s: {steps.wrong} double or lost, "
            f"{steps.failed} episodes failed and were played again; the network: "
            + ", ".join(f"{number:,} {name}" for name, number in sorted(happened.items())),
            flush=True,
        )
        record["steps"] = asdict(steps) | {"network": happened}
        broken |= steps.wrong > 0
    if chosen.sessions:
        many = many_sessions(chosen.sessions, chosen.lease, chosen.rounds)
        print(
            f"{many.count:,} sessions, {many.rounds} times: those who vanished were freed after "
            f"{many.freed:.1f} s at most (lease {many.lease:g} s), {many.kept} wrongly freed or "
            f"kept; MiB after each round: {', '.join(map(str, many.resident))}",
            flush=True,
        )
        record["sessions"] = asdict(many)
        broken |= many.kept > 0 or many.freed > 2 * many.lease
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(record, indent=1) + "\n")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
