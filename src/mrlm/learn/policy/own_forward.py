"""A model's own forward, for every module that returns logits: it takes a batch as a padded grid.
The fast path is compared with it on a probe before it is used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Grid, Sample, pack
from mrlm.learn.fast.llama_modules import NotLean
from mrlm.learn.fast.packed_pass import LeanPass
from mrlm.learn.policy.lora import with_noise
from mrlm.learn.policy.wrapped_modules import Interface, logits_of

AGREEMENT: dict[torch.dtype, float] = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference between log-probs of the fast path and the own forward, by compute dtype."""
AGREEMENT |= dict.fromkeys((torch.bfloat16, torch.float16), 0.3)
APART = 3.0
"""How many times the error of rounding to 16 bits two ways to compute log-probs may be apart; 1.4
is expected of independent errors."""


@dataclass(frozen=True, slots=True)
class OwnForward:
    """Calls models that share an interface."""

    interface: Interface

    def logits(self, model: Any, batch: Batch) -> Tensor:
        """Logits (N, V) in float32 that predict the trained tokens, at their temperatures."""
        logits, _ = self._at_columns(model, batch, None)
        return self._at_tokens(logits, batch)

    def logits_and_states(
        self, model: Any, batch: Batch, output_layer: Any
    ) -> tuple[Tensor, Tensor]:
        """The same, and the hidden states (N, H) that `output_layer` read."""
        logits, states = self._at_columns(model, batch, output_layer)
        return self._at_tokens(logits, batch), states[batch.sequence, self._grid(batch).column]

    def states(self, model: Any, batch: Batch, output_layer: Any) -> Tensor:
        """The hidden states (N, H); without logits, where the model has a part without its head."""
        if not self.interface.cache:  # a custom module
            return self.logits_and_states(model, batch, output_layer)[1]
        grid = batch.grid
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        output = self.interface.call(
            causal.base_model,
            grid.input_ids,
            attention_mask=grid.attention_mask,
            position_ids=grid.position_ids,
            use_cache=False,
        )
        return output.last_hidden_state[batch.sequence, grid.keep[grid.column]]

    def _at_columns(self, model: Any, batch: Batch, output_layer: Any) -> tuple[Tensor, Tensor]:
        """Logits (B, K, V) and hidden states (B, K, H) at the columns `batch.grid.keep`; without an
        output layer the logits take the place of the states."""
        grid = self._grid(batch)
        offered = {
            "attention_mask": grid.attention_mask,
            "position_ids": grid.position_ids,
            "logits_to_keep": grid.keep,
            "use_cache": False,
        }
        seen: list[Tensor] = []
        layers = [] if output_layer is None else [output_layer]
        hooks = [each.register_forward_pre_hook(lambda _, x: seen.append(x[0])) for each in layers]
        try:
            logits = logits_of(self.interface.call(model, grid.input_ids, **offered))
        finally:
            for hook in hooks:
                hook.remove()
        if not self.interface.keep:
            logits, seen = logits[:, grid.keep], [x[:, grid.keep] for x in seen]
        return logits, seen[0] if seen else logits

    def _grid(self, batch: Batch) -> Grid:
        """The batch as the grid that the models take."""
        return batch.grid if self.interface.mask else batch.right_padded

    def _at_tokens(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits[batch.sequence, self._grid(batch).column].float() / batch.temperature[:, None]


def checked_pass(
    model: Any, adapter: str | None, dtype: torch.dtype | None, logprobs: Callable[[Batch], Tensor]
) -> LeanPass:
    """The fast path of a model; `NotLean` if it is not supported, or if its log-probs
    differ from `logprobs`, the model's own forward on a batch (N,)."""
    lean_pass = LeanPass(model, adapter, dtype)
    probe = _probe(model.config.vocab_size, lean_pass.anatomy.embedding.device)
    limit = AGREEMENT[lean_pass.forward.dtype]
    if rounds_to_tf32(lean_pass.anatomy.embedding.device):
        limit = max(limit, AGREEMENT[torch.bfloat16])
    with with_noise(model, adapter):
        fast, own = lean_pass.outputs(probe).logprobs, logprobs(probe)
        gap = float((fast - own).abs().max())
        halves = lean_pass.forward.dtype.itemsize == 2
        if gap <= limit or (
            halves and rounding_explains(fast, own, exact_logprobs(model, adapter, probe))
        ):
            return lean_pass
    raise NotLean(f"log-probs of the fast path differ by {gap:.2g}", differs=True)


def exact_logprobs(model: Any, adapter: str | None, batch: Batch) -> Tensor:
    """Log-probs (N,) of a batch by the fast path in float32, whatever the type of the weights."""
    with torch.no_grad():
        return LeanPass(model, adapter, torch.float32).outputs(batch).logprobs


def rounding_explains(one: Tensor, other: Tensor, exact: Tensor) -> bool:
    """Whether two ways to compute log-probs (N,) in 16 bits differ by no more than their rounding
    does. The logits of a pretrained model are large, so that bfloat16 moves a log-prob by tenths,
    and no fixed number of nats fits all models. A way that computes something else is far from the
    other, while the smaller of both distances from `exact` is that of rounding alone.

    Args:
        one, other: log-probs in 16 bits.
        exact: those in float32, by either way.
    """
    apart, first, second = (
        float((x - y).float().square().mean().sqrt())
        for x, y in ((one, other), (one, exact), (other, exact))
    )
    return apart <= APART * min(first, second)


def rounds_to_tf32(device: torch.device) -> bool:
    """Whether a GPU rounds the inputs of float32 products, as torch is set: two exact ways to
    compute a log-prob then differ by hundredths."""
    return device.type == "cuda" and bool(torch.backends.cuda.matmul.allow_tf32)


def _probe(vocabulary: int, device: torch.device) -> Batch:
    """Two short samples with a common prefix."""
    samples: list[Sample] = []
    for number in range(2):
        ids = [(37 * index + 5 + (index > 5) * number) % vocabulary for index in range(14)]
        turn = Turn("probe", "probe", ids[:8], ids[8:])
        samples.append(Sample(ids, [turn], [8], number, number))
    return pack(samples, device=device)
