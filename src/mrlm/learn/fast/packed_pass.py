"""The fast path through a batch: hidden states of a packed tree, then head and loss chunk by chunk;
each chunk's gradient is computed while its logits exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrlm.learn.data.batch import Batch, Loss, Outputs
from mrlm.learn.fast.adapters import PackedTree
from mrlm.learn.fast.forward import LeanForward
from mrlm.learn.fast.kept import Kept
from mrlm.learn.fast.llama_modules import Anatomy, NotLean, anatomy_of
from mrlm.learn.fast.lm_head import Head, TokenChunk, chunks, rows_at_once, scores
from mrlm.learn.policy.wrapped_modules import Structure

LossOf = Callable[[Batch, Outputs], Loss]


class LeanPass:
    """Log-probs, entropies and values of a batch, and gradients of losses on them, for a model of a
    supported family (otherwise `NotLean`) or a PEFT model around one, with its `adapter` active
    (`None` and `""` for none). `dtype` is the compute dtype, by default that of the weights."""

    def __init__(self, model: Any, adapter: str | None, dtype: torch.dtype | None = None) -> None:
        self.anatomy: Anatomy = anatomy_of(model)
        self.adapter = adapter
        self._structure = Structure(self.anatomy.model, adapter)
        self._training = False
        dtype = dtype or self.anatomy.embedding.dtype
        self.forward: LeanForward = LeanForward(self.anatomy, dtype)
        self.kept: Kept | None = None
        """Activations that were computed while sampling, if they are kept."""

    def check(self) -> None:
        """Raises `NotLean` if the model has changes that it would miss; in training mode, it was
        checked when that began."""
        if self._training or self._structure.same():
            return
        model = self.anatomy.model
        anatomy_of(model)
        if self.adapter is None and any(hasattr(each, "lora_A") for each in model.modules()):
            raise NotLean(
                "an adapter was put into it, and only its own forward knows which one is active"
            )
        self._structure = Structure(model, self.adapter)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context of training mode: of the modules that it computes with, and of no others."""
        self._training, before = True, self._training
        try:
            with self._structure.training():
                yield
        finally:
            self._training = before

    @property
    def dropouts(self) -> list[nn.Dropout]:
        """The dropout modules that it computes with."""
        return self._structure.dropouts

    @property
    def head(self) -> Head:
        """The head in the compute dtype."""
        return Head(self.anatomy.head.to(self.forward.dtype), self.anatomy.final_softcap)

    def outputs(self, batch: Batch, value_head: Any = None) -> Outputs:
        """Differentiable outputs for the trained tokens."""
        (hidden,) = hidden_states([(self, batch)])
        logprobs, entropy = scores(self.head, hidden, batch.tokens, batch.divisors)
        return Outputs(logprobs, entropy, None if value_head is None else value_head(hidden))

    def through_head(
        self, hidden: Tensor, batch: Batch, loss_of: LossOf, value_head: Any, entropy_gradient: bool
    ) -> tuple[Loss, Tensor]:
        """Computes the loss of a batch from its hidden states (N, H), and its gradient by them
        (returned) and by the heads (added up). The loss is summed over parts of a few units; a unit
        with more tokens than the limit of logits is scored twice instead."""
        leaf = hidden.detach()
        back = torch.zeros_like(leaf)
        with torch.no_grad():
            head = self.head
        limit = rows_at_once(head.weight.shape[0], hidden.device)
        sums: dict[str, Tensor | float] = {}
        for here, part in batch.parts(limit):
            piece = leaf[here].detach().requires_grad_()
            values = None if value_head is None else value_head(piece)
            if len(part) > 2 * limit:
                logprobs, entropy = scores(self.head, piece, part.tokens, part.divisors)
                loss = loss_of(part, Outputs(logprobs, entropy, values))
                loss.total.backward()
            else:
                with torch.no_grad():
                    chunk = TokenChunk(head, piece, part.tokens, part.divisors)
                chunk.logprobs.requires_grad_()
                chunk.entropy.requires_grad_(entropy_gradient)
                loss = loss_of(part, Outputs(chunk.logprobs, chunk.entropy, values))
                loss.total.backward()
                self._through_chunk(chunk, back[here])
            if piece.grad is not None:
                back[here] += piece.grad
            for key, value in {"": loss.total.detach(), **loss.metrics}.items():
                sums[key] = sums.get(key, 0.0) + value
        total = sums.pop("")
        assert isinstance(total, Tensor)
        return Loss(total, sums), back

    @torch.no_grad()
    def _through_chunk(self, chunk: TokenChunk, back: Tensor) -> None:
        """Backpropagates a chunk to the hidden states and the weight of the head."""
        slope = chunk.logprobs.grad
        if slope is None:
            return
        step = chunk.gradient(slope, chunk.entropy.grad)
        torch.mm(step, chunk.head.weight, out=back)
        own = self.anatomy.head
        if not own.requires_grad:
            return
        if own.grad is None:
            own.grad = torch.zeros_like(own)
        if own.dtype == step.dtype:
            own.grad.addmm_(step.t(), chunk.hidden)
        else:
            own.grad.add_(step.t() @ chunk.hidden)


def hidden_states(
    jobs: Sequence[tuple[LeanPass, Batch]], direct: bool = False, last: bool = False
) -> list[Tensor]:
    """Hidden states for batches of policies on one base, computed in one pass. With `direct`,
    backward may add to `grad` of the weights itself, which only `Tensor.backward` allows; `last`
    is the pass of an optimiser step after which its weights change."""
    first = jobs[0][0]
    model = first.anatomy.model
    again = model.training and first.anatomy.checkpointing
    forest = [PackedTree(batch.tree, lean.adapter) for lean, batch in jobs]
    known = None
    if first.kept is not None and len(jobs) == 1 and torch.is_grad_enabled() and not again:
        batch = jobs[0][1]
        texts = [
            [(turn.prompt_ids, turn.completion_ids) for turn in sample.turns]
            for sample in batch.samples
        ]
        known = first.kept.known(texts, batch.tree, last)
    return first.forward.hidden(forest, checkpointing=again, direct=direct, known=known)


@torch.no_grad()
def full_kl(own: LeanPass, reference: LeanPass, batch: Batch) -> Tensor:
    """`sum_v p(v) (log p(v) - log q(v))` (N,) of a policy p and its reference q at the positions of
    the trained tokens, both at the sampling temperature of the token."""
    both = [
        chunks(each.head, hidden_states([(each, batch)])[0], batch.tokens, batch.divisors)
        for each in (own, reference)
    ]
    found: list[Tensor] = []
    for p, q in zip(*both, strict=True):
        gap = (p.logits - p.total.log()) - (q.logits - q.total.log())
        found.append((p.weights / p.total * gap).sum(-1))
    return torch.cat(found)
