"""The compute precision of a run: `training.precision: auto`, decided in one place."""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from mrlm.config import ExperimentConfig

Precision = Literal["fp32", "bf16"]


def with_precision(
    config: ExperimentConfig, models: Mapping[str, tuple[Any, Any]] | None = None
) -> ExperimentConfig:
    """The config with the precision that `auto` means on this machine, which its run folder
    records; other configs unchanged. The device is that of live `models` by policy, else
    `model.device`."""
    if config.training.precision != "auto":
        return config
    live = [model for model, _ in (models or {}).values() if hasattr(model, "parameters")]
    kind = device_type(config) if not live else next(live[0].parameters()).device.type
    return decided(config, kind)


def decided(config: ExperimentConfig, device: str) -> ExperimentConfig:
    """The config with the precision that `auto` means on a type of device."""
    if config.training.precision != "auto":
        return config
    value = _precision(device, config.model.torch_dtype)
    training = config.training.model_copy(update={"precision": value})
    resolved = config.model_copy(update={"training": training})
    for section, name, old in (
        (training, "precision", config.training),
        (resolved, "training", config),
    ):
        if name not in old.model_fields_set:  # it was not written by the user
            section.model_fields_set.discard(name)
    return resolved


def precision_text(requested: ExperimentConfig, resolved: ExperimentConfig) -> str:
    """The precision of a run, as text."""
    value = resolved.training.precision
    text = f"precision: {value}"
    if requested.training.precision == "auto":
        text += " (training.precision: auto)"
    if value == "bf16":
        text += (
            "; on a GPU products that stay in float32 use TF32. "
            "training.precision=fp32 computes everything in float32"
        )
    return text


def set_tf32(precision: str) -> None:
    """Lets float32 products on a GPU round their inputs to TF32 in a bf16 run, for what such a run
    leaves in float32, and in no other run, whatever was set before."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "bf16"
    torch.backends.cudnn.allow_tf32 = precision == "bf16"


def device_type(config: ExperimentConfig) -> str:
    """The type of device that the models of a config will be on, as far as it is known here."""
    name = config.model.device
    if name != "auto":
        return name.partition(":")[0]
    distributed = config.distributed
    remote = distributed.enabled and distributed.strategy == "ray"
    promised = remote and any("GPU" in pool for pool in distributed.ray.pools.values())
    return "cuda" if promised or torch.cuda.is_available() else "cpu"


def _precision(device: str, dtype: str) -> Precision:
    """bfloat16 on a CUDA device that computes in it; else the type of the weights."""
    if device != "cuda" or dtype == "float16":
        return "fp32"
    here = torch.cuda.is_available()
    return "bf16" if not here or torch.cuda.is_bf16_supported(False) else "fp32"
