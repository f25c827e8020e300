"""Several LoRA adapters on one base model, all of them trainable for their own learners."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import ADAPTER_CONFIG, first_line, import_peft
from mrlm.learn.policy.randomness import seeded

BASE = ""
"""Adapter name of a policy that is the shared base with all adapters disabled."""
_ADAPTER = re.compile(r"\.(?:lora_\w+|ia3_\w+|modules_to_save)\.(\w[^.]*)")


def add_adapter(model: Any, name: str, settings: Mapping[str, Any]) -> Any:
    """Adds a LoRA adapter called `name` to `model` (wrapped at the first call); returns the PEFT
    model. `settings` are `r`, `alpha`, `dropout` and `target_modules`."""
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
        warnings.simplefilter("ignore", FutureWarning)  # of PEFT about transformers
        if not isinstance(model, peft.PeftModel):
            return peft.get_peft_model(model, config, adapter_name=name)
        model.add_adapter(name, config)
    _thaw(model)
    return model


def load_adapter(model: Any, name: str, folder: Path) -> Any:
    """Adds the adapter saved in a folder under a name; returns the PEFT model. Its weights are not
    trained.

    Raises:
        ModelError: it does not fit the model.
    """
    peft = import_peft()
    config = peft.PeftConfig.from_pretrained(str(folder))
    config.base_model_name_or_path = None  # that of the model, where PEFT expects the same text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PEFT about transformers
            if isinstance(model, peft.PeftModel):
                model.add_adapter(name, config)
            else:
                model = peft.get_peft_model(model, config, adapter_name=name)
        set_adapter_weights(model, name, load_file(folder / "adapter_model.safetensors"))
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise ModelError(
            f"{folder}: the adapter cannot be loaded: {first_line(error)}; copy its folder again, "
            "with the base that it was trained on"
        ) from error
    _thaw(model)
    return model


def _check_targets(model: Any, name: str, wanted: Any) -> None:
    """Checks that every listed target module exists; patterns and `all-linear` are left to PEFT."""
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
    """Copies the weights of the adapter `source` into `target`, which is added if missing."""
    if target not in model.peft_config:
        known = model.peft_config[source]
        settings = {
            "r": known.r,
            "alpha": known.lora_alpha,
            "dropout": known.lora_dropout,
            "target_modules": known.target_modules,
        }
        with seeded(0, next(model.parameters()).device):  # these weights are overwritten
            add_adapter(model, target, settings)
    set_adapter_weights(model, target, adapter_weights(model, source))


def unused_name(model: Any, name: str, suffix: str) -> str:
    """An adapter name that `model` does not have yet: `name` with one or more suffixes."""
    name += suffix
    while name in model.peft_config:
        name += suffix
    return name


def set_adapter_weights(model: Any, name: str, weights: Mapping[str, Tensor]) -> None:
    """Loads `adapter_weights` into an adapter."""
    import_peft().set_peft_model_state_dict(model, weights, adapter_name=name)


def adapter_weights(model: Any, name: str) -> dict[str, Tensor]:
    """The weights of an adapter, under the names used in checkpoints."""
    state = import_peft().get_peft_model_state_dict(model, adapter_name=name)
    return {key: value.detach().contiguous() for key, value in state.items()}


def changes_nothing(model: Any, name: str) -> bool:
    """Whether an adapter leaves its base unchanged: every B matrix is 0, as in a new adapter."""
    own = {key: value for key, value in model.named_parameters() if adapter_of(key) == name}
    second = [value for key, value in own.items() if ".lora_B." in key]
    return 2 * len(second) == len(own) and not any(bool(value.any()) for value in second)


def switch_adapter(model: Any, name: str) -> None:
    """Activates the adapter `name`. PEFT freezes every other adapter on a switch; all of them are
    made trainable again, since each has its own learner."""
    if model.active_adapter != name or list(model.base_model.active_adapters) != [name]:
        model.set_adapter(name)
        _thaw(model)


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Disables all adapters inside the context; on exit all are trainable again."""
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
    """The adapter of a parameter of a PEFT model; `None` for a parameter of the base."""
    found = _ADAPTER.search(key)
    return found[1] if found else None


def write_config(config: Any, folder: Path) -> None:
    """Writes a `PeftConfig` as PEFT does, with sorted sets: all processes write equal files."""
    config.save_pretrained(folder)
    path = folder / ADAPTER_CONFIG
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, value in vars(config).items():
        if isinstance(value, set | frozenset):
            found[name] = sorted(value)
    path.write_text(json.dumps(found, indent=2, sort_keys=True), encoding="utf-8")
