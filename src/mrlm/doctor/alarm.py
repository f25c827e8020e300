"""An alarm: what a rule found in a run, with its evidence; a row of `alarms.jsonl`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrlm.record.reader import json_rows

ALARMS = "alarms.jsonl"
SCHEMA = 1
COLUMNS = ("rule", "step", "since", "agent", "policy", "because", "do")
"""Those of a row, without its evidence."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """An episode that shows an alarm: its id, and the step in whose record it is."""

    id: str
    step: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A finding of a rule in a run.

    Args:
        since: the step since which it holds.
        because: the numbers that show it, in a sentence.
        agent, policy: whom it is about; `None` for the whole run.
        evidence: recorded episodes that show it.
        rule: name of the rule; set by the examination, as are the next two.
        step: the step at which it was found.
        do: what to do.
    """

    since: int
    because: str
    agent: str | None = None
    policy: str | None = None
    evidence: tuple[Evidence, ...] = ()
    rule: str = ""
    step: int = 0
    do: str = ""

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """The identity of an alarm, however many steps it holds for."""
        return self.rule, self.agent, self.policy

    def row(self) -> dict[str, Any]:
        """The row of `alarms.jsonl`."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return {"schema": SCHEMA, **columns, "evidence": list(map(asdict, self.evidence))}

    def __str__(self) -> str:
        owner = self.agent or self.policy
        since = f", since step {self.since}" if self.since < self.step else ""
        whose = f" ({owner})" if owner else ""
        return f"{self.rule}{whose} at step {self.step}{since}: {self.because}. Do: {self.do}"


def alarm_of(row: Mapping[str, Any]) -> Alarm:
    """The alarm of a row of `alarms.jsonl`."""
    evidence = tuple(Evidence(**entry) for entry in row["evidence"])
    return Alarm(**{name: row[name] for name in COLUMNS}, evidence=evidence)


def alarms_in(folder: Path) -> list[Alarm]:
    """The alarms of a run folder; an incomplete last line is left out."""
    return [alarm_of(row) for row in json_rows(folder, ALARMS)]


def cited(rows: Iterable[Mapping[str, Any]], count: int = 4) -> tuple[Evidence, ...]:
    """Evidence from rows of episodes: the latest ones, first of all those recorded with tokens."""
    chosen = sorted(rows, key=lambda row: (not _with_tokens(row), -int(row["step"])))
    return tuple(Evidence(str(row["id"]), int(row["step"])) for row in chosen[:count])


def _with_tokens(row: Mapping[str, Any]) -> bool:
    return any("ids" in turn for agent in row["agents"].values() for turn in agent["turns"])
