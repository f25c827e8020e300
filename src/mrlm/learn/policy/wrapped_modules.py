"""Models as users pass them: Hugging Face models, custom modules that return logits, compiled ones,
and either inside `DistributedDataParallel`."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from operator import contains
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mrlm.core.errors import ModelError


def unwrap(model: Any) -> tuple[Any, DistributedDataParallel | None]:
    """Returns the inner module, and the `DistributedDataParallel` wrapper if there was one."""
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        raise ModelError(
            "torch.compile(DistributedDataParallel(model)) hides the wrapper; compile inside: "
            "DistributedDataParallel(torch.compile(model))"
        )
    if isinstance(model, DataParallel):
        return model.module, None
    if isinstance(model, DistributedDataParallel):
        return model.module, model
    return model, None


def is_replaced(module: nn.Module) -> bool:
    """Whether a module was compiled, or its `forward` replaced."""
    return module._compiled_call_impl is not None or "forward" in module.__dict__


def modules_of(model: nn.Module, adapter: str | None = None) -> list[nn.Module]:
    """The modules of a model that compute with one of its adapters, without those of the others:
    their number does not grow with the adapters. Without an `adapter`, all of them."""
    modules: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module in modules:
            continue
        modules[module] = None
        named = module._modules
        if adapter and isinstance(module, nn.ModuleDict) and adapter in named:
            named = {adapter: named[adapter]}
        waiting += [child for child in named.values() if child is not None]
    return list(modules)


class Structure:
    """Snapshot of a model, with one of its adapters or all of them, that detects later replacements
    of modules, hooks and compilation.

    Attributes:
        dropouts: its modules of dropout.
    """

    def __init__(self, model: nn.Module, adapter: str | None = None) -> None:
        modules = modules_of(model, adapter)
        self.dropouts: list[nn.Dropout] = [each for each in modules if isinstance(each, nn.Dropout)]
        self._children = [module._modules for module in modules]
        self._known = [dict(named) for named in self._children]
        self._hooks = [x for m in modules for x in (m._forward_hooks, m._forward_pre_hooks)]
        self._own = [module.__dict__ for module in modules]

    def same(self) -> bool:
        """Whether nothing has changed; takes microseconds, without a loop in Python."""
        return (
            self._children == self._known
            and not any(self._hooks)
            and not any(map(contains, self._own, repeat("forward")))
            and not any(map(dict.get, self._own, repeat("_compiled_call_impl")))
        )

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context in which these modules are in training mode, as by `train` of each."""
        before = [attributes["training"] for attributes in self._own]
        for attributes in self._own:
            attributes["training"] = True
        try:
            yield
        finally:
            for attributes, mode in zip(self._own, before, strict=True):
                attributes["training"] = mode


@dataclass(frozen=True, slots=True)
class Interface:
    """The arguments of a module's forward, read from its signature.

    Args:
        ids: name of the parameter of the token ids; `None`: they are the first argument.
        mask: whether it takes `attention_mask`; without one, input is right-padded, which a causal
            module never attends to.
        positions: whether it takes `position_ids`.
        keep: whether it takes `logits_to_keep`.
        cache: whether it takes `past_key_values` and `use_cache`.
    """

    ids: str | None
    mask: bool
    positions: bool
    keep: bool
    cache: bool

    def call(self, model: Any, ids: Tensor, **offered: Any) -> Any:
        """Calls a module on token ids (B, T) with the `offered` arguments that it accepts."""
        accepted = {
            "attention_mask": self.mask,
            "position_ids": self.positions,
            "logits_to_keep": self.keep,
            "use_cache": self.cache,
            "past_key_values": self.cache,
        }
        chosen = {name: value for name, value in offered.items() if accepted[name]}
        if self.ids is None:
            return model(ids, **chosen)
        return model(**{self.ids: ids}, **chosen)


def interface_of(model: Any) -> Interface:
    """Reads the interface of a model; a `ModelError` if it is not callable."""
    inner: Any = _plain(model)
    forward = inner.forward if hasattr(inner, "forward") else inner
    if not callable(forward):
        raise ModelError(
            f"{type(model).__name__} is not a model: give a module whose forward takes token ids "
            "(B, T) and returns logits (B, T, V)"
        )
    accepted = inspect.signature(forward).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    foreign = not hasattr(inner, "base_model_prefix")
    backbone = getattr(inner, getattr(inner, "base_model_prefix", ""), None)
    inside = accepted
    if open_ended and backbone is not None:
        inside = inspect.signature(backbone.forward).parameters

    def takes(name: str) -> bool:
        return name in accepted or (open_ended and not foreign)

    return Interface(
        ids="input_ids" if takes("input_ids") else None,
        mask=takes("attention_mask"),
        positions="position_ids" in accepted or "position_ids" in inside,
        keep="logits_to_keep" in accepted,
        cache=takes("past_key_values"),
    )


def logits_of(output: Any) -> Tensor:
    """Logits (B, T, V) of an output: a tensor, a tuple that begins with them, or `.logits`."""
    scores = output
    if isinstance(output, Mapping):
        scores = output.get("logits")
    elif hasattr(output, "logits"):
        scores = output.logits
    elif isinstance(output, tuple | list) and output:
        scores = output[0]
    if not isinstance(scores, Tensor) or scores.dim() != 3:
        raise ModelError(
            f"the model returned {type(output).__name__}; it must return logits (B, T, V): a "
            "tensor, a tuple that begins with them, or an object with .logits"
        )
    return scores


def output_layer(model: Any, vocabulary: int) -> Any:
    """The layer that maps hidden states to logits, whose input a value head reads: the one that the
    model names, else its only linear layer as wide as the vocabulary."""
    named = getattr(model, "get_output_embeddings", None)
    if named is not None and named() is not None:
        return named()
    linears = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    matches = [layer for layer in linears if layer.out_features >= vocabulary]
    if len(matches) != 1:
        raise ModelError(
            f"{type(model).__name__}: a value head reads what the output layer reads, and "
            f"{len(matches)} of its linear layers could be that; define get_output_embeddings() to "
            "return it, or take an algorithm without values (GRPO, RLOO)"
        )
    return matches[0]


def _plain(model: Any) -> Any:
    """The module with the original signature: without adapters and compile wrappers."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return getattr(inner, "_orig_mod", inner)
