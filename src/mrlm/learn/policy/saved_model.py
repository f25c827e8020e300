"""Saved weights in the format of transformers and PEFT; the value head has a file of its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mrlm.learn.policy.loading import import_peft, quietly
from mrlm.learn.policy.lora import adapter_weights, write_config

HEADS = "value_head.safetensors"
"""File name of the heads."""


def write_model(model: Any, adapter: str | None, folder: Path) -> None:
    """Writes a model, or one adapter of it, so that `from_pretrained` loads it."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if adapter is None:
        with quietly():
            model.save_pretrained(folder)
        return
    tensors = adapter_weights(model, adapter)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(model.peft_config[adapter])
    config.inference_mode = True
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    config.base_model_name_or_path = config.base_model_name_or_path or causal.name_or_path
    write_config(config, folder)


@torch.no_grad()
def read_model(model: Any, adapter: str | None, folder: Path) -> None:
    """Loads what `write_model` wrote, in place, bit by bit."""
    from safetensors.torch import load_file

    if adapter is None:
        with quietly():
            saved = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
        return
    tensors = load_file(folder / "adapter_model.safetensors")
    import_peft().set_peft_model_state_dict(model, tensors, adapter_name=adapter)


def write_head(head: nn.Module | None, folder: Path) -> None:
    """Writes a value head, if there is one."""
    from safetensors.torch import save_file

    if head is not None:
        save_file(head.state_dict(), folder / HEADS)


def has_head(folder: Path) -> bool:
    """Whether a value head was saved there."""
    return (folder / HEADS).is_file()


def read_head(head: nn.Module | None, folder: Path) -> None:
    """Loads a saved value head."""
    from safetensors.torch import load_file

    assert head is not None
    head.load_state_dict(load_file(folder / HEADS))
