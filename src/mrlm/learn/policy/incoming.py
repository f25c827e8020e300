"""Adapters that come in: of a live PEFT model, of a folder, or new. The same function takes all of
them, so that each is trained, copied and saved as what it is, or refused by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import first_line, import_peft
from mrlm.learn.policy.lora import (
    FROM_PEFT,
    adapter_of,
    adapter_parameters,
    add_adapter,
    copy_adapter,
    inject,
    linears,
    set_adapter_weights,
    unused_name,
)
from mrlm.learn.policy.randomness import seeded

STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is."""
CHANGES_BASE = ("pissa", "olora")
"""Those that change it, always in the same way: PEFT does so again when it loads the adapter."""
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Files of the weights of a saved adapter."""
USED = {
    *("r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "use_rslora"),
    *("use_dora", "lora_bias", "modules_to_save", "alpha_pattern", "rank_pattern"),
    *("layers_to_transform", "layers_pattern", "trainable_token_indices", "init_lora_weights"),
    *("fan_in_fan_out", "ensure_weight_tying", "target_parameters"),
}
"""Settings of a `peft.LoraConfig` that are trained, copied and saved."""
ABOUT = {
    *("peft_type", "task_type", "inference_mode", "base_model_name_or_path", "revision"),
    *("auto_mapping", "peft_version", "runtime_config", "ephemeral_gpu_offload"),
}
"""Those that do not change what is trained."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """The adapter that a policy requires.

    Args:
        name: of the policy; the name of an adapter that is added.
        trained: whether it is trained.
        lora: the settings of the section `lora`, if it has one.
        explicit: those of them that were set, which an adapter that is there already must have.
        folder: a saved adapter.
    """

    name: str
    trained: bool = True
    lora: Mapping[str, Any] | None = None
    explicit: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def take_adapter(
    model: Any, incoming: Incoming, lent: str | None = None, copied: bool = False, seed: int = 0
) -> tuple[Any, str | None]:
    """Puts the adapter of a policy on a model: of its folder, of a live PEFT model, or a new one.

    Args:
        model: the model, with the adapters of other policies.
        incoming: the policy.
        lent: the adapter of a live PEFT model.
        copied: whether the policy gets a copy of `lent`, which another policy has.
        seed: of the weights of a new adapter.

    Returns:
        The model, and the name of the adapter; `None` for a policy without one.

    Raises:
        ModelError: the adapter is of a kind that is not trained, or not the one of `lora`.
    """
    name = incoming.name
    if lent is not None and copied:
        name = unused_name(model, name, "-") if name in model.peft_config else name
        copy_adapter(model, lent, name, trainable=incoming.trained)
    elif lent is not None:
        name = lent
    elif incoming.folder is not None:
        model = load_adapter(model, name, incoming.folder, incoming.trained)
    elif incoming.lora is None:
        return model, None
    else:
        with seeded(seed, next(model.parameters()).device):
            return add_adapter(model, name, incoming.lora), name
    if incoming.lora is not None:
        _check_same(model, name, incoming)
    return model, name


def live_adapter(model: Any) -> str | None:
    """The active adapter of a live PEFT model, which is its policy; `None` for another model.
    Raises `ModelError`: it has not exactly one that is active, or one of a kind that is not
    trained."""
    if not is_peft(model):
        return None
    name = model.active_adapter
    check_kind(model.peft_config[name if isinstance(name, str) else name[0]], "the PEFT model")
    status = model.get_model_status()
    if status.active_adapters == "irregular" or len(status.active_adapters) != 1:
        raise ModelError(
            f"the PEFT model has the active adapters {status.active_adapters}; a policy is one "
            "adapter: model.set_adapter(NAME)"
        )
    if status.merged_adapters:
        raise ModelError(
            f"the adapters {status.merged_adapters} are merged into the base of the PEFT model, "
            "where nothing of them is trained; model.unmerge_adapter()"
        )
    if status.enabled is not True:
        raise ModelError(
            "the adapters of the PEFT model are disabled; model.base_model.enable_adapter_layers()"
        )
    for key, value in model.named_parameters():
        if value.requires_grad and adapter_of(key) is None:
            raise ModelError(
                f"{key} of the PEFT model is trainable and no part of its adapter, so that it "
                "would not be saved; name its module in modules_to_save of the LoraConfig, or "
                "freeze it"
            )
    return str(status.active_adapters[0])


def is_peft(model: Any) -> bool:
    """Whether a model is a `peft.PeftModel`."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def make_trainable(model: Any, name: str) -> None:
    """Makes an adapter trainable if nothing of it is, as one that PEFT loaded for inference."""
    weights = adapter_parameters(model, name).values()
    if not any(value.requires_grad for value in weights):
        for value in weights:
            value.requires_grad_(True)


def load_adapter(model: Any, name: str, folder: Path, trained: bool = False) -> Any:
    """Adds the adapter saved in a folder, in place of one of its name; returns the PEFT model.
    Raises `ModelError`: it does not fit the model, or is of a kind that is not trained."""
    peft = import_peft()
    if not any((folder / name).is_file() for name in WEIGHTS):  # PEFT would ask the hub
        raise ModelError(f"{folder}: {WEIGHTS[0]} is missing; copy the folder again")
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        check_kind(config, str(folder))
        config.base_model_name_or_path = None  # that of the model, where PEFT expects the same text
        if name in getattr(model, "peft_config", ()):
            model.delete_adapter(name)
        model = inject(model, name, config, trained)
        set_adapter_weights(model, name, peft.load_peft_weights(str(folder), device="cpu"))
    except (OSError, RuntimeError, SafetensorError, ValueError, KeyError) as error:
        raise ModelError(
            f"{folder}: the adapter cannot be loaded: {first_line(error)}; copy its folder again, "
            "with the base that it was trained on"
        ) from error
    return model


def check_kind(config: Any, what: str) -> None:
    """Checks that an adapter is of a kind that is trained, copied and saved as PEFT would. Raises
    `ModelError`: it is not; names the setting, and what to use."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        merged = "get_base_model" if config.is_prompt_learning else "merge_and_unload"
        raise ModelError(
            f"{what}: its adapter is {kind}; LORA is trained: use a peft.LoraConfig, or give the "
            f"whole model: model.{merged}().requires_grad_(True)"
        )
    start, usual = config.init_lora_weights, type(config)()
    if start not in (*STARTS, *CHANGES_BASE):
        raise ModelError(
            f"{what}: init_lora_weights={start!r} changes the base, and not always in the same "
            f"way, so that the saved adapter would not be what was trained; use one of "
            f"{', '.join(map(repr, (*STARTS, *CHANGES_BASE)))}"
        )
    for key, value in vars(config).items():
        usual_value = getattr(usual, key, None)
        if key not in USED | ABOUT and value and value != usual_value:
            raise ModelError(
                f"{what}: {key}={value!r} of its LoraConfig is not trained as PEFT would; leave it "
                f"at {usual_value!r}"
            )


def changes_base(start: Any) -> bool:
    """Whether an adapter with this `init_lora_weights` changes its base, which then is its own."""
    return start in CHANGES_BASE


def _check_same(model: Any, name: str, incoming: Incoming) -> None:
    """Checks that an adapter which is trained further has the settings of the section `lora`."""
    config = model.peft_config[name]
    for key, value in incoming.explicit.items():
        has = getattr(config, FROM_PEFT.get(key, key))
        if key == "target_modules":
            same = value == has or _targets(model, value) == _targets(model, has)
            has = {path.rsplit(".", 1)[-1] for path in has} if isinstance(has, set) else has
        else:
            same = _plain(has) == _plain(value)
        if not same:
            raise ModelError(
                f"policy {incoming.name!r} begins with an adapter that has {key}={_plain(has)!r}, "
                f"and lora.{key}={_plain(value)!r} is set; an adapter is trained further as it is: "
                f"remove lora.{key}, or merge the adapter first (merge_and_unload of PEFT) and "
                "begin with that model"
            )


def _plain(value: Any) -> Any:
    """Settings in a form that can be compared: without sets, and nothing for empty ones."""
    return sorted(value) if isinstance(value, set | list | tuple) else value or None


def _targets(model: Any, targets: Any) -> set[str]:
    """The paths of the linear modules that `target_modules` names."""
    paths = linears(model)
    if targets == "all-linear":
        modules = dict(model.get_base_model().named_modules())
        return {path for path in paths if modules[path] is not model.get_output_embeddings()}
    if targets is None:  # PEFT's choice for the family
        choices = import_peft().utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        targets = choices[model.config.model_type]
    if isinstance(targets, str):
        return {path for path in paths if re.fullmatch(targets, path)}
    return {path for path in paths if any(f".{path}".endswith(f".{name}") for name in targets)}
