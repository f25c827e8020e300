"""The folder of a team as it is published: policies, the bases of their adapters, `team.yaml` and
cards, which name nothing outside of it but models of the Hub."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from mrlm.config import yaml
from mrlm.config.trust import mark, origin_of
from mrlm.core.errors import ConfigError
from mrlm.learn.checkpoint import MANIFEST
from mrlm.learn.policy.loading import (
    adapter_base,
    load_model,
    load_tokenizer,
    quietly,
)
from mrlm.learn.policy.saved_model import HEADS, rename_base
from mrlm.teams.card import CARD, TRAIN, write_cards
from mrlm.teams.public import local_files, public
from mrlm.teams.saving import FACTS, TEAM, absolute_team, card_of

log: logging.Logger = logging.getLogger("mrlm")

OURS = (TEAM, FACTS, TRAIN, CARD, MANIFEST)
"""Files of a team beside the only policy; the others are those of the policy."""
WEIGHTS = (".safetensors", ".bin", ".pt")
BASES = "bases"
POLICIES = "policies"
PAGE = "run.html"


def pack(
    source: Path,
    target: Path,
    *,
    merge: bool = False,
    repository: str | None = None,
    page: Path | None = None,
    link: bool = False,
) -> Path:
    """Writes a team into a new folder. The only policy with weights is `target` itself, several are
    `target/policies/<name>`; bases of adapters that are not of the Hub are `target/bases/<name>`.

    Args:
        source: folder of a team, such as `final/` of a run.
        target: the new folder.
        merge: write adapters as whole models, merged into their bases.
        repository: its name on the Hub, for the cards.
        page: an exported run to add.
        link: link files of weights instead of copying them.

    Raises:
        ConfigError: `target` is not empty, or `source` not the folder of a team.
    """
    team = absolute_team(source)
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"{target}: the folder is not empty; give a new one")
    if page is not None and not page.is_file():
        raise ConfigError(f"--page {page}: this file does not exist; mrlm export writes one")
    try:
        target.mkdir(parents=True, exist_ok=True)
        if repository is None and (origin := origin_of(source)):
            mark(target, origin)  # a copy is not trusted either
        here = [name for name, each in team["policies"].items() if _is_folder(each.get("model"))]
        for name in here:
            place = "." if len(here) == 1 else f"{POLICIES}/{name}"
            _add(target / place, team["policies"][name], target, merge, link)
            team["policies"][name]["model"] = place
        _leave_out_local(team)
        (target / TEAM).write_text(yaml.write(public(team)), encoding="utf-8")
        for name in (FACTS, TRAIN):
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)
        if page is not None:
            shutil.copyfile(page, target / PAGE)
        title = repository.rsplit("/", 1)[-1] if repository else team["experiment_name"]
        shown = None if page is None else PAGE
        write_cards(target, card_of(target, title, repository or ".", shown))
    except OSError as error:
        raise ConfigError(f"{target}: the team cannot be written: {error}") from error
    return target


def _is_folder(place: str | None) -> bool:
    return place is not None and os.path.isabs(place) and Path(place).is_dir()


def _add(place: Path, section: dict[str, Any], target: Path, merge: bool, link: bool) -> None:
    """Adds the policy of a section, with its tokenizer and the base of its adapter."""
    source = Path(section["model"])
    base = adapter_base(str(source))
    if base is not None and merge:
        with quietly():
            load_model(str(source), dtype="auto", device="cpu").save_pretrained(place)
            load_tokenizer(str(source)).save_pretrained(place)
    else:
        _copy(source, place, link)
        if base is not None and Path(base).is_dir():
            copied = target / BASES / Path(base).name
            if not copied.exists():
                _copy(Path(base), copied, link)
            rename_base(place, os.path.relpath(copied, place))
    tokenizer = section.pop("tokenizer", None)
    if tokenizer is not None:
        load_tokenizer(tokenizer).save_pretrained(place)


def _copy(source: Path, target: Path, link: bool) -> None:
    """Copies the files of a model, without those of a team and of training."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if not file.is_file() or file.name.startswith(".") or file.name in (*OURS, HEADS):
            continue
        if link and file.suffix in WEIGHTS:
            (target / file.name).symlink_to(file.resolve())
        else:
            shutil.copyfile(file, target / file.name)


def _leave_out_local(team: dict[str, Any]) -> None:
    """Leaves out the environments that read files of this machine."""
    for part in (team, team.get("evaluation") or {}):
        environments = part.get("environments") or []
        for each in environments:
            if local_files(each):
                log.warning(
                    "environment %r is not part of the published team: it reads files of this "
                    "machine",
                    each.get("name") or each["env_type"],
                )
        if environments:
            part["environments"] = [each for each in environments if not local_files(each)]
