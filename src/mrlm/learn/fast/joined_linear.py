"""Linear maps of one block on an accelerator: those that read the same input are one product, and
weights in another type are cast for one block at a time, not kept for the backward pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mrlm.learn.policy.quantized import Dequantized, dense


class BlockWeights:
    """The weights of a block in the compute type.

    Args:
        linears: the linear modules of each product, which read the same input.
        dtype: the compute type.
    """

    def __init__(self, linears: Mapping[str, Sequence[nn.Linear]], dtype: torch.dtype) -> None:
        self.linears = linears
        self.dtype = dtype
        self._cast: dict[str, tuple[Tensor, Tensor | None]] | None = None

    def parts(self, product: str) -> list[tuple[Tensor, Tensor | None]]:
        """Weights (out, in) and biases of a product, whose outputs follow each other: one if they
        had to be cast, else those of the modules."""
        linears = self.linears[product]
        if all(linear.weight.dtype == self.dtype for linear in linears):  # not quantised
            biases = (None if x.bias is None else x.bias.to(self.dtype) for x in linears)
            return [(x.weight, bias) for x, bias in zip(linears, biases, strict=True)]
        if self._cast is None:
            self._cast = self._casts()
        return [self._cast[product]]

    def release(self) -> None:
        """Drops converted weights; they are converted again where they are needed."""
        self._cast = None

    def _casts(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """All products in one kernel."""
        casts: dict[str, tuple[Tensor, Tensor | None]] = {}
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for product, group in self.linears.items():
            first = group[0].weight
            sizes = [linear.out_features for linear in group]
            joined = first.new_empty((sum(sizes), group[0].in_features), dtype=self.dtype)
            for linear, part in zip(group, joined.split(sizes), strict=True):
                if isinstance(linear, Dequantized):  # one at a time
                    part.copy_(dense(linear))
                else:
                    targets.append(part)
                    sources.append(linear.weight)
            bias = None
            if any(linear.bias is not None for linear in group):
                bias = first.new_zeros(sum(sizes), dtype=self.dtype)
                pairs = zip(bias.split(sizes), (linear.bias for linear in group), strict=True)
                biases = [(to, source) for to, source in pairs if source is not None]
                targets += [to for to, _ in biases]
                sources += [source for _, source in biases]
            casts[product] = joined, bias
        if targets:
            torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
        return casts


def joined_linear(x: Tensor, weights: BlockWeights, product: str, direct: bool) -> Tensor:
    """The outputs (N, out) of a product of `weights`, side by side, for x (N, in). With `direct`,
    backward adds to `grad` of the weights itself, in fewer kernels."""
    leaves = [leaf for linear in weights.linears[product] for leaf in (linear.weight, linear.bias)]
    return _JoinedLinear.apply(x, weights, product, direct, *leaves)  # pyright: ignore


class _JoinedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: BlockWeights, product: str, direct: bool, *leaves: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.how = weights, product, direct, leaves
        parts = weights.parts(product)
        sizes = [len(weight) for weight, _ in parts]
        output = x.new_empty((len(x), sum(sizes)))
        for y, (weight, bias) in zip(output.split(sizes, 1), parts, strict=True):
            if bias is None:
                torch.mm(x, weight.t(), out=y)
            else:
                torch.addmm(bias, x, weight.t(), out=y)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        weights, product, direct, leaves = ctx.how
        (grad,) = grads
        parts = weights.parts(product)
        slices = grad.split([len(weight) for weight, _ in parts], 1)
        back = None
        if ctx.needs_input_grad[0]:
            for y, (weight, _) in zip(slices, parts, strict=True):
                back = torch.mm(y, weight) if back is None else back.addmm_(y, weight)
        if product == "qkv":  # the last one in backward
            weights.release()
        needed = ctx.needs_input_grad[4:]
        leaf_grads: list[Tensor | None] = [None] * len(leaves)
        if any(needed):
            leaf_grads = _by_leaves(grad, slices, x, leaves, needed, direct)
        return back, None, None, None, *leaf_grads


def _by_leaves(
    grad: Tensor,
    slices: Sequence[Tensor],
    x: Tensor,
    leaves: Sequence[Tensor],
    needed: Sequence[bool],
    direct: bool,
) -> list[Tensor | None]:
    """Gradients by weights and biases (weight, bias, weight, ...); `None` for those that were added
    to `grad` of the leaf."""
    weights = leaves[::2]
    sizes = [len(weight) for weight in weights]
    columns = grad.split(sizes, 1)
    gradients: list[Tensor | None] = [None] * len(leaves)
    if len(slices) == 1 < len(weights) and all(needed[::2]):
        gradients[::2] = _as_leaf(slices[0].t() @ x, weights, direct).split(sizes)
    else:
        for index, (column, weight) in enumerate(zip(columns, weights, strict=True)):
            if not needed[2 * index]:
                continue
            weight_grad = weight.grad
            if direct and weight_grad is not None and weight_grad.dtype == x.dtype:
                weight_grad.addmm_(column.t(), x)
            else:
                gradients[2 * index] = _as_leaf(column.t() @ x, [weight], direct)
    if any(needed[1::2]):
        sums = grad.sum(0, dtype=torch.float32).split(sizes)
        pairs = zip(sums, needed[1::2], strict=True)
        gradients[1::2] = [total if required else None for total, required in pairs]
    return added(leaves, gradients) if direct else gradients


def _as_leaf(gradient: Tensor, leaves: Sequence[Tensor], direct: bool) -> Tensor:
    """A gradient in the type of its leaves, unless it is added to existing ones."""
    if direct and all(leaf.grad is not None for leaf in leaves):
        return gradient
    return gradient.to(leaves[0].dtype)


@torch.no_grad()
def added(leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Adds gradients to those of their leaves; nothing is left for autograd."""
    pairs = [(leaf, x) for leaf, x in zip(leaves, gradients, strict=True) if x is not None]
    same = [(leaf.grad, x) for leaf, x in pairs if leaf.grad is not None and leaf.dtype == x.dtype]
    if same:
        grads, more = map(list, zip(*same, strict=True))
        torch._foreach_add_(grads, more)  # pyright: ignore[reportPrivateImportUsage]
    for leaf, x in pairs:
        if leaf.grad is None:
            leaf.grad = x.to(leaf.dtype)
        elif leaf.dtype != x.dtype:
            leaf.grad.add_(x)
    return [None] * len(leaves)
