"""The folder of a team as it is published: policies, the bases of their adapters, `team.yaml` and
cards, which name nothing outside of it but models of the Hub."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mrlm.config import yaml
from mrlm.config.trust import mark, origin_of
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.tiny_model import portable_name, resolve_model
from mrlm.learn.checkpoint import MANIFEST
from mrlm.learn.policy.incoming import load_adapter
from mrlm.learn.policy.loading import BASES, adapter_base, load_model, load_tokenizer, quietly
from mrlm.learn.policy.saved_model import HEADS, hub_name, name_on_card, rename_base
from mrlm.teams.card import CARD, TRAIN, write_cards
from mrlm.teams.public import local_files, public
from mrlm.teams.saving import FACTS, TEAM, absolute_team, card_of

OURS = (TEAM, FACTS, TRAIN, CARD, MANIFEST)
"""Files of a team beside the only policy; the others are those of the policy."""
WEIGHTS = (".safetensors", ".bin", ".pt")
POLICIES = "policies"
PROBE = 64
"""Tokens whose logits are compared when an adapter is merged."""
PAGE = "run.html"


@dataclass(frozen=True, slots=True)
class Published:
    """The names of a team on the Hub.

    Args:
        repository: its name on the Hub.
        base: hub id of a base that was loaded from a folder of this machine.
    """

    repository: str
    base: str | None = None


def pack(
    source: Path,
    target: Path,
    *,
    merge: bool = False,
    published: Published | None = None,
    page: Path | None = None,
    link: bool = False,
) -> Path:
    """Writes a team into a new folder. The only policy with weights is `target` itself, several are
    `target/policies/<name>`; bases of adapters that are not of the Hub are `target/bases/<name>`,
    unless the team is published.

    Args:
        source: folder of a team, such as `final/` of a run.
        merge: write adapters as whole models, merged into their bases.
        published: its name on the Hub, where every base must be.
        link: link files of weights instead of copying them.

    Raises:
        ConfigError: `target` is not empty, `source` not the folder of a team, or a base of a
            published team on this machine only.
    """
    team = absolute_team(source)
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"{target}: the folder is not empty; give a new one")
    if page is not None and not page.is_file():
        raise ConfigError(f"--page {page}: this file does not exist; mrlm export writes one")
    try:
        target.mkdir(parents=True, exist_ok=True)
        if published is None and (origin := origin_of(source)):
            mark(target, origin)  # a copy is not trusted either
        here = [
            name for name, section in team["policies"].items() if _is_folder(section.get("model"))
        ]
        bases = {} if merge else _bases(team, here, target, published)
        for name in here:
            location = "." if len(here) == 1 else f"{POLICIES}/{name}"
            _add(name, target / location, team, bases.get(name), link)
            team["policies"][name]["model"] = location
        if merge:
            team.get("model", {}).pop("quantization", None)
        _leave_out_local(team)
        (target / TEAM).write_text(yaml.write(public(team)), encoding="utf-8")
        for name in (FACTS, TRAIN):
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)
        if page is not None:
            shutil.copyfile(page, target / PAGE)
        repository = published.repository if published else None
        name = (repository or team["experiment_name"]).rsplit("/", 1)[-1]
        page_name = None if page is None else PAGE
        write_cards(target, card_of(target, name, repository or ".", page_name))
    except OSError as error:
        raise ConfigError(f"{target}: the team cannot be written: {error}") from error
    return target


def _is_folder(folder: str | None) -> bool:
    return folder is not None and os.path.isabs(folder) and Path(folder).is_dir()


def _bases(
    team: Mapping[str, Any], names: Sequence[str], target: Path, published: Published | None
) -> dict[str, str]:
    """The base of every adapter, as its folder will name it: a hub id, or a folder in `target`."""
    adapter_bases: dict[str, str] = {}
    local: dict[str, str] = {}
    for name in names:
        base = adapter_base(team["policies"][name]["model"])
        if base is None:
            continue
        if (hub_base := hub_name(base)) is None:
            local[name] = base
            hub_base = str(target.absolute() / BASES / Path(resolve_model(base)).name)
        adapter_bases[name] = hub_base
    if published is None:
        for base in {resolve_model(path) for path in local.values()}:
            _copy(Path(base), target / BASES / Path(base).name, link=False)
        return adapter_bases
    if published.base is not None and len(set(local.values())) != 1:
        raise ConfigError(
            f"--base {published.base}: the team has {len(set(local.values()))} bases that are on "
            "this machine only, and it names exactly one; use --merge, or leave it out"
        )
    for name, base in local.items():
        if published.base is None:
            carded = name_on_card(resolve_model(base))
            own = f"{carded}, as its card calls the" if carded else "ID, the hub id of the"
            raise ConfigError(
                f"policy {name!r} is an adapter on {portable_name(base) or 'a base without a name'}"
                f", which is not on the Hub; give --base {own} same weights, or --merge, to "
                "publish whole models"
            )
        adapter_bases[name] = published.base
    return adapter_bases


def _add(name: str, target: Path, team: Mapping[str, Any], base: str | None, link: bool) -> None:
    """Adds a policy, with its tokenizer; an adapter without a `base` is merged."""
    section = team["policies"][name]
    source = Path(section["model"])
    if base is None and adapter_base(str(source)) is not None:
        _merge(name, target, source, team.get("model", {}))
    else:
        _copy(source, target, link)
        if base is not None:
            rename_base(target, base)
    tokenizer = section.pop("tokenizer", None)
    if tokenizer is not None:
        load_tokenizer(tokenizer).save_pretrained(target)


@torch.no_grad()
def _merge(name: str, target: Path, source: Path, section: Mapping[str, Any]) -> None:
    """Writes an adapter as a whole model: its base as it was trained on, dequantised if it was
    quantised, with the adapter merged into it. Says by how much logits moved."""
    quantization = section.get("quantization")
    dtype = section.get("torch_dtype", "float32") if quantization else "auto"
    how: Any = {"dtype": dtype, "device": "cpu", "quantization": quantization}
    base = adapter_base(str(source))
    assert base is not None
    with quietly():
        adapted = load_adapter(load_model(base, **how), "merged", source)
        size = adapted.config.vocab_size
        ids = torch.tensor([[(37 * at + 5) % size for at in range(PROBE)]])
        before = adapted.eval()(input_ids=ids).logits.float()
        del adapted
        merged = load_model(str(source), **how)
        merged.save_pretrained(target)
        load_tokenizer(str(source)).save_pretrained(target)
        moved = (merged.eval()(input_ids=ids).logits.float() - before).abs()
    log.info(
        "policy %s: the adapter is merged into its base%s; its logits move by %.2g at most, %.2g "
        "on average, on %d tokens",
        *(name, f", which is dequantised from {quantization}" if quantization else ""),
        *(float(moved.max()), float(moved.mean()), PROBE),
    )


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
        for environment in filter(local_files, list(environments)):
            environments.remove(environment)
            log.warning(
                "environment %r is not part of the published team: it reads files of this machine",
                environment.get("name") or environment["env_type"],
            )
