"""Saved weights in the format of transformers and PEFT; the value head has a file of its own."""

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrlm.core.tiny_model import HUB_ID, NAME, portable_name
from mrlm.learn.policy.loading import ADAPTER_CONFIG, quietly, require_weights
from mrlm.learn.policy.lora import adapter_weights, set_adapter_weights, write_config

HEADS = "value_head.safetensors"
"""File name of the heads."""


def write_model(
    model: Any, adapter: str | None, folder: Path, head: nn.Module | None = None
) -> None:
    """Writes a model, or one adapter of it, and a value head, for `from_pretrained`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if head is not None:
        save_file(head.state_dict(), folder / HEADS)
    if adapter is None:
        with quietly():
            model.save_pretrained(folder)
        return
    tensors = adapter_weights(model, adapter)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(model.peft_config[adapter])
    config.inference_mode = True
    config.task_type = config.task_type or "CAUSAL_LM"  # which PEFT's loaders require
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    named = config.base_model_name_or_path or causal.name_or_path
    config.base_model_name_or_path = hub_name(named) or (
        os.path.abspath(named) if named and Path(named).is_dir() else named
    )
    write_config(config, folder)


def hub_name(base: str) -> str | None:
    """The hub id of a base, also of a folder in the cache of the hub's client; `None` for other
    folders, and for the embedded model."""
    name = portable_name(base)
    on_hub = HUB_ID.fullmatch(name) and name != NAME and not Path(name).is_dir()
    return name if on_hub else None


def name_on_card(base: str) -> str | None:
    """The hub id that the card in the folder of a base calls it by, if there is one."""
    card = Path(base) / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    title = re.search(r"^# (.+)", text, re.MULTILINE)
    names = {Path(base).name.lower(), title[1].strip().lower() if title else ""}
    found = set(re.findall(r"""["'`]([\w.-]+/[\w.-]+)["'`]""", text))
    found = {each for each in found if each.rpartition("/")[2].lower() in names}
    return found.pop() if len(found) == 1 else None


def rename_base(adapter: Path, base: str) -> None:
    """Names another base in the folder of an adapter."""
    file = adapter / ADAPTER_CONFIG
    config = json.loads(file.read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
    file.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


@torch.no_grad()
def read_model(model: Any, adapter: str | None, folder: Path) -> None:
    """Loads what `write_model` wrote, in place, bit by bit."""
    from safetensors.torch import load_file

    if adapter is None:
        with quietly():
            how = {"dtype": model.dtype, "output_loading_info": True}
            saved, report = type(model).from_pretrained(folder, **how)
        require_weights(str(folder), report["missing_keys"])
        model.load_state_dict(saved.state_dict())
        return
    set_adapter_weights(model, adapter, load_file(folder / "adapter_model.safetensors"))


def read_heads(folder: Path) -> dict[str, Tensor] | None:
    """The state of a value head that was saved there, if any."""
    from safetensors.torch import load_file

    path = folder / HEADS
    return load_file(path) if path.is_file() else None
