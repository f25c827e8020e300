"""`mrlm doctor`: examines a run, a config before a run, or the machine."""

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.doctor.alarm import Alarm
    from mrlm.doctor.check import Check

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def doctor(
    given: list[str] | None = None,
    config: Path | None = None,
    centralised: Path | None = None,
    as_json: bool = False,
) -> None:
    """Examine a run; with --config, a config before its run; without arguments, this machine."""
    if config is None and given:
        if len(given) > 1:
            raise ConfigError(f"{given[1]}: one run folder is examined at a time; give one")
        failed = _alarms(Path(given[0]), centralised, as_json)
    elif centralised is not None:
        raise ConfigError("--centralised is the run to compare a run with; give its folder first")
    elif config is not None:
        failed = _report(_checks(config, given or [], as_json), as_json)
    else:
        from mrlm.build.machine import check_machine

        failed = _report(check_machine(Path()), as_json)
    raise typer.Exit(int(failed))


def _alarms(run: Path, twin: Path | None, as_json: bool) -> bool:
    """Prints the alarms of a run folder, or of its stages; whether there are any."""
    from mrlm.build.lock import is_written
    from mrlm.doctor.alarm import alarms_in
    from mrlm.doctor.examination import examination_of
    from mrlm.record.reader import METRICS
    from mrlm.tracking.console import printable
    from mrlm.tracking.log_file import ended_in

    stages = [run]
    if not (run / METRICS).is_file():
        stages = sorted(path.parent for path in run.glob(f"*/{METRICS}")) or [run]
    located: list[tuple[Path, Alarm]] = []
    ready: dict[Path, tuple[int, int]] = {}
    for stage in stages:
        examination, alarms = examination_of(stage, centralised=twin)
        ready[stage] = len(examination.ready), len(examination.rules)
        keys = {alarm.key for alarm in alarms}
        alarms += [alarm for alarm in alarms_in(stage) if alarm.key not in keys]
        located += [(stage, alarm) for alarm in sorted(alarms, key=lambda alarm: alarm.step)]
    for stage, alarm in located:
        print(json.dumps(alarm.row()) if as_json else _story(stage, alarm, len(stages) > 1))
    ended = [(x, text) for x in stages if (text := ended_in(x)) is not None and not is_written(x)]
    for stage, text in ended:
        row = {"rule": "ended", "folder": str(stage), "because": text}
        print(json.dumps(row) if as_json else printable(f"{stage}: {text}"))
    if not located and not ended and not as_json:
        print(f"no alarms in {run}")
    for stage, (count, total) in ready.items():
        where = f"{stage.name}: " if len(stages) > 1 else ""
        row = {"folder": str(stage), "ready": count, "rules": total}
        text = f"{where}{count} of {total} rules had enough to look at"
        print(json.dumps(row) if as_json else text)
    return bool(located or ended)


def _story(stage: Path, alarm: "Alarm", several: bool) -> str:
    from mrlm.tracking.console import printable

    owner = alarm.agent or alarm.policy
    where = f"{stage.name}: " * several
    since = f" (since step {alarm.since})" if alarm.since < alarm.step else ""
    lines = [f"{where}step {alarm.step}{since}  {alarm.rule}{f'  {owner}' if owner else ''}"]
    lines += textwrap.wrap(alarm.because, 94, initial_indent="  ", subsequent_indent="  ")
    lines += textwrap.wrap(f"Do: {alarm.do}", 94, initial_indent="  ", subsequent_indent="  ")
    for episode in alarm.evidence[:2]:
        lines.append(f"  mrlm look {stage} --step {episode.step} --episode {episode.id}")
    return printable("\n".join(lines)) + "\n"


def _checks(path: Path, overrides: list[str], quiet: bool) -> "Iterator[Check]":
    """The checks of all stages of a config."""
    from mrlm.build.checkup import check_config
    from mrlm.config import load_config

    loaded = load_config(path, overrides)
    for name, stage in loaded.stage_configs():
        if loaded.stages and not quiet:
            print(f"stage {name}")
        yield from check_config(stage, colour=not quiet and sys.stdout.isatty())


def _report(checks: "Iterable[Check]", as_json: bool) -> bool:
    """Prints checks as they end; whether one failed."""
    failed = False
    for check in checks:
        failed |= check.verdict == "fail"
        if as_json:
            print(json.dumps({"check": check.name, "verdict": check.verdict, "text": check.text}))
        else:
            first, *rest = check.text.splitlines()
            print("\n".join([f"{MARKS[check.verdict]}  {check.name:<10}  {first}", *rest]))
    return failed
