"""Saves what makes the policies of a run a team: `team.yaml`, a config that plays it, and cards."""

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrlm.config import parse_config, paths, yaml
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.tiny_model import portable_name
from mrlm.teams.card import TRAIN, Card, write_cards
from mrlm.teams.facts import facts_of
from mrlm.teams.policies import policy_folders
from mrlm.teams.public import needed, public, without_secrets
from mrlm.training.run import Run

TEAM = "team.yaml"
"""The config that plays a team; its paths are relative to its folder."""
FACTS = "card.json"
"""The facts of the cards, as data."""


def write_team(run: Run, folder: Path) -> None:
    """Writes the team of a run beside the policies that were saved in a folder.

    Args:
        folder: with the policy itself if one is trained, else with a folder for each.
    """
    facts = facts_of(run)
    team = without_secrets(_team_of(run, folder))
    try:
        parse_config(team)
    except ConfigError as error:
        log.warning("%s is not written, as the team cannot be described: %s", TEAM, error)
        return
    (folder / TEAM).write_text(yaml.write(team), encoding="utf-8")
    record = run.folder / "config.yaml"
    text = record.read_text(encoding="utf-8")
    recorded = paths.absolute(yaml.read(text, str(record)), run.folder)
    settings = public({key: value for key, value in recorded.items() if key != "output_dir"})
    (folder / TRAIN).write_text(yaml.write(settings), encoding="utf-8")
    objects = [f"the model object of {name}" for name in run.live_models]
    facts["needs"] = list(dict.fromkeys([*objects, *needed(recorded)]))
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    write_cards(folder, card_of(folder, team["experiment_name"], "."))


def _team_of(run: Run, folder: Path) -> dict[str, Any]:
    """The config that plays the saved policies, each with the agents that it had last."""
    team = paths.relative(copy.deepcopy(dict(run.team)), folder, outside=True)
    if run.assignments:
        now = run.assignments[run.schedule.rotation(max(0, run.step - 1))]
        for agent, section in team["agents"].items():
            section["policy"] = now[agent].policy
    for name, section in run.team["policies"].items():
        model = section.get("model", "")
        if portable_name(model) != model:
            team["policies"][name]["model"] = portable_name(model)
    alone = len(run.learners) == 1
    for learner in run.learners:
        location = "." if alone else learner.policy
        team["policies"][learner.policy] = {"trainable": False, "model": location}
    return team


def read_team(folder: Path) -> dict[str, Any]:
    """The content of the `team.yaml` of a folder. Raises `ConfigError`: the folder is not that of a
    team."""
    file = folder / TEAM
    if not file.is_file():
        raise ConfigError(
            f"{folder}: it has no {TEAM}, so it is not the folder of a team; give a finished run "
            "folder, its final/, or what mrlm pull has written"
        )
    contents = yaml.read(file.read_text(encoding="utf-8"), str(file))
    for key in ("policies", "agents"):
        if not isinstance(contents, Mapping) or not isinstance(contents.get(key), Mapping):
            raise ConfigError(f"{file}: it has no mapping {key!r}; save or pull the team again")
    return dict(contents)


def card_of(folder: Path, title: str, source: str, page: str | None = None) -> Card:
    """The content of the cards of a team's folder."""
    team, file = read_team(folder), folder / FACTS
    facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    policies = policy_folders(team, folder)
    return Card(team, facts, policies, title, source, (folder / TRAIN).is_file(), page)


def absolute_team(folder: Path) -> dict[str, Any]:
    """The content of a team's `team.yaml` with absolute paths."""
    team = read_team(folder)
    for section in team["policies"].values():  # relative to this folder only: not a hub id
        model = section.get("model")
        if model is not None and (folder / model).is_dir():
            section["model"] = os.path.realpath(folder / model)
    return paths.absolute(team, folder.resolve())
