"""The page of the comparison: predictions, results, curves."""

from __future__ import annotations

from benchmarks.teams.settings import SETTINGS

PREDICTED = ("<!-- predictions: written by `python -m benchmarks.teams` -->", "<!-- end -->")


def predictions() -> str:
    """The table of what was predicted."""
    lines = ["| setting | game | prediction | because |", "|---|---|---|---|"]
    lines += [f"| {s.name} | {s.about} | `{s.prediction}` | {s.reason} |" for s in SETTINGS]
    return "\n".join(lines)
