"""The examination of a run by all rules, step by step: while it trains, and of a run folder."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mrlm.config.loading import read_settings
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.doctor.alarm import Alarm, alarms_in
from mrlm.doctor.history import History
from mrlm.doctor.progress import range_of
from mrlm.doctor.recent import MOST, RecentEpisodes, Rows
from mrlm.doctor.rule import WINDOW, Rule
from mrlm.record.files import last_parts, rows_of
from mrlm.record.reader import METRICS, json_rows, read_run
from mrlm.record.tail import last_step

Settings = Mapping[str, Mapping[str, Any] | bool]
"""Rule -> its thresholds; `false` switches it off."""


def make_rules(settings: Settings | None = None) -> dict[str, Rule]:
    """All rules by name, with the thresholds of some.

    Args:
        settings: name of a rule, or `module:Class` of one's own -> its thresholds, or `false`.

    Raises:
        PluginError: a rule does not exist.
        ConfigError: a rule has no such threshold.
    """
    remaining = dict(settings or {})
    made: dict[str, Rule] = {}
    for name in [*registry.names("rules"), *(given for given in remaining if ":" in given)]:
        options = remaining.pop(name, {})
        if options is not False:
            made[name] = _make(name, options)
    for name in remaining:
        registry.load("rules", name)  # raises: it does not exist
    return made


def _make(name: str, options: Mapping[str, Any] | bool) -> Rule:
    kind = registry.load("rules", name)
    field_names = [field.name for field in fields(kind)]
    values = options if isinstance(options, Mapping) else {}
    for key in values:
        if key not in field_names:
            raise ConfigError(registry.unknown(key, field_names, f"training.doctor_rules.{name}"))
    return kind(**values)


class Examination:
    """Reads a run step by step and returns what begins to be wrong. An alarm of a rule about an
    agent or policy is returned once.

    Args:
        rules: name -> rule.
        twin: the history of a run of one agent, for the rule that compares with it.
        config: that of the run, for the range of its rewards.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        twin: History | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.rules = rules
        self.history: History = History()
        self.history.twin = twin
        self.history.range = range_of(config or {})
        self.ready: set[str] = set()
        """The rules that had enough to look at."""
        self._known: set[tuple[str, str | None, str | None]] = set()
        self._episodes = RecentEpisodes()

    def resume(self, folder: Path, state: Mapping[str, Any] | None = None) -> None:
        """Continues after the last step of a run folder.

        Args:
            folder: the run folder.
            state: the result of `state_dict` after that step. Without it, or with that of another
                step, all metrics of the folder are read.
        """
        path = folder / METRICS
        if state is not None and path.is_file() and last_step(path) == state["step"]:
            self.history.load_state_dict(state)
        else:
            for row in json_rows(folder, METRICS):
                self.history.append(row)
        recent = last_parts(folder, self.history.step - WINDOW + 1)
        self.see(rows_of(folder, recent, most=MOST))
        self._known = {alarm.key for alarm in alarms_in(folder)}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of what a run folder has in files that grow; episodes and alarms are read
        from there."""
        return self.history.state_dict()

    def see(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds recorded episodes, of each step the first ones."""
        for row in rows:
            self._episodes.add(row)

    def keep(self, every: int) -> None:
        """Forgets the episodes of training steps that a thinned record has lost."""
        self._episodes.keep(every)

    def examine(self, row: Mapping[str, Any]) -> list[Alarm]:
        """Adds the metrics of a step, whose episodes are known, and returns new alarms."""
        step = int(row["step"])
        self.history.append(row)
        self._episodes.forget(step - WINDOW)
        policies = self._episodes.by_step(_policies)
        self.history.policies = policies[max(policies)] if policies else {}
        new = []
        for name, rule in self.rules.items():
            if name not in self.ready and rule.ready(self.history):
                self.ready.add(name)
            for alarm in rule(self.history, self._episodes):
                full = replace(alarm, rule=name, step=step, do=alarm.do or rule.do)
                if full.key not in self._known:
                    self._known.add(full.key)
                    new.append(full)
        return new


def examine(
    folder: str | os.PathLike[str],
    rules: Settings | None = None,
    *,
    centralised: str | os.PathLike[str] | None = None,
) -> list[Alarm]:
    """Examines the record of a run; the alarms are those that the run would have raised itself.

    Args:
        folder: a run folder, or that of a stage.
        rules: thresholds of rules that differ from the defaults, `false` switches a rule off; by
            default `training.doctor_rules` of the run.
        centralised: the folder of a run in which one agent does the work of the team.

    Raises:
        ConfigError: it is not a run folder, or a rule has no such threshold.
        PluginError: a rule does not exist.

    Examples:
        >>> for alarm in examine("outputs/quickstart/2-together"):  # doctest: +SKIP
        ...     print(alarm.step, alarm.rule, alarm.agent, alarm.because)
    """
    return examination_of(folder, rules, centralised)[1]


def examination_of(
    folder: str | os.PathLike[str],
    rules: Settings | None = None,
    centralised: str | os.PathLike[str] | None = None,
) -> tuple[Examination, list[Alarm]]:
    """The examination of a run's record, and its alarms; arguments and errors of `examine`."""
    recorded = read_run(folder)
    twin = None if centralised is None else History(read_run(centralised).metrics)
    raised: list[Alarm] = []
    path = recorded.folder / "config.yaml"
    config = read_settings(path) if path.is_file() else {}
    if rules is None:
        rules = config.get("training", {}).get("doctor_rules", {})
    examination = Examination(make_rules(rules), twin, config)
    for row in recorded.metrics:
        examination.see(recorded.rows([row["step"]]))
        raised += examination.examine(row)
    return examination, raised


def _policies(rows: Rows) -> dict[str, str]:
    """agent -> its policy, of trained turns."""
    policies: dict[str, str] = {}
    for row in rows:
        for name, agent in row["agents"].items():
            if name not in policies and any(turn.get("trained", True) for turn in agent["turns"]):
                policies[name] = agent["policy"]
    return policies
