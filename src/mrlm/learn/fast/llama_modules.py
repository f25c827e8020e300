"""Parts of a Llama-like model, read from a Hugging Face module for the fast forward and the
built-in decoder. Weights are referenced, never copied; nothing is computed here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.learn.policy.quantized import Dequantized, dense
from mrlm.learn.policy.wrapped_modules import is_replaced, modules_of

FAMILIES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", "GemmaForCausalLM": "gemma", "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}  # fmt: skip
"""Supported classes, and the transformers folder that each comes from."""
ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles depend on the position only."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class NotLean(ConfigError):
    """A model that the fast path does not support; the message gives the reason. `differs`: its
    log-probs would differ from those of the model's own forward."""

    def __init__(self, reason: str, differs: bool = False) -> None:
        super().__init__(reason)
        self.differs = differs


_SAID: WeakSet[nn.Module] = WeakSet()


def take_general_way(model: Any, reason: object) -> None:
    """Logs once per model that it is trained and sampled with its own forward."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if inner not in _SAID:
        _SAID.add(inner)
        log.warning("%s takes the general path: %s", type(inner).__name__, reason)


class Lora(NamedTuple):
    """A low-rank update of a linear map, `x -> scaling * dropout(x) @ down.T @ up.T`: `down` is (r,
    in), `up` (out, r); `dropout` acts while training, `None` for none."""

    down: Tensor
    up: Tensor
    scaling: float
    dropout: nn.Module | None


@dataclass(frozen=True, slots=True)
class Linear:
    """`x -> x @ weight.T + bias`, plus the update of an adapter."""

    module: nn.Linear
    lora: Lora | None

    @property
    def weight(self) -> Tensor:
        """(out, in); dequantised at every access."""
        return dense(self.module)

    @property
    def stored(self) -> Tensor:
        """The weight as the module has it, in 4 or 8 bits if it is quantised."""
        return self.module.weight

    @property
    def bias(self) -> Tensor | None:
        """(out,) or `None`."""
        return self.module.bias

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs (N, out) for x (N, in), in its type and without the adapter's update."""
        if self.quantized:
            return self.module(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.stored.to(x.dtype), bias)

    def frozen_as(self, x: Tensor) -> bool:
        """Whether it has dense, frozen weights of the type of x."""
        leaves = [leaf for leaf in (self.stored, self.bias) if leaf is not None]
        same = all(leaf.dtype == x.dtype and not leaf.requires_grad for leaf in leaves)
        return same and not self.quantized

    @property
    def quantized(self) -> bool:
        """Whether the weight is kept in 4 or 8 bits."""
        return isinstance(self.module, Dequantized)


PRODUCTS: dict[str, tuple[str, ...]] = {
    "qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",),
}  # fmt: skip
"""The matrix products of a block, and their linear modules, which read the same input."""


class Layer:
    """One block. Its modules are looked up on access, so that adapters added later are seen.

    Args:
        window: number of keys that a query sees, its own included; `None` for all.
        rope: name of its rotary table.

    Attributes:
        norm_attention, norm_mlp: before attention and before the MLP.
        norm_q, norm_k: over each head (Qwen3, Gemma 3), or `None`.
        norm_after_attention, norm_after_mlp: on a residual update (Gemma 2, 3), or `None`.
    """

    def __init__(self, block: Any, window: int | None, rope: str) -> None:
        self.block = block
        self.window = window
        self.rope = rope
        attention = block.self_attn
        sandwich = hasattr(block, "pre_feedforward_layernorm")
        after = block.post_attention_layernorm
        self.norm_attention: nn.Module = block.input_layernorm
        self.norm_mlp: nn.Module = block.pre_feedforward_layernorm if sandwich else after
        self.norm_q: nn.Module | None = getattr(attention, "q_norm", None)
        self.norm_k: nn.Module | None = getattr(attention, "k_norm", None)
        self.norm_after_attention: nn.Module | None = after if sandwich else None
        self.norm_after_mlp: nn.Module | None = getattr(block, "post_feedforward_layernorm", None)

    q = property(attrgetter("block.self_attn.q_proj"))
    k = property(attrgetter("block.self_attn.k_proj"))
    v = property(attrgetter("block.self_attn.v_proj"))
    o = property(attrgetter("block.self_attn.o_proj"))
    gate = property(attrgetter("block.mlp.gate_proj"))
    up = property(attrgetter("block.mlp.up_proj"))
    down = property(attrgetter("block.mlp.down_proj"))

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        return (self.q, self.k, self.v, self.o, self.gate, self.up, self.down)

    def modules(self, product: str) -> list[nn.Module]:
        """The linear modules of a product of `PRODUCTS`."""
        return [getattr(self, part) for part in PRODUCTS[product]]

    @property
    def base_linears(self) -> dict[str, list[nn.Linear]]:
        """Those of every product, without adapters."""
        return {name: [_base_of(module) for module in self.modules(name)] for name in PRODUCTS}

    @property
    def norms(self) -> list[nn.Module]:
        before = (self.norm_attention, self.norm_mlp, self.norm_q, self.norm_k)
        after = (self.norm_after_attention, self.norm_after_mlp)
        return [norm for norm in (*before, *after) if norm is not None]


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The parts of a supported model.

    Args:
        model: the causal language model without its PEFT wrapper.
        heads, kv_heads, head_dim, hidden: sizes.
        eps: of every norm.
        unit_offset: norms multiply by `1 + weight` (Gemma) rather than by `weight`.
        scale: of the attention scores.
        activation: of the MLP gate.
        activation_name: its name in the model's configuration.
        embed_scale: factor of the embeddings.
        attention_softcap, final_softcap: `c` of `c tanh(x / c)` on scores and logits, or `None`.
        adapted: whether linear modules have LoRA adapters.
    """

    model: Any
    layers: tuple[Layer, ...]
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    eps: float
    unit_offset: bool
    scale: float
    activation: Callable[[Tensor], Tensor]
    activation_name: str
    embed_scale: float
    attention_softcap: float | None
    final_softcap: float | None
    adapted: bool

    @property
    def embedding(self) -> Tensor:
        """(V, H)."""
        return self.model.model.embed_tokens.weight

    @property
    def padding_idx(self) -> int | None:
        """The token whose embedding row gets no gradient, if any."""
        return self.model.model.embed_tokens.padding_idx

    @property
    def head(self) -> Tensor:
        """(V, H); the embedding if they are tied."""
        return self.model.lm_head.weight

    @property
    def checkpointing(self) -> bool:
        """Whether activation checkpointing is on."""
        parts = (self.model.model, *(layer.block for layer in self.layers))
        return any(getattr(part, "gradient_checkpointing", False) for part in parts)

    @property
    def final_norm(self) -> nn.Module:
        return self.model.model.norm

    def norm_weight(self, module: nn.Module) -> Tensor:
        """The factor of a norm, (H,) or (head_dim,)."""
        weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
        return weight + 1.0 if self.unit_offset else weight

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
        """Cosines and sines (N, head_dim) for positions (N,), by rotary table."""
        rotate = self.model.model.rotary_emb
        like = torch.empty(0, dtype=dtype, device=positions.device)
        tables: dict[str, tuple[Tensor, Tensor]] = {}
        for name in dict.fromkeys(layer.rope for layer in self.layers):
            extra = (name,) if name else ()
            cos, sin = rotate(like, positions[None], *extra)
            tables[name] = (cos[0], sin[0])
        return tables


def anatomy_of(model: Any) -> Anatomy:
    """Reads the parts of a causal language model, or of a PEFT model around one; `NotLean` if it is
    not one of `FAMILIES`, or has a modification that the fast path would miss."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    modules = modules_of(inner)
    family = _family(inner, modules)
    config = inner.config
    _check_config(config)
    layers = tuple(_layer(block, config, family) for block in inner.model.layers)
    heads = config.num_attention_heads
    gemma = family.startswith("gemma")
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation not in ACTIVATIONS:
        raise NotLean(f"its activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    return Anatomy(
        model=inner,
        layers=layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        eps=config.rms_norm_eps,
        unit_offset=gemma,
        scale=inner.model.layers[0].self_attn.scaling,
        activation=ACTIVATIONS[activation],
        activation_name=activation,
        embed_scale=float(getattr(inner.model.embed_tokens, "scalar_embed_scale", 1.0)),
        attention_softcap=getattr(config, "attn_logit_softcapping", None),
        final_softcap=getattr(config, "final_logit_softcapping", None),
        adapted=any("lora_A" in module._modules for module in modules),
    )


def refuse_unnamed_adapter(anatomy: Anatomy, adapter: str | None) -> None:
    """Raises `NotLean` if a model has adapters, and none is named: only its own forward knows which
    one is active. `""` names the base alone."""
    if adapter is None and anatomy.adapted:
        raise NotLean("an adapter was put into it, and only its own forward knows which is active")


def linear_of(module: nn.Module, adapter: str | None) -> Linear:
    """Reads a linear module and the update of `adapter`; `None` and `""` add none."""
    return Linear(_base_of(module), *loras_of(module, [adapter]))


def loras_of(module: nn.Module, adapters: Sequence[str | None]) -> list[Lora | None]:
    """Reads the updates of several adapters of one linear module, whose base `linear_of` checks."""
    wrapped: Any = module
    if getattr(module, "lora_A", None) is None:
        return [None] * len(adapters)
    downs, ups = wrapped.lora_A._modules, wrapped.lora_B._modules
    dropouts, scaling = wrapped.lora_dropout._modules, wrapped.scaling

    def lora_of(name: str) -> Lora:
        dropout = None if isinstance(dropouts[name], nn.Identity) else dropouts[name]
        return Lora(downs[name].weight, ups[name].weight, float(scaling[name]), dropout)

    return [lora_of(name) if name and name in downs else None for name in adapters]


def _family(inner: Any, modules: Sequence[nn.Module]) -> str:
    kind = type(inner)
    family = FAMILIES.get(kind.__name__)
    if family is None or not kind.__module__.startswith(f"transformers.models.{family}."):
        raise NotLean(f"{kind.__name__} is not one of {', '.join(FAMILIES)}")
    embedding = inner.model.embed_tokens
    plain = type(embedding) is nn.Embedding or type(embedding).__module__ == kind.__module__
    if not plain or type(inner.lm_head) is not nn.Linear or inner.lm_head.bias is not None:
        raise NotLean("its embedding or its head was replaced")
    other = next((type(candidate) for candidate in modules if _is_other_adapter(candidate)), None)
    if other is not None:
        raise NotLean(f"an adapter of a kind that is not plain LoRA: {other.__name__}")
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        raise NotLean("one of its modules has a forward hook, which would not be called")
    if any(is_replaced(module) for module in modules):
        raise NotLean("its forward was compiled or replaced, and would not be called")
    return family


def _is_other_adapter(module: nn.Module) -> bool:
    """Whether a module of PEFT is something else than LoRA on a linear map (which `_base_of`
    inspects), such as a copy of a norm that is trained whole."""
    return type(module).__module__.startswith("peft.") and "lora_A" not in module._modules


def _check_config(config: Any) -> None:
    if getattr(config, "use_bidirectional_attention", False):
        raise NotLean("its attention is bidirectional")
    if getattr(config, "attention_dropout", 0.0):
        raise NotLean("it drops attention weights while training")
    ropes: Any = getattr(config, "rope_parameters", None) or {}
    for table in [ropes] if "rope_type" in ropes else filter(None, ropes.values()):
        kind = table.get("rope_type", "default")
        if kind not in ROPES:
            raise NotLean(f"its rotary embedding {kind!r} depends on the length of the text")


def _layer(block: Any, config: Any, family: str) -> Layer:
    attention = block.self_attn
    window = getattr(attention, "sliding_window", None)
    if family == "mistral":
        window = getattr(config, "sliding_window", None)
    rope = getattr(attention, "layer_type", None) or "" if family == "gemma3" else ""
    layer = Layer(block, window, rope)
    for module in layer.linears:
        _base_of(module)
    return layer


def _base_of(module: Any) -> nn.Linear:
    """The plain linear module, possibly inside a plain LoRA layer."""
    base: Any = getattr(module, "base_layer", module)
    if type(base) is not nn.Linear and not isinstance(base, Dequantized):
        raise NotLean(f"{type(base).__name__} takes the place of a linear layer")
    if base is not module:
        plain = hasattr(module, "lora_A") and not getattr(module, "fan_in_fan_out", False)
        variants = getattr(module, "lora_variant", None) or {}
        ups = module.lora_B._modules.values() if plain else ()
        biased = any(up._parameters.get("bias") is not None for up in ups)
        if not plain or variants or biased or getattr(module, "merged", False):
            raise NotLean(f"an adapter of a kind that is not plain LoRA: {type(module).__name__}")
    return base
