"""The lean forward pass of a Llama-like model, for sampling: fused copies of its weights, which are
copied again after every change. The caller stores keys and values."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrlm.engines.lean.attention import LANES, Attention
from mrlm.engines.lean.copies import Changes, Product, joined_bias, multiplier, same
from mrlm.engines.lean.low_rank import Adapted, Low, add, grid_of, low_of
from mrlm.learn.fast import int8, matmul
from mrlm.learn.fast.llama_modules import PRODUCTS, Anatomy, Lora, linear_of, loras_of
from mrlm.learn.fast.prefix_tree import to_device

NORMS = ("norm_attention", "norm_mlp", "norm_q", "norm_k", "norm_after_attention", "norm_after_mlp")
PROCESSORS = {"cpu"}
"""Devices where shapes follow the running rows. On others, shapes are fixed, so that steps can be
recorded and nothing waits for the device."""

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, queries (N, heads, D), keys and values (N, 2 kv_heads, D)) -> outputs (N, heads * D)."""

Copied = TypeVar("Copied", Tensor, matmul.Weight)


class Decoder:
    """A supported model with fused weights.

    Args:
        dtype: type of the products; the residual stream has the type of the weights.
        compared: weights may change without a call of `mark`, so all of them are compared with the
            copies before every use.
        eight_bits: products in 8 bits (a CPU only); keys, values and the rest keep their type.

    Attributes:
        stored: type of the products.
        dtype: type of keys, values and everything else between the products. On a CPU with weights
            in float32 it is float32: small operations are faster than in bfloat16.
    """

    def __init__(
        self, anatomy: Anatomy, dtype: torch.dtype, compared: bool = True, eight_bits: bool = False
    ) -> None:
        self.anatomy = anatomy
        self.compared = compared
        self.eight_bits = eight_bits
        self.stored: torch.dtype = dtype
        self.stream: torch.dtype = anatomy.embedding.dtype
        self.device: torch.device = anatomy.embedding.device
        float32 = self.device.type == "cpu" and self.stream == torch.float32
        self.dtype: torch.dtype = torch.float32 if float32 else dtype
        self.on_processor: bool = self.device.type in PROCESSORS
        self.attention: Attention = Attention(anatomy.scale, anatomy.attention_softcap)
        self.layout: int = 0
        """Counts the times that weights moved to other addresses."""
        self.heads: int = anatomy.heads
        self.kv_heads: int = anatomy.kv_heads
        self.head_dim: int = anatomy.head_dim
        self.windows: list[int | None] = [layer.window for layer in anatomy.layers]
        self.products: list[dict[str, Product]] = [{} for _ in anatomy.layers]
        self.norms: list[dict[str, Tensor | None]] = [{} for _ in anatomy.layers]
        self.lows: list[dict[str, Low]] = [{} for _ in anatomy.layers]
        self._final_norm: Tensor | None = None
        self._head: Any = None
        self._borrowed: set[int] = set()  # addresses of the model's weights
        self._single = self._released = False
        self._changes = Changes(compared)
        self._adapters: tuple[str, ...] = ()
        self._rank = 0
        """The largest of a loaded adapter."""
        self._adapter_changes: dict[str, Changes] = {}
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}
        self._plain = self.on_processor and self.dtype == self.stream == torch.float32
        self._multiplier = partial(multiplier, anatomy.unit_offset, self._plain)
        self._ground = {
            width: torch.tensor((anatomy.eps * width) ** 0.5, device=self.device)
            for width in (anatomy.hidden, anatomy.head_dim)
        }
        scale = torch.tensor(anatomy.embed_scale, dtype=self.stream, device="cpu")
        self._embed_scale = float(scale)

    # -- weights -----------------------------------------------------------------------------------

    def mark(self, adapter: str | None = None) -> None:
        """Mark the weights of an adapter, or those of the base, as changed: they are copied before
        their next use."""
        changes = self._adapter_changes.get(adapter) if adapter else self._changes
        if changes is not None:
            changes.mark()

    def refresh(self, single: bool | None = None) -> bool:
        """Copy the changed weights of the base; returns whether there were any. For a `single` row,
        weights are stored in another layout; `None`: for as many as before."""
        anatomy = self.anatomy
        single = self._single if single is None else single
        whole = single != self._single or self._released
        if not whole and not self._changes.pending:
            return False
        jobs: list[tuple[int, str, list[Any]]] = [
            (at, name, [linear_of(getattr(layer, part), None) for part in parts])
            for at, layer in enumerate(anatomy.layers)
            for name, parts in PRODUCTS.items()
        ]
        tensors = [anatomy.embedding, anatomy.head, anatomy.final_norm.weight]
        owners: list[int] = [-1, -1, -1]
        for number, (_, _, linears) in enumerate(jobs):
            parts = [part for linear in linears for part in (linear.stored, linear.bias)]
            tensors += [part for part in parts if part is not None]
            owners += [number] * (len(tensors) - len(owners))
        for layer in anatomy.layers:
            weights = [getattr(layer, name) for name in NORMS]
            tensors += [module.weight for module in weights if module is not None]
        owners += [-1] * (len(tensors) - len(owners))
        changed = self._changes.take(tensors)
        stale = [True] * len(changed) if whole else changed
        if not any(stale):
            return False
        self._single, self._released = single, False
        self._borrowed = set() if self.on_processor else {tensor.data_ptr() for tensor in tensors}
        for number in {owner for owner, new in zip(owners, stale, strict=True) if new} - {-1}:
            at, name, linears = jobs[number]
            self.products[at][name] = self._fused(linears, self.products[at].get(name))
        for at, layer in enumerate(anatomy.layers):
            old = self.norms[at]
            self.norms[at] = {
                name: self._into(old.get(name), self._multiplier(getattr(layer, name)))
                for name in NORMS
            }
            if (self._plain or not self.on_processor) and layer.norm_q is not None:
                first, second = map(self._multiplier, (layer.norm_q, layer.norm_k))
                assert first is not None and second is not None
                parts = [first.expand(self.heads, -1), second.expand(self.kv_heads, -1)]
                self.norms[at]["norm_heads"] = self._into(old.get("norm_heads"), torch.cat(parts))
        self._final_norm = self._into(self._final_norm, self._multiplier(anatomy.final_norm))
        if stale[1]:
            self._head = self._into(self._head, self._stored([anatomy.head]))
        return any(changed)

    def holds(self) -> bool:
        """Whether the copies are those of the base's weights as they are now, bit by bit; `False`
        in 8 bits and on an accelerator, where they are not compared."""
        anatomy = self.anatomy
        if not self.on_processor or self._head is None:
            return False
        norms = [(self._final_norm, anatomy.final_norm)]
        for at, layer in enumerate(anatomy.layers):
            norms += [(self.norms[at][name], getattr(layer, name)) for name in NORMS]
            for name, parts in PRODUCTS.items():
                linears = [linear_of(getattr(layer, part), None) for part in parts]
                if not self.products[at][name].holds(linears, self.stored):
                    return False
        equal = all(same(copy, self._multiplier(module)) for copy, module in norms)
        return equal and matmul.holds(self._head, [anatomy.head])

    def release(self) -> None:
        """Free the copies of weights, until the next `refresh`."""
        self._released = True
        self._adapters = ()
        self.products = [{} for _ in self.products]
        self.norms = [{} for _ in self.norms]
        self.lows = [{} for _ in self.lows]
        self._final_norm = self._head = None
        self.layout += 1

    def use(self, adapters: Sequence[str]) -> set[str]:
        """Load the adapters of a call; returns those that changed since their last use."""
        pending = [
            name
            for name in adapters
            if self._adapter_changes.setdefault(name, Changes(self.compared)).pending
        ]
        if not pending and tuple(adapters) == self._adapters:
            return set()
        loras_of_modules = [loras_of(module, adapters) for module in self._modules()]
        changed: set[str] = set()
        for at, name in enumerate(adapters):
            adapter_loras = [loras[at] for loras in loras_of_modules]
            tensors = [t for lora in adapter_loras if lora for t in (lora.down, lora.up)]
            if name in pending and any(self._adapter_changes[name].take(tensors)):
                changed.add(name)
        if changed or tuple(adapters) != self._adapters:
            products = [list(low) for low in self.lows]
            self._adapters = tuple(adapters)
            ranks = (len(x.down) for loras in loras_of_modules for x in loras if x)
            self._rank, rest = max(ranks, default=0), iter(loras_of_modules)
            for at in range(len(self.anatomy.layers)):
                parts = {name: [next(rest) for _ in PRODUCTS[name]] for name in PRODUCTS}
                self.lows[at] = {
                    name: self._low(self.products[at][name], loras, self.lows[at].get(name))
                    for name, loras in parts.items()
                    if any(lora for module_loras in loras for lora in module_loras)
                }
            self.layout += products != [list(low) for low in self.lows]
        return changed

    def owners(self, rows: Sequence[str | None]) -> np.ndarray | None:
        """The number of each row's adapter (N,) among the loaded ones, -1 for none; `None` if all
        rows have the only one."""
        if not self._adapters or (len(self._adapters) == 1 and {*rows} == {*self._adapters}):
            return None
        numbers = {name: i for i, name in enumerate(self._adapters)}
        return np.array([numbers.get(row or "", -1) for row in rows])

    def adapted(self, owners: np.ndarray | None) -> Adapted | None:
        """The adapters of rows with these `owners`, as `forward` takes them."""
        if owners is None:
            return None
        if self.on_processor:
            return grid_of(owners, len(self._adapters), self.dtype)
        mask = owners[:, None] == np.arange(len(self._adapters))
        return to_device(mask, self.device).to(self.dtype)

    def _modules(self) -> list[nn.Module]:
        parts = [part for group in PRODUCTS.values() for part in group]
        return [getattr(layer, part) for layer in self.anatomy.layers for part in parts]

    def _into(self, old: Copied | None, new: Copied | None) -> Copied | None:
        """New weights; on an accelerator at the address of the old ones, which recorded steps
        read."""
        if self.on_processor or new is old is None:
            return new
        if not isinstance(new, Tensor) or not isinstance(old, Tensor) or old.shape != new.shape:
            self.layout += 1
            return new
        if old.data_ptr() == new.data_ptr():
            return new
        if old.data_ptr() in self._borrowed or new.data_ptr() in self._borrowed:
            self.layout += 1
            return new
        old.copy_(new)
        return old

    def _fused(self, linears: list[Any], old: Product | None) -> Product:
        weight: matmul.Weight | None
        if linears[0].quantized and not self.on_processor:
            weight = matmul.Quantized([linear.module for linear in linears])
        else:
            weight = self._stored([linear.weight for linear in linears])
        bias = joined_bias(linears, self.stored)
        if old is not None:
            weight, bias = self._into(old.weight, weight), self._into(old.bias, bias)
        assert weight is not None
        return Product(weight, bias, [linear.module.out_features for linear in linears])

    def _stored(self, weights: Sequence[Tensor]) -> matmul.Weight:
        if self.eight_bits:
            return int8.rounded(weights)
        return matmul.stored(weights, self.stored, self._single)

    def _low(
        self, product: Product, loras_of_modules: Sequence[Sequence[Lora | None]], old: Low | None
    ) -> Low:
        """The updates of a product's maps, each of all loaded adapters."""
        low = low_of(loras_of_modules, product.widths, self._rank, self.dtype, old)
        self.layout += low is not old
        return low

    # -- forward ---------------------------------------------------------------------------------

    def index(self, numbers: np.ndarray | Sequence[int]) -> Tensor:
        """Numbers as a tensor of its device."""
        return to_device(np.asarray(numbers, np.int64), self.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids (N,) as (N, hidden)."""
        x = F.embedding(ids, self.anatomy.embedding)
        return x if self._embed_scale == 1.0 else x * self._embed_scale

    def logits(self, x: Tensor) -> Tensor:
        """Compute logits (N, V) from hidden states (N, hidden): in float32 on a CPU or with a soft
        cap, else in the type of the products."""
        y = matmul.linear(self._norm(x, self._final_norm), self._head)
        cap = self.anatomy.final_softcap
        if cap is None:
            return y.float() if self.on_processor else y
        return (y.float() / cap).tanh_().mul_(cap)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        longest: int,
        attend: Attend,
        adapted: Adapted | None,
        last: tuple[Tensor, Adapted | None] | None = None,
    ) -> Tensor:
        """The hidden states (N, hidden) after all blocks.

        Args:
            x: (N, hidden) embedded tokens.
            positions: (N,) positions of the tokens, all below `longest`.
            longest: length of the rotary tables.
            attend: stores the keys and values of each layer and computes attention.
            adapted: the adapters of the tokens, as `adapted` makes them.
            last: tokens whose hidden states are returned, and their adapters; `attend` answers for
                them alone in the last layer. `None` for all.
        """
        count, heads, rotated = len(x), self.heads, self.heads + self.kv_heads
        rotary = self._rotary(positions, longest)
        for at, layer in enumerate(self.anatomy.layers):
            norms = self.norms[at]
            y = self._product(at, "qkv", self._norm(x, norms["norm_attention"]), adapted)
            y = y.view(count, -1, self.head_dim)
            queries_keys = y[:, :rotated]
            if norms.get("norm_heads") is not None:
                _heads_normed(queries_keys, norms["norm_heads"], self)
            elif norms["norm_q"] is not None:
                y[:, :heads] = self._norm(y[:, :heads], norms["norm_q"])
                y[:, heads:rotated] = self._norm(y[:, heads:rotated], norms["norm_k"])
            cos, sin = rotary[layer.rope]
            rolled = queries_keys.roll(self.head_dim // 2, -1)
            queries_keys.mul_(cos).addcmul_(rolled, sin)
            y = attend(at, y[:, :heads], y[:, heads:])
            if last is not None and at == len(self.windows) - 1:
                x, adapted = x[last[0]], last[1]
            y = self._product(at, "o", y, adapted)
            if norms["norm_after_attention"] is not None:
                y = self._norm(y, norms["norm_after_attention"])
            x = x + y
            y = self._product(at, "gate_up", self._norm(x, norms["norm_mlp"]), adapted)
            gate, up = y.chunk(2, -1)
            y = self._product(at, "down", self.anatomy.activation(gate).mul_(up), adapted)
            if norms["norm_after_mlp"] is not None:
                y = self._norm(y, norms["norm_after_mlp"])
            x = x + y
        return x

    def _product(self, at: int, name: str, x: Tensor, adapted: Adapted | None) -> Tensor:
        product = self.products[at][name]
        y = matmul.linear(x, product.weight, product.bias)
        low = self.lows[at].get(name)
        if low is not None:
            add(y, x, low, adapted)
        return y

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        assert weight is not None
        if self._plain:
            length = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._ground[x.shape[-1]])
            return (weight * x).div_(length)
        return F.rms_norm(x.to(weight.dtype), x.shape[-1:], weight, self.anatomy.eps).to(self.dtype)

    def _rotary(self, positions: Tensor, longest: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Cosines and sines (N, 1, D) by table; the sines of the first half are negated, so that
        rolling a head by half its width replaces rotating its halves."""
        length = len(next(iter(self._tables.values()))[0]) if self._tables else 0
        if length < longest:
            self.layout += 1  # recorded steps read the tables
            everywhere = torch.arange(max(longest, 2 * length, 256), device=self.device)
            half = self.head_dim // 2
            for name, (cos, sin) in self.anatomy.rotary(everywhere, self.dtype).items():
                signed = torch.cat([-sin[:, :half], sin[:, half:]], -1)
                self._tables[name] = (cos[:, None], signed[:, None])
        return {name: (cos[positions], sin[positions]) for name, (cos, sin) in self._tables.items()}


def _heads_normed(x: Tensor, weight: Tensor | None, decoder: Decoder) -> None:
    """Norm queries and keys (N, heads + kv_heads, D) in place, with multipliers (heads + kv_heads,
    D), as `Decoder._norm` does."""
    assert weight is not None
    if decoder._plain:
        length = torch.linalg.vector_norm(x, 2, -1, True).hypot_(decoder._ground[x.shape[-1]])
        x.mul_(weight).div_(length)
        return
    normed = F.rms_norm(x.to(weight.dtype), x.shape[-1:], None, decoder.anatomy.eps)
    torch.mul(normed, weight, out=x)


def columns_of(decoder: Decoder, tokens: int) -> int:
    """Columns that the keys of a prompt of so many tokens take."""
    return -(-tokens // LANES) * LANES if decoder.on_processor else tokens
