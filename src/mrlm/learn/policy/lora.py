"""Several LoRA adapters on one base: added, switched and put aside, each left trainable by the
learner it belongs to."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import import_peft

BASE = ""
"""The adapter name of a policy that is the shared base itself, with every adapter off."""
_ADAPTER = re.compile(r"\.(?:lora_\w+|ia3_\w+|modules_to_save)\.(\w[^.]*)")


def add_adapter(model: Any, name: str, settings: Mapping[str, Any]) -> Any:
    """A new LoRA adapter called `name` on `model` (wrapped at the first call); returns the PEFT
    model.

    Args:
        model: a causal language model, or a PEFT model.
        name: name of the adapter.
        settings: `r`, `alpha`, `dropout`, `target_modules`.
    """
    peft = import_peft()
    config = peft.LoraConfig(
        r=settings["r"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=settings["target_modules"],
        task_type="CAUSAL_LM",
    )
    _check_targets(model, name, settings["target_modules"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of one library about the other
        if not isinstance(model, peft.PeftModel):
            return peft.get_peft_model(model, config, adapter_name=name)
        model.add_adapter(name, config)
    _thaw(model)
    return model


def _check_targets(model: Any, name: str, wanted: Any) -> None:
    """Make sure that every listed module exists; a pattern or `all-linear` is left to the library.

    Raises:
        ModelError: one does not; the message names those that do.
    """
    if wanted is None or isinstance(wanted, str):
        return
    paths = [path.replace(".base_layer", "") for path, _ in model.named_modules()]
    missing = [
        each for each in wanted if not any(f".{path}".endswith(f".{each}") for path in paths)
    ]
    if missing:
        linear = {
            path.replace(".base_layer", "").rsplit(".", 1)[-1]
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and ".lora_" not in path
        }
        raise ModelError(
            f"lora.target_modules of policy {name!r}: the model has no module {missing[0]!r}; its "
            f"linear modules are {', '.join(sorted(linear))}"
        )


def copy_adapter(model: Any, source: str, target: str) -> None:
    """The weights of the adapter `source` as those of `target`, which is added if there is none of
    that name."""
    peft = import_peft()
    if target not in model.peft_config:
        known = model.peft_config[source]
        settings = {
            "r": known.r,
            "alpha": known.lora_alpha,
            "dropout": known.lora_dropout,
            "target_modules": known.target_modules,
        }
        with torch.random.fork_rng():  # what is drawn here is overwritten
            add_adapter(model, target, settings)
    peft.set_peft_model_state_dict(model, adapter_weights(model, source), adapter_name=target)


def adapter_weights(model: Any, name: str) -> dict[str, Tensor]:
    """The weights of an adapter, under the names they are saved with."""
    state = import_peft().get_peft_model_state_dict(model, adapter_name=name)
    return {key: value.detach().contiguous() for key, value in state.items()}


def changes_nothing(model: Any, name: str) -> bool:
    """Whether an adapter leaves its base as it is: the second factor of every product is 0, as it
    is when an adapter is new."""
    own = [value for key, value in model.named_parameters() if adapter_of(key) == name]
    second = [
        value
        for key, value in model.named_parameters()
        if adapter_of(key) == name and ".lora_B." in key
    ]
    return 2 * len(second) == len(own) and not any(bool(value.any()) for value in second)


def switch_adapter(model: Any, name: str) -> None:
    """Make `name` the adapter in use. PEFT freezes every other adapter when it switches; they are
    all left trainable here, since each belongs to a learner of its own."""
    if model.active_adapter != name or list(model.base_model.active_adapters) != [name]:
        model.set_adapter(name)
        _thaw(model)


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """The base alone. PEFT comes back with every adapter frozen but the one in use."""
    try:
        with model.disable_adapter():
            yield
    finally:
        _thaw(model)


def _thaw(model: Any) -> None:
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            parameter.requires_grad_(True)


def adapter_of(key: str) -> str | None:
    """The adapter that a parameter of a PEFT model belongs to; `None` for the base's own."""
    found = _ADAPTER.search(key)
    return found[1] if found else None


def write_config(config: Any, folder: Path) -> None:
    """Write the config of an adapter as its library does, but for the order of what has none: it
    would be another one in every process.

    Args:
        config: a `PeftConfig`.
        folder: the adapter's.
    """
    config.save_pretrained(folder)
    path = folder / "adapter_config.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, value in vars(config).items():
        if isinstance(value, set | frozenset):
            found[name] = sorted(value)
    path.write_text(json.dumps(found, indent=2, sort_keys=True), encoding="utf-8")
