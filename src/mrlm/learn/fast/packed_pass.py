"""The fast path through a batch: hidden states of a packed tree, then head and loss chunk by chunk;
each chunk's gradient is computed while its logits exist."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrlm.learn.data.batch import Batch, Loss, Outputs
from mrlm.learn.fast.adapters import PackedTree
from mrlm.learn.fast.forward import LeanForward
from mrlm.learn.fast.llama_modules import Anatomy, anatomy_of, refuse_unnamed_adapter
from mrlm.learn.fast.lm_head import Distributions, Head, TokenChunk, chunks, rows_at_once, scores
from mrlm.learn.policy.wrapped_modules import Structure

LossOf = Callable[[Batch, Outputs], Loss]


class HeadJob(NamedTuple):
    """A batch and its loss, which may be called on parts of the batch; their losses add up.
    `value_head` is that of its policy; the loss gets a gradient of the entropy if requested."""

    batch: Batch
    loss_of: LossOf
    value_head: Any = None
    entropy_gradient: bool = False


class LeanPass:
    """Log-probs, entropies and values of a batch, and gradients of losses on them, for a model of a
    supported family (otherwise `NotLean`) or a PEFT model around one, with its `adapter` active
    (`None` and `""` for none). `dtype` is the compute dtype, by default that of the weights."""

    def __init__(self, model: Any, adapter: str | None, dtype: torch.dtype | None = None) -> None:
        self.anatomy: Anatomy = anatomy_of(model)
        self.adapter = adapter
        refuse_unnamed_adapter(self.anatomy, adapter)
        self._structure = Structure(self.anatomy.model, adapter)
        self._training = False
        dtype = dtype or self.anatomy.embedding.dtype
        self.forward: LeanForward = LeanForward(self.anatomy, dtype)

    def check(self) -> None:
        """Raises `NotLean` if the model has changes that it would miss; in training mode, it was
        checked when that began."""
        if self._training or self._structure.same():
            return
        model = self.anatomy.model
        refuse_unnamed_adapter(anatomy_of(model), self.adapter)
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
        hidden = hidden_states([(self, batch)])
        logprobs, entropy = scores(self.head, hidden, batch.tokens, batch.divisors)
        values = None if value_head is None else value_head(hidden)
        return Outputs(logprobs, entropy, values, self.distributions(hidden, batch))

    def distributions(self, hidden: Tensor, batch: Batch) -> Distributions:
        """The distributions at the hidden states (N, H) of a batch."""
        return Distributions(hidden, self.head, batch.divisors)

    def through_head(self, hidden: Tensor, jobs: Sequence[HeadJob]) -> tuple[list[Loss], Tensor]:
        """Computes the losses of batches from their hidden states (N, H), one after the other, and
        the gradient of their sum by these (returned) and by the heads (added up). Logits are those
        of a few units at a time; a unit with more tokens than that is scored twice instead."""
        leaf = hidden.detach()
        back = torch.zeros_like(leaf)
        with torch.no_grad():
            head = self.head
        limit = rows_at_once(head.weight.shape[0], hidden.device)
        sums: list[dict[str, Tensor | float]] = [{} for _ in jobs]
        start = 0
        for parts in _grouped(jobs, limit):
            here = slice(start, start + sum(len(part) for _, part in parts))
            start = here.stop
            piece = leaf[here].detach().requires_grad_()
            brief = None if here.stop - here.start > 2 * limit else head
            job_parts = [(jobs[number], part) for number, part in parts]
            part_losses = self._losses(piece, job_parts, brief, back[here])
            for (number, _), loss in zip(parts, part_losses, strict=True):
                job_sums = sums[number]
                for key, value in {"": loss.total.detach(), **loss.metrics}.items():
                    job_sums[key] = job_sums.get(key, 0.0) + value
        return [Loss(job_sums.pop(""), job_sums) for job_sums in sums], back  # pyright: ignore

    def _losses(
        self,
        piece: Tensor,
        job_parts: Sequence[tuple[HeadJob, Batch]],
        head: Head | None,
        back: Tensor,
    ) -> list[Loss]:
        """The losses of parts of batches with hidden states `piece`, whose gradient is written to
        `back`; without a `head`, logits are computed twice."""
        parts = [part for _, part in job_parts]
        tokens = _joined([part.tokens for part in parts])
        divisors = None
        if any(part.divisors is not None for part in parts):
            divisors = _joined([part.temperature for part in parts])
        chunk = None
        if head is None:
            logprobs, entropy = scores(self.head, piece, tokens, divisors)
        else:
            with torch.no_grad():
                chunk = TokenChunk(head, piece, tokens, divisors)
            logprobs = chunk.logprobs.requires_grad_()
            entropic = any(job.entropy_gradient for job, _ in job_parts)
            entropy = chunk.entropy.requires_grad_(entropic)
        sizes = [len(part) for part in parts]
        outputs = (x.split(sizes) for x in (logprobs, entropy, piece))
        losses: list[Loss] = []
        for (job, part), part_logprobs, surprise, states in zip(job_parts, *outputs, strict=True):
            values = None if job.value_head is None else job.value_head(states)
            part_entropy = surprise if job.entropy_gradient else surprise.detach()
            spread = self.distributions(states, part)
            losses.append(job.loss_of(part, Outputs(part_logprobs, part_entropy, values, spread)))
        torch.autograd.backward([loss.total for loss in losses])
        if chunk is not None:
            self._through_chunk(chunk, back)
        if piece.grad is not None:
            back += piece.grad
        return losses

    @torch.no_grad()
    def _through_chunk(self, chunk: TokenChunk, back: Tensor) -> None:
        """Backpropagates a chunk to the hidden states and the weight of the head."""
        slope = chunk.logprobs.grad
        if slope is None:
            return
        step = chunk.gradient(slope, chunk.entropy.grad)
        torch.mm(step, chunk.head.weight, out=back)
        head_weight = self.anatomy.head
        if not head_weight.requires_grad:
            return
        if head_weight.grad is None:
            head_weight.grad = torch.zeros_like(head_weight)
        if head_weight.dtype == step.dtype:
            head_weight.grad.addmm_(step.t(), chunk.hidden)
        else:
            head_weight.grad.add_(step.t() @ chunk.hidden)


def _grouped(jobs: Sequence[HeadJob], limit: int) -> Iterator[list[tuple[int, Batch]]]:
    """Parts of the jobs' batches in order, each with its job's number, by about `limit` tokens."""
    group: list[tuple[int, Batch]] = []
    rows = 0
    for number, job in enumerate(jobs):
        for _, part in job.batch.parts(limit):
            if group and rows + len(part) > limit:
                yield group
                group, rows = [], 0
            group.append((number, part))
            rows += len(part)
    yield group


def _joined(columns: Sequence[Tensor]) -> Tensor:
    return columns[0] if len(columns) == 1 else torch.cat([*columns])


def hidden_states(jobs: Sequence[tuple[LeanPass, Batch]], direct: bool = False) -> Tensor:
    """Hidden states (N, H) for batches of policies on one base, one after the other, computed in
    one pass. With `direct`, backward may add to `grad` of the weights itself, which only
    `Tensor.backward` allows."""
    first = jobs[0][0]
    again = first.anatomy.model.training and first.anatomy.checkpointing
    forest = [PackedTree(batch.tree, lean.adapter) for lean, batch in jobs]
    return first.forward.hidden(forest, checkpointing=again, direct=direct)


@torch.no_grad()
def full_kl(policy_pass: LeanPass, reference: LeanPass, batch: Batch) -> Tensor:
    """`sum_v p(v) (log p(v) - log q(v))` (N,) of a policy p and its reference q at the positions of
    the trained tokens, both at the sampling temperature of the token."""
    both = [
        chunks(lean_pass.head, hidden_states([(lean_pass, batch)]), batch.tokens, batch.divisors)
        for lean_pass in (policy_pass, reference)
    ]
    divergences: list[Tensor] = []
    for p, q in zip(*both, strict=True):
        gap = (p.logits - p.total.log()) - (q.logits - q.total.log())
        divergences.append((p.weights / p.total * gap).sum(-1))
    return torch.cat(divergences)
