"""Linear layers with weights in 4 or 8 bits (bitsandbytes), which are never trained: adapters are.
Every product is one of the dequantised numbers, in the type of its input, so that sampling, scoring
and training read the same ones. The library's own layers do not: in evaluation mode on a CPU they
round the weights in place, and in 8 bits they round their input."""

import json
import logging
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrlm.config import yaml
from mrlm.core.errors import ModelError

KINDS = ("nf4", "int8")
"""Values of `model.quantization`."""
NF4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
"""Settings of `nf4` for bitsandbytes: the numbers of blocks are quantised, too."""
UNTRAINED = "quantised weights are not trained; add lora, or load the model without quantisation"
NEEDED = "a quantised model needs the bitsandbytes library: pip install 'mrlm[quant]'"


class Dequantized(nn.Linear):
    """A quantised layer whose product is that of `dense`."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (..., out) for x (..., in), as a linear layer gives them."""
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        return _Product.apply(x, self)  # pyright: ignore[reportReturnType]


class _Product(torch.autograd.Function):
    """The product with dequantised weights, which backward computes again instead of keeping."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        ctx.layer = layer
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return F.linear(x, dense(layer).to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grads
        return grad @ dense(ctx.layer).to(grad.dtype), None


@torch.no_grad()
def dense(layer: nn.Linear) -> Tensor:
    """The weight (out, in) of a linear layer; dequantised, in the type it was quantised from, if it
    is kept in 4 or 8 bits."""
    if not isinstance(layer, Dequantized):
        return layer.weight
    functional = import_bitsandbytes().functional
    weight: Any = layer.weight
    state = _state_of(weight)
    if state is not None:
        return functional.dequantize_4bit(weight.data, state).view(state.shape)
    kept: Any = layer.state
    scales = weight.SCB if weight.SCB is not None else kept.SCB
    return functional.int8_vectorwise_dequant(weight.data, scales)


def _state_of(weight: Any) -> Any:
    """The library's description of a weight in 4 bits; `None` for any other."""
    return getattr(weight, "quant_state", None)


def use_dequantized(model: Any, dtype: Any = "auto") -> Any:
    """The model, whose quantised layers compute with dequantised weights from now on; these stay as
    they are, and are dequantised to `dtype`, which all others are cast to. Raises `ModelError`: the
    library has rounded them in place."""
    for name, layer in model.named_modules():
        if not _of_library(layer):
            continue
        if getattr(_state_of(layer.weight), "packing_format_for_cpu", False):
            raise ModelError(
                f"{name}: the model has computed in evaluation mode on a CPU, for which "
                "bitsandbytes rounds its weights in place; load it again, and pass it before that"
            )
        layer.__class__ = _exact(type(layer))
    for parameter in model.parameters() if dtype != "auto" else ():
        model.config.dtype = dtype
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
        elif (state := _state_of(parameter)) is not None:
            state.dtype = dtype
    return model


def without_quantization(model: Any) -> Any:
    """A loaded model with dequantised weights, in plain linear layers; another one unchanged."""
    if not is_quantized(model):
        return model
    from transformers.utils import logging as messages

    level = messages.get_verbosity()
    messages.set_verbosity_error()  # its warning that this takes more memory
    try:
        model._weight_conversions = None  # those of a quantised checkpoint cannot be reverted
        return model.dequantize()
    finally:
        messages.set_verbosity(level)


def num_weights(model: nn.Module) -> int:
    """The number of weights of a model, however they are kept."""
    return sum(
        x.numel() if (state := _state_of(x)) is None else state.shape.numel()
        for x in model.parameters()
    )


def is_quantized(model: Any) -> bool:
    """Whether a live model has quantised layers."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any(isinstance(module, Dequantized) or _of_library(module) for module in modules)


def _of_library(module: Any) -> bool:
    return type(module).__module__.startswith("bitsandbytes.") and isinstance(module, nn.Linear)


@cache
def _exact(kind: type) -> type:
    return type(f"Dequantized{kind.__name__}", (Dequantized, kind), {})


@cache
def import_bitsandbytes() -> Any:
    """Imports the bitsandbytes library; a `ModelError` if it is not installed."""
    # its note that a kernel is missing, which is not used
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        import bitsandbytes
    except ImportError as error:
        raise ModelError(NEEDED) from error
    return bitsandbytes


def loading(
    name: str, kind: str | None, path: str, dtype: Any, device: torch.device
) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a quantised model; none for another.

    Args:
        kind: the requested quantisation.
        path: its files, which may be quantised.
        dtype: of weights that are not quantised.
        device: where it is loaded to, since it is not moved afterwards.

    Raises:
        ModelError: both are given and differ, or the library is missing.
    """
    if saved_as := quantization_in(path):
        if kind not in (None, saved_as):
            raise ModelError(
                f"{name}: its weights are quantised already ({saved_as}), and model.quantization="
                f"{kind} is set; remove it, or give the unquantised model"
            )
        return {"device_map": {"": device}}
    if kind is None:
        return {}
    import_bitsandbytes()
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        settings = BitsAndBytesConfig(load_in_8bit=True)
    else:
        computed = torch.float32 if dtype == "auto" else dtype
        settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=computed, **NF4)
    return {"quantization_config": settings, "device_map": {"": device}}


def quantization_in(path: str) -> str | None:
    """The quantisation of the weights in a model's folder, or of a hub id in the cache: one of
    `KINDS`, or another library's name; `None` if there is none, or it is not known before they are
    loaded."""
    file = Path(path).expanduser() / "config.json"
    if not file.is_file():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(path, "config.json")
        except HFValidationError:
            return None
        if not isinstance(cached, str):
            return None
        file = Path(cached)
    try:
        settings = json.loads(file.read_text(encoding="utf-8")).get("quantization_config")
    except (ValueError, AttributeError):
        return None  # a damaged file, which loading names
    return settings and _kind(settings)


def trained_on(adapter: str) -> str | None:
    """The quantisation that the base of an adapter folder had in its training, as its team or run
    records it: one of `KINDS`, "" for none; `None`: not known."""
    places = [Path(adapter).absolute(), *Path(adapter).absolute().parents][:3]
    files = [place / "team.yaml" for place in places]
    files += [x.parent / "config.yaml" for x in places if re.match("final$|checkpoint-", x.name)]
    if (file := next(filter(Path.is_file, files), None)) is None:
        return None
    match yaml.read(file.read_text(encoding="utf-8"), str(file)):
        case {"model": {"quantization": kind}} if kind in KINDS:
            return kind
    return ""


def kind_of(model: Any) -> str | None:
    """The value of `model.quantization` that loads a live model as it is, if there is one."""
    config: Any = getattr(model, "config", None)
    settings: Any = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    kind = _kind(settings)
    same = kind != "nf4" or settings.get("bnb_4bit_use_double_quant")
    return kind if kind in KINDS and same else None


def _kind(settings: dict[str, Any]) -> str:
    if settings.get("load_in_8bit"):
        return "int8"
    if settings.get("load_in_4bit"):
        return str(settings.get("bnb_4bit_quant_type", "fp4"))
    return str(settings.get("quant_method", "an unknown way"))
