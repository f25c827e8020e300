"""The alarms in a run, and what they are worth."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.doctor.runs import Job, state_of
from benchmarks.doctor.table import DISEASES, WITHIN


@dataclass(slots=True)
class Finding:
    """The alarms of a run.

    Args:
        kind, name, seed: which run; `real` is an arm of `benchmarks.real`.
        onset: first step of its disease.
        alarms: rows as in `alarms.jsonl`, without evidence; `stage` is the number of the stage.
        seconds: processor time of training.
        examined: that of the examination.
        error: how the run failed.
    """

    kind: str
    name: str
    seed: int
    onset: int
    alarms: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    examined: float = 0.0
    error: str = ""

    @property
    def early(self) -> list[dict[str, Any]]:
        """Alarms without a disease: all of a healthy run, and those before the onset."""
        if self.kind == "healthy":
            return self.alarms
        return [row for row in self.alarms if row["step"] < self.onset]

    @property
    def timely(self) -> list[dict[str, Any]]:
        """Alarms in the first steps of the disease, in the order of steps."""
        last = self.onset + WITHIN
        found = [row for row in self.alarms if self.onset <= row["step"] <= last]
        return sorted(found, key=lambda row: row["step"])

    @property
    def delay(self) -> int | None:
        """Steps from the onset to the first alarm of a right rule; `None` without one in time."""
        rules = DISEASES[self.name].rules
        steps = [row["step"] for row in self.timely if row["rule"] in rules]
        return min(steps) - self.onset if steps else None

    @property
    def first(self) -> bool:
        """Whether no wrong rule alarmed earlier than a right one."""
        rules, delay = DISEASES[self.name].rules, self.delay
        if delay is None:
            return False
        before = (row for row in self.timely if row["step"] < self.onset + delay)
        return not any(row["rule"] not in rules for row in before)


def examined(job: Job) -> Finding:
    """Examines the run folders of a job with all rules."""
    done = state_of(job)
    assert done is not None
    finding = Finding(job.kind, job.name, job.seed, job.onset)
    _examine(finding, [job.place / folder for folder in done.folders])
    finding.seconds, finding.error = done.seconds, done.error
    return finding


def _examine(finding: Finding, folders: Sequence[Path]) -> None:
    """Adds the alarms in the folders of a run's stages."""
    from mrlm import examine

    started = time.process_time()
    for stage, folder in enumerate(folders):
        for alarm in examine(folder):
            row = alarm.row()
            del row["schema"], row["evidence"]
            finding.alarms.append({"stage": stage, **row})
    finding.examined = round(time.process_time() - started, 2)


def real_runs(folder: Path) -> list[Finding]:
    """The alarms in the runs of `benchmarks.real`.

    Args:
        folder: its `--output`.
    """
    from benchmarks.real.runs import ARMS, folder_of

    findings = []
    for arm in ARMS:
        for place in sorted(folder.glob(f"runs/{folder_of(arm, '*')}")):
            finding = Finding("real", arm, int(place.name.rpartition("-")[2]), 1)
            folders = sorted(path.parent for path in place.rglob("metrics.jsonl"))
            _examine(finding, folders)
            findings += [finding] if folders else []
    return findings
