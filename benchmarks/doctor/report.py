"""The table of error rates."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.doctor.found import Finding
from benchmarks.doctor.table import DISEASES, NOTES, REAL, WITHIN
from mrlm.core import registry
from mrlm.core.statistics import wilson_interval

RESULTS = "alarms.json"
MARKS = ("<!-- doctor: written by `python -m benchmarks.doctor` -->", "<!-- end of table -->")


def save(path: Path, found: Sequence[Finding], machine: str) -> None:
    """Writes the alarms of all runs as JSON, a line per run."""
    rows = ",\n".join(json.dumps(asdict(each)) for each in found)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{"machine": {json.dumps(machine)}, "runs": [\n{rows}\n]}}\n'
    path.write_text(text, encoding="utf-8")


def load(path: Path) -> list[Finding]:
    """The findings of a file that `save` has written."""
    return [Finding(**row) for row in json.loads(path.read_text(encoding="utf-8"))["runs"]]


def merged(old: Sequence[Finding], new: Sequence[Finding]) -> list[Finding]:
    """All findings, of a run the new one."""
    runs = {(each.kind, each.name, each.seed): each for each in [*old, *new]}
    return list(runs.values())


def markdown(found: Sequence[Finding], machine: str) -> str:
    """The tables of diseases and of rules, then the notes."""
    sick = [each for each in found if each.kind == "disease" and not each.error]
    healthy = [each for each in found if each.kind == "healthy" and not each.error]
    real = [each for each in found if each.kind == "real"]
    found = [*sick, *healthy]
    hours = sum(each.seconds for each in found) / 3600
    looked = sum(each.examined for each in found)
    seeds = ", ".join(map(str, sorted({each.seed for each in found})))
    return "\n".join(
        [
            f"{len(healthy)} healthy runs and {len(sick)} with a disease, seeds {seeds}, "
            f"{hours:.1f} hours of one core, examined in {looked:.0f} s; {machine}.",
            "",
            f"**Diseases.** Found: a right rule alarmed within {WITHIN} steps of the first sick "
            "one. Right first: and no other rule before it.",
            "",
            *_diseases(sick),
            "",
            "**Rules.** Runs without a disease in which a rule alarmed, with the 95 % interval of "
            "Wilson; and runs with a disease in which it alarmed before the disease began.",
            "",
            *_rules(healthy, sick),
            "",
            *_notes(healthy, sick),
            "",
            *(_real(real) if real else ()),
        ]
    ).rstrip()


def _diseases(sick: Sequence[Finding]) -> Iterator[str]:
    yield "| disease | planted | rules that are right | found | median delay, steps | right first |"
    yield "|---|---|---|---|---|---|"
    for name, disease in DISEASES.items():
        own = [each for each in sick if each.name == name]
        if own:
            delays = [each.delay for each in own if each.delay is not None]
            right = ", ".join(f"`{rule}`" for rule in disease.rules) or "none"
            delay = f"{statistics.median(delays):g}" if delays else "–"
            first = sum(each.first for each in own)
            yield (
                f"| {name} | {disease.about} | {right} | {len(delays)} of {len(own)} | {delay} | "
                f"{first} of {len(own)} |"
            )
    delays = [each.delay for each in sick if each.delay is not None]
    if sick:
        low, high = wilson_interval(len(delays), len(sick))[1:]
        first = sum(each.first for each in sick)
        yield (
            f"| **all** | | | {len(delays)} of {len(sick)} ({low:.0%} to {high:.0%}) | "
            f"{statistics.median(delays) if delays else '–'} | {first} of {len(sick)} |"
        )


def _real(runs: Sequence[Finding]) -> Iterator[str]:
    yield (
        "**A pretrained model.** The runs of [Real models](real-models.md), examined with the "
        "rules as they are now."
    )
    yield ""
    yield "| run | seeds | rules that are right | alarms: runs, first step |"
    yield "|---|---|---|---|"
    for name in dict.fromkeys(each.name for each in runs):
        own, steps = [each for each in runs if each.name == name], {}
        for each in own:
            for rule in {row["rule"] for row in each.alarms}:
                first = min(row["step"] for row in each.alarms if row["rule"] == rule)
                steps.setdefault(rule, []).append(first)
        alarms = [f"`{rule}`: {len(at)}, {min(at)}" for rule, at in sorted(steps.items())]
        right = ", ".join(f"`{rule}`" for rule in REAL.get(name, ())) or "none, it is well"
        yield f"| {name} | {len(own)} | {right} | {'; '.join(alarms) or 'none'} |"


def _rules(healthy: Sequence[Finding], sick: Sequence[Finding]) -> Iterator[str]:
    yield "| rule | diseases found | healthy runs alarmed | 95 % | before the disease |"
    yield "|---|---|---|---|---|"
    for rule in [*registry.names("rules"), ""]:
        false = sum(_alarmed(each, rule) for each in healthy)
        early = sum(_alarmed(each, rule) for each in sick)
        hits = [
            each
            for each in sick
            if any(
                row["rule"] == rule or (not rule and row["rule"] in DISEASES[each.name].rules)
                for row in each.timely
            )
            and (not rule or rule in DISEASES[each.name].rules)
        ]
        low, high = wilson_interval(false, len(healthy))[1:] if healthy else (0.0, 1.0)
        wanted = [each for each in sick if not rule or rule in DISEASES[each.name].rules]
        yield (
            f"| {f'`{rule}`' if rule else '**any**'} | {len(hits)} of {len(wanted)} | "
            f"{false} of {len(healthy)} | {low:.1%} to {high:.1%} | {early} of {len(sick)} |"
        )


def _alarmed(each: Finding, rule: str) -> bool:
    return any(not rule or row["rule"] == rule for row in each.early)


def _notes(healthy: Sequence[Finding], sick: Sequence[Finding]) -> Iterator[str]:
    """A line for each miss and each false alarm, with its cause where it is known."""
    for each in sick:
        if each.delay is None:
            others = ", ".join(dict.fromkeys(f"`{row['rule']}`" for row in each.timely))
            told = f"only {others}" if others else "no alarm"
            yield f"- missed: {each.name}, seed {each.seed} ({told}). {_note('missed', each.name)}"
    for each in [*healthy, *sick]:
        for rule, row in {row["rule"]: row for row in reversed(each.early)}.items():
            where = f"{each.name}, seed {each.seed}, step {row['step']}"
            yield f"- false: `{rule}` in {where}: {row['because']}. {_note(rule, each.name)}"


def _note(what: str, name: str) -> str:
    return NOTES.get(f"{what}: {name}", NOTES.get(what, ""))
