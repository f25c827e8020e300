"""The policies in the folder of a team: whole models, and adapters with their bases."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.learn.policy.incoming import changes_base
from mrlm.learn.policy.loading import adapter_base, adapter_settings, is_model


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A policy with weights in the folder of a team.

    Args:
        folder: relative to that of the team; `.` if it is the same.
        adapter: the config of a LoRA adapter; empty for a whole model.
    """

    folder: str
    adapter: Mapping[str, Any]

    @property
    def rank(self) -> int:
        """The rank of the adapter."""
        return int(self.adapter["r"])

    @property
    def plain(self) -> bool:
        """Whether the adapter is low-rank updates alone, on an unchanged base."""
        more = ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices")
        start = self.adapter.get("init_lora_weights", True)
        return not changes_base(start) and not any(self.adapter.get(key) for key in more)

    @property
    def base(self) -> str:
        """The base of the adapter: a hub id, or a path, relative to the team's folder if in it."""
        return str(self.adapter["base_model_name_or_path"])


def policy_folders(team: Mapping[str, Any], folder: Path) -> dict[str, PolicyFolder]:
    """The policies of a team that have weights in its folder, by name."""
    folders: dict[str, PolicyFolder] = {}
    for name, section in team["policies"].items():
        location = str(section.get("model", ""))
        outside = os.path.isabs(location) or os.path.normpath(location).startswith("..")
        if not location or outside or not is_model(folder / location):
            continue
        adapter = adapter_settings(str(folder / location))
        base = adapter_base(str(folder / location))
        if base is not None and Path(base).is_relative_to(folder.resolve()):
            base = os.path.relpath(base, folder.resolve())
        folders[name] = PolicyFolder(
            location, adapter | ({"base_model_name_or_path": base} if base else {})
        )
    return folders
