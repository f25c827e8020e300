"""Rows that compare one optimiser step with TRL's or CoMLRL's."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.limits import least_seconds, measured
from benchmarks.models import words_of
from benchmarks.ours import Ours, playing, reading
from benchmarks.quickstart import stages
from benchmarks.rows import Bench, Result, Unavailable
from benchmarks.timing import alternate, ratios, repeat
from benchmarks.work import Counts, Work
from benchmarks.worlds import AnswerTree, answer_afresh

ROOT = Path(__file__).parents[1]
NUM_ROWS = 256
"""Written rows; steps take them in turn."""


def quickstart(bench: Bench) -> Result:
    """The step of the quickstart's second stage, MRLM alone; that of the first is in the note."""
    clock = bench.clock()
    with clock.applied():
        found = [stages(ROOT, bench.quick) for _ in range(bench.rounds)]
    names = list(found[0])
    result = Result(threads=clock.threads, clock="CPU time", rounds=bench.rounds)
    millis = {name: [1000 * each[name] for each in found] for name in names}
    result.lines = {name: [(1, statistics.median(each[name] for each in found))] for name in names}
    last = millis[names[-1]]
    result.value, result.low, result.high = statistics.median(last), min(last), max(last)
    result.note = f"a step of {names[0]}: {statistics.median(millis[names[0]]):.0f} ms"
    return result


def grpo(work: Work) -> Callable[[Bench], Result]:
    """GRPO against TRL's."""

    def measure(bench: Bench) -> Result:
        done = small(work, bench)
        return against(
            bench, done, lambda: playing(done, "grpo"), lambda: bench.peer("trl_peer").grpo(done)
        )

    return measure


def magrpo(work: Work, together: int = 1, accelerated: bool = False) -> Callable[[Bench], Result]:
    """MAGRPO against CoMLRL's, per prompt; ours takes `together` prompts per step."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator() if accelerated else "cpu"
        done = small(work, bench)
        ours = replace(done, prompts=min(together, 3) if bench.quick else together)
        workflow = AnswerTree(done.group) if work.tree else answer_afresh
        return against(
            bench,
            ours,
            lambda: playing(ours, "magrpo", workflow=workflow, device=device),
            lambda: bench.peer("comlrl_peer").magrpo(done, device),
            peer_prompts=1,
            device=device,
        )

    return measure


def ippo(work: Work) -> Callable[[Bench], Result]:
    """IPPO with one value per turn and one epoch, which is what CoMLRL's IAC does."""

    def measure(bench: Bench) -> Result:
        done = small(work, bench)
        settings = {"level": "turn", "update_epochs": 1, "num_minibatches": 1}
        return against(
            bench,
            done,
            lambda: playing(done, "ippo", settings),
            lambda: bench.peer("comlrl_peer").iac(done),
        )

    return measure


def sft(work: Work) -> Callable[[Bench], Result]:
    """Supervised learning against TRL's."""

    def measure(bench: Bench) -> Result:
        done = small(work, bench)
        rows = written_rows(done, ("completion",))
        return against(
            bench,
            done,
            lambda: reading(done, "sft", rows),
            lambda: bench.peer("trl_peer").sft(done, rows),
            sampled=False,
        )

    return measure


def dpo(work: Work) -> Callable[[Bench], Result]:
    """Preference learning against TRL's; the reference scores every pair in its step."""

    def measure(bench: Bench) -> Result:
        done = small(work, bench)
        rows = written_rows(done, ("chosen", "rejected"))
        return against(
            bench,
            done,
            lambda: reading(done, "dpo", rows),
            lambda: bench.peer("trl_peer").dpo(done, rows),
            sampled=False,
            references=1,
        )

    return measure


def against(
    bench: Bench,
    work: Work,
    make: Callable[[], Ours],
    make_peer: Callable[[], Any],
    *,
    peer_prompts: int | None = None,
    sampled: bool = True,
    references: int = 0,
    device: str = "cpu",
) -> Result:
    """Time ours and a peer in turn. Where the peer is not at hand ours is timed alone.

    Args:
        bench: how.
        work: of our step.
        make, make_peer: make either side.
        peer_prompts: prompts per step of the peer; as many as ours if not given.
        sampled: completions are sampled (or written in advance).
        references: frozen models that score completions.
        device: where both sides are.
    """
    clock, counts = bench.clock(device=device), _counts(work, sampled)
    limits = measured(clock, bench.quick)
    ours = make()
    result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
    per_step = work.prompts if peer_prompts else 1
    try:
        peer = make_peer()
    except Unavailable as error:
        result.reason = f"skipped: {error}"
        mine = repeat(ours, bench.rounds, clock, counts)
        result.ours = mine.median / per_step
    else:
        each = (work.prompts, peer_prompts) if peer_prompts else (1, 1)
        mine, theirs = alternate(ours, peer, bench.rounds, clock, counts, each)
        result.value, result.low, result.high = ratios(mine, theirs)
        result.ours, result.peer = mine.median, theirs.median
    finally:
        ours.close()
    least = least_seconds(work, limits, sampled, references) / per_step
    result.limit, result.ceiling = least / result.ours, str(limits)
    share = ours.metrics["seconds/play"] / sum(
        ours.metrics[f"seconds/{part}"] for part in ("play", "learn")
    )
    notes = [f"{100 * share:.0f} % of ours is playing"] if sampled else []
    result.note = "; ".join(notes + ["seconds per prompt"] * (peer_prompts is not None))
    return result


def small(work: Work, bench: Bench) -> Work:
    """The work itself, or next to nothing of its kind."""
    if not bench.quick:
        return work
    group = min(work.group, 2)
    return replace(work, shape="tiny", prompts=min(work.prompts, 2), group=group, read=8, written=6)


def written_rows(work: Work, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows with a prompt of `read` tokens and texts of `written`, the end token included."""
    rng = random.Random(0)
    return [
        {"prompt": words_of(rng, work.shape, work.read)}
        | {name: words_of(rng, work.shape, work.written - 1) for name in columns}
        for _ in range(NUM_ROWS)
    ]


def _counts(work: Work, sampled: bool) -> Counts:
    counts = work.counts
    return counts if sampled else replace(counts, sampled=0)
