"""The loss of custom training loops: a scalar tensor with metrics."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from mrlm.learn.fast.double import double


class LossTensor(Tensor):
    """A scalar tensor with `metrics`: name -> detached number. All PyTorch operations on scalars
    work (`loss / 2`, `loss + penalty`, `GradScaler.scale(loss)`, `accelerator.backward(loss)`);
    results keep the metrics of all losses in the operation, the last one's for equal names.

    Examples:
        >>> loss = LossTensor.of(torch.tensor(3.0, requires_grad=True), {"kl": 0.5})
        >>> half = loss / 2
        >>> half.item(), half.metrics
        (1.5, {'kl': 0.5})
    """

    _metrics: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of(cls, total: Tensor, metrics: Mapping[str, Tensor | float]) -> "LossTensor":
        """A scalar, with its gradient function, as a loss with metrics."""
        loss = total.as_subclass(cls)
        loss._metrics = {name: float(value) for name, value in metrics.items()}
        return loss

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers to log, by name."""
        return dict(self._metrics)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # pyright: ignore
        if isinstance(result, cls):
            result._metrics = {k: x for loss in _losses(args) for k, x in loss.metrics.items()}
        return result

    def __format__(self, format_spec: str) -> str:
        return format(self.detach().as_subclass(Tensor), format_spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LossTensor":
        return LossTensor.of(copy.deepcopy(self.as_subclass(Tensor), memo), self.metrics)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self.as_subclass(Tensor))


def _losses(args: Iterable[Any]) -> Iterator[LossTensor]:
    """The losses among a function's arguments, nested lists included."""
    for argument in args:
        if isinstance(argument, LossTensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _losses(argument)


def host_numbers(values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Scalars by name as numbers of the host, which waits for an accelerator once."""
    numbers = {key: x for key, x in values.items() if not isinstance(x, Tensor) or x.is_cpu}
    rest = {key: x for key, x in values.items() if isinstance(x, Tensor) and not x.is_cpu}
    if rest:
        together = torch.stack([double(x.detach()).reshape(()) for x in rest.values()])
        numbers |= dict(zip(rest, together.tolist(), strict=True))
    return {key: float(numbers[key]) for key in values}
