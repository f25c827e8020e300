"""LoRA adapters of PEFT on one base model: the weights of each, copies, and which one is active.
`incoming.py` decides which adapter a policy is."""

import copy
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import ADAPTER_CONFIG, first_line, import_peft
from mrlm.learn.policy.quantized import is_quantized
from mrlm.learn.policy.randomness import seeded

BASE = ""
"""Adapter name of a policy that is the shared base with all adapters disabled."""
NOISE = 0.05
"""Standard deviation of what `with_noise` adds."""
_ADAPTER = re.compile(r"\.(?:lora_\w+|ia3_\w+|modules_to_save|trainable_tokens_delta)\.(\w[^.]*)")


FROM_PEFT = {"alpha": "lora_alpha", "dropout": "lora_dropout"}
"""Settings of the section `lora` that PEFT names otherwise."""


def add_adapter(model: Any, name: str, settings: Mapping[str, Any]) -> Any:
    """Adds a new LoRA adapter called `name` to `model` (wrapped at the first call); returns the
    PEFT model. `settings` are those of the section `lora`, and may be fewer. Raises `ModelError`:
    they do not fit the model."""
    peft = import_peft()
    named = {FROM_PEFT.get(key, key): settings[key] for key in settings}
    words = {key: value for key, value in named.items() if value is not None}
    check_targets(model, name, settings.get("target_modules"))
    whole = tuple(f".{module}" for module in settings.get("modules_to_save") or ())
    for path, module in model.named_modules() if whole else ():
        if f".{path}".endswith(whole) and is_quantized(module):
            raise ModelError(f"lora.modules_to_save of policy {name!r}: {path} is quantised")
    try:
        return inject(model, name, peft.LoraConfig(**words, task_type="CAUSAL_LM"), trainable=True)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"lora of policy {name!r}: {first_line(error)}") from error


def check_targets(model: Any, name: str, targets: Any) -> None:
    """Checks that every listed target module exists; patterns and `all-linear` are left to PEFT."""
    if targets is None or isinstance(targets, str):
        return
    paths = [path.replace(".base_layer", "") for path, _ in model.named_modules()]
    missing = [x for x in targets if not any(f".{path}".endswith(f".{x}") for path in paths)]
    if missing:
        last = sorted({path.rsplit(".", 1)[-1] for path in linears(model)})
        raise ModelError(
            f"lora.target_modules of policy {name!r}: the model has no module {missing[0]!r}; its "
            f"linear modules are {', '.join(last)}"
        )


def linears(model: Any) -> set[str]:
    """Paths of the linear modules of a model, or of the base of adapters."""
    return {
        path.replace(".base_layer", "").removeprefix("base_model.model.")
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and ".lora_" not in path
    }


def inject(model: Any, name: str, config: Any, trainable: bool) -> Any:
    """Adds an adapter with a PEFT config to `model` (wrapped at the first call); returns the PEFT
    model. No other adapter changes."""
    peft = import_peft()
    config.inference_mode = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PEFT about transformers
        if isinstance(model, peft.PeftModel):
            with _as_trainable_as_before(model):
                model.add_adapter(name, config)
            for layer in model.modules():  # a new module is in training mode
                dropouts = getattr(layer, "lora_dropout", None)
                if isinstance(dropouts, nn.ModuleDict) and name in dropouts:
                    dropouts[name].train(layer.training)
        else:
            model = peft.get_peft_model(model, config, adapter_name=name)
    for parameter in adapter_parameters(model, name).values():
        parameter.requires_grad_(trainable)
    return model


def copy_adapter(model: Any, source: str, target: str, trainable: bool = False) -> None:
    """Copies the adapter `source` into `target`, with its config, which is added if missing."""
    if target not in model.peft_config:
        config = copy.deepcopy(model.peft_config[source])
        start, config.init_lora_weights = config.init_lora_weights, True  # some change the base
        with seeded(0, next(model.parameters()).device):  # these weights are overwritten
            inject(model, target, config, trainable)
        config.init_lora_weights = start
    set_adapter_weights(model, target, adapter_weights(model, source))


def unused_name(model: Any, name: str, suffix: str) -> str:
    """An adapter name that `model` does not have yet: `name` with one or more suffixes."""
    name += suffix
    while name in model.peft_config:
        name += suffix
    return name


def set_adapter_weights(model: Any, name: str, weights: Mapping[str, Tensor]) -> None:
    """Loads `adapter_weights` into an adapter. Raises `ModelError`: some are missing, or belong to
    no part of it."""
    try:
        result = import_peft().set_peft_model_state_dict(model, weights, adapter_name=name)
    except KeyError as error:
        raise ModelError(f"adapter {name!r}: weight {error} is missing") from error
    parameters = adapter_parameters(model, name)  # without the second name of a tied weight
    missing = [key for key in result.missing_keys if key in parameters]
    if missing or result.unexpected_keys:
        kind, key = ("missing", missing[0]) if missing else ("unknown", result.unexpected_keys[0])
        raise ModelError(f"adapter {name!r}: weight {key!r} is {kind}")


def adapter_weights(model: Any, name: str) -> dict[str, Tensor]:
    """The weights of an adapter, under the names used in checkpoints."""
    state = import_peft().get_peft_model_state_dict(
        model, adapter_name=name, save_embedding_layers=False
    )
    return {key: value.detach().contiguous() for key, value in state.items()}


def adapter_parameters(model: Any, name: str) -> dict[str, nn.Parameter]:
    """The parameters of an adapter, by their names in the model."""
    return {key: value for key, value in model.named_parameters() if adapter_of(key) == name}


def changes_nothing(model: Any, name: str) -> bool:
    """Whether an adapter leaves its base unchanged: every B matrix is 0, as in a new adapter."""
    weights = adapter_parameters(model, name)
    second = [value for key, value in weights.items() if ".lora_B." in key]
    return 2 * len(second) == len(weights) and not any(bool(value.any()) for value in second)


@contextmanager
def with_noise(model: Any, name: str | None) -> Iterator[None]:
    """Context in which noise is added to the weights of an adapter: one that is new changes
    nothing, so that a check which computes with it could not fail. Afterwards they are as before,
    bit by bit, and without a new version."""
    tensors = [value.data for value in adapter_parameters(model, name).values()] if name else []
    before = [value.clone() for value in tensors]
    draws = torch.Generator().manual_seed(0)
    try:
        for value in tensors:
            noise = torch.empty(value.shape).normal_(0.0, NOISE, generator=draws)
            value.add_(noise.to(value.device, value.dtype))
        yield
    finally:
        for value, saved in zip(tensors, before, strict=True):
            value.copy_(saved)


def switch_adapter(model: Any, name: str) -> None:
    """Activates the adapter `name`. PEFT freezes all others on a switch, which each have their own
    learner: every parameter is as trainable as it was."""
    if model.active_adapter != name or list(model.base_model.active_adapters) != [name]:
        with _as_trainable_as_before(model):
            model.set_adapter(name)


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Disables all adapters inside the context."""
    with _as_trainable_as_before(model), model.disable_adapter():
        yield


@contextmanager
def _as_trainable_as_before(model: Any) -> Iterator[None]:
    """On exit, `requires_grad` of every parameter is what it was: PEFT sets it with each change."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, trainable in before:
            if parameter.requires_grad != trainable:
                parameter.requires_grad_(trainable)


def adapter_of(key: str) -> str | None:
    """The adapter of a parameter of a PEFT model; `None` for a parameter of the base."""
    match = _ADAPTER.search(key)
    return match[1] if match else None


def write_config(config: Any, folder: Path) -> None:
    """Writes a `PeftConfig` as PEFT does, with sorted sets: all processes write equal files."""
    config.save_pretrained(folder)
    path = folder / ADAPTER_CONFIG
    entries = json.loads(path.read_text(encoding="utf-8"))
    for name, value in vars(config).items():
        if isinstance(value, set | frozenset):
            entries[name] = sorted(value)
    path.write_text(json.dumps(entries, indent=2, sort_keys=True), encoding="utf-8")
