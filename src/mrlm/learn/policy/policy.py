"""A model as `forward(batch) -> Outputs`, over any Hugging Face causal language model: a whole
model, or one LoRA adapter of a base shared by several policies. Rewards and optimisers are handled
elsewhere."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrlm.core.chat import Chat
from mrlm.core.errors import ModelError
from mrlm.learn import ops
from mrlm.learn.critics.value_head import ValueHead
from mrlm.learn.data.batch import Batch, Outputs
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.fast import full_kl as full_kl_module
from mrlm.learn.fast.llama_modules import NotLean, take_general_way
from mrlm.learn.fast.packed_pass import LeanPass, hidden_states
from mrlm.learn.policy.lora import (
    BASE,
    adapter_of,
    switch_adapter,
    without_adapters,
)
from mrlm.learn.policy.own_forward import Disagrees, OwnForward, checked_pass
from mrlm.learn.policy.reference import keep, load_reference, save_reference, standing
from mrlm.learn.policy.saved_model import has_head, read_head, read_model, write_head, write_model
from mrlm.learn.policy.shards import Shards
from mrlm.learn.policy.wrapped_modules import interface_of, output_layer, unwrap

log: logging.Logger = logging.getLogger("mrlm")

Precision = Literal["fp32", "bf16", "fp16"]
AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Policy:
    """A language model that completes, scores and trains: weights, tokenizer and an optional
    adapter.

    Args:
        name: the policy's name.
        model: a causal language model, a PEFT model shared by several policies, or a custom module
            that returns logits (B, T, V) for token ids (B, T); optionally compiled or inside
            `DistributedDataParallel`. Never wrapped, cast or copied.
        tokenizer: its tokenizer.
        adapter: the adapter of `model` that is this policy; `None` for the model itself, `BASE` for
            the model with all adapters disabled.
        precision: compute precision; weights keep their dtype (`bf16` and `fp16` run under
            autocast).
        reference: a frozen model for `ref_logprobs`; made by `keep_reference` if `None`.
        chat: renderer of conversations; made from the tokenizer if `None`.
        lean: use the library's fast path for supported model families; other models use their own
            forward.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        *,
        adapter: str | None = None,
        precision: Precision = "fp32",
        reference: Any = None,
        chat: Chat | None = None,
        lean: bool = True,
    ) -> None:
        self.name = name
        self.model, wrapper = unwrap(model)
        self.across: Across | None = None if wrapper is None else Across(wrapper)
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.precision: Precision = precision
        self.reference: Any = reference
        self.reference_adapter: str = BASE
        self.reference_moved: bool = False
        self.chat: Chat = chat or Chat(tokenizer)
        self.value_head: ValueHead | None = None
        self.lean: bool = lean and precision != "fp16"
        self.other_ends: frozenset[int] = frozenset()
        """Stop token ids in addition to the model's own."""
        self.shards: Shards[Policy] | None = None
        self._passes: dict[str, LeanPass | None] = {}
        self.own_forward: OwnForward = OwnForward(interface_of(self.model))

    # -- properties --------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        if self.shards is not None:
            return self.shards.device
        return next(self.model.parameters()).device

    @property
    def whole(self) -> Policy:
        """The unsharded policy on this rank."""
        return self if self.shards is None else self.shards.whole

    @property
    def coarse(self) -> bool:
        """Whether matrix products use 16 bits or fewer (also in float32 on a GPU with TF32): two
        exact ways to compute a log-prob then differ by hundredths."""
        if self.precision != "fp32" or self.model.dtype in (torch.bfloat16, torch.float16):
            return True
        return self.device.type == "cuda" and bool(torch.backends.cuda.matmul.allow_tf32)

    @property
    def max_context(self) -> int:
        """Maximum sequence length of the model."""
        config = getattr(self.model, "config", None)
        for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
            if getattr(config, name, None):
                return int(getattr(config, name))
        return 1 << 20

    @property
    def pad_id(self) -> int:
        """A padding token id; masks mark padding, so it may be the end token."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id or 0 if pad is None else pad

    @property
    def eos_ids(self) -> frozenset[int]:
        """All token ids that end a completion."""
        found: set[int] = set(self.other_ends)
        generation = getattr(self.model, "generation_config", None)
        for value in (self.tokenizer.eos_token_id, generation and generation.eos_token_id):
            found.update(value if isinstance(value, list | tuple) else [value])  # pyright: ignore
        found.discard(None)  # pyright: ignore[reportArgumentType]
        return frozenset(found)

    def modules(self) -> list[nn.Module]:
        """All modules with weights: the model, its heads, and the reference if there is one."""
        found = (self.model, self.value_head, self.reference)
        return [module for module in found if module is not None]

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The policy's own parameters: those of the model or its adapter, and those of its
        heads."""
        named = dict(self.model.named_parameters())
        if self.adapter is not None:
            named = {key: value for key, value in named.items() if adapter_of(key) == self.adapter}
        if self.value_head is not None:
            heads = self.value_head.named_parameters()
            named |= {f"value_head.{key}": value for key, value in heads}
        return named

    def parameters(self) -> list[nn.Parameter]:
        """The trainable ones of `named_parameters`."""
        return [value for value in self.named_parameters().values() if value.requires_grad]

    def add_value_head(self) -> None:
        """Adds a value head if there is none."""
        if self.value_head is None:
            self.value_head = ValueHead(self.output_layer.weight.shape[-1]).to(self.device)

    @property
    def output_layer(self) -> Any:
        """The layer that maps hidden states to logits."""
        return output_layer(self.model, len(self.tokenizer))

    def keep_reference(self) -> None:
        """Freezes the current policy as the reference, unless it has one."""
        keep(self)

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight changes."""
        if self.shards is not None:
            return self.shards.fingerprint()
        named = self.named_parameters()
        if self.adapter == BASE:
            named = {k: v for k, v in self.model.named_parameters() if adapter_of(k) is None}
        with torch.no_grad():
            sums = [value.detach().double().sum() for value in named.values()]
            squares = [value.detach().double().square().sum() for value in named.values()]
            return (float(torch.stack(sums).sum()), float(torch.stack(squares).sum()))

    def alike(self) -> Policy:
        """Another policy with the same weights."""
        other = copy.copy(self)
        other._passes = {}
        return other

    # -- computation -------------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yields the model with this policy's weights active, under its precision."""
        if self.adapter:
            switch_adapter(self.model, self.adapter)
        bare = without_adapters(self.model) if self.adapter == BASE else nullcontext()
        with self._autocast(), bare:
            yield self.model

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Disables dropout and gradients; restores the model's mode afterwards."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)
            if self.shards is not None:
                self.shards.rest()

    @cached_property
    def size(self) -> int:
        """Number of parameters of the model, base included."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def lean_pass(self) -> LeanPass | None:
        """The fast path through a batch, if the model family is supported."""
        return self._pass("own")

    @property
    def packed(self) -> bool:
        """Whether batches are computed as packed trees."""
        return self.lean_pass is not None

    def forward(self, batch: Batch, entropy_gradient: bool = False) -> Outputs:
        """Log-probs, entropy and (with a value head) values of the trained tokens, each (N,).

        Logits are computed only at trained tokens and divided by each token's sampling temperature.
        """
        lean = self.lean_pass
        if lean is not None:
            return lean.outputs(batch, self.value_head)
        values = None
        with self.active() as model:
            if self.value_head is None:
                logits = self.own_forward.logits(model, batch)
            else:
                logits, states = self.own_forward.logits_and_states(model, batch, self.output_layer)
        if self.value_head is not None:
            values = self.value_head(states)
        logprobs = ops.token_logprobs(logits, batch.tokens)
        with nullcontext() if entropy_gradient else torch.no_grad():
            entropy = ops.entropy(logits)
        return Outputs(logprobs, entropy, values)

    def values(self, batch: Batch) -> Tensor:
        """Values (N,) at the positions that predict the trained tokens, without computing logits;
        requires a value head."""
        head = self.value_head
        assert head is not None
        return head(self.hidden(batch))

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states (N, H) at the same positions."""
        lean = self.lean_pass
        if lean is not None:
            (found,) = hidden_states([(lean, batch)])
            return found
        with self.active() as model:
            if self.shards is not None:  # a part of it alone gathers nothing
                return self.own_forward.logits_and_states(model, batch, self.output_layer)[1]
            return self.own_forward.states(model, batch, self.output_layer)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Log-probs (N,) of the trained tokens under the frozen reference."""
        self._need_reference()
        lean = self._pass("reference")
        if lean is not None:
            return lean.outputs(batch).logprobs
        return self._reference_logprobs(batch)

    @torch.no_grad()
    def full_kl(self, batch: Batch) -> Tensor:
        """KL divergence (N,) from the frozen reference over the whole vocabulary, at the trained
        tokens."""
        self._need_reference()
        own, reference = self.lean_pass, self._pass("reference")
        if own is not None and reference is not None:
            return full_kl_module.full_kl(own, reference, batch)
        with self.active() as model:
            logits = self.own_forward.logits(model, batch)
        return ops.full_kl(logits, self._reference_logits(batch))

    def _need_reference(self) -> None:
        if self.adapter is None and self.reference is None:
            raise ModelError(f"policy {self.name!r} has no reference; call keep_reference first")

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        return ops.token_logprobs(self._reference_logits(batch), batch.tokens)

    def _reference_logits(self, batch: Batch) -> Tensor:
        """Logits (N, V) of the frozen reference that predict the trained tokens."""
        with self._autocast(), standing(self) as model:
            return self.own_forward.logits(model, batch)

    def _pass(self, which: Literal["own", "reference"]) -> LeanPass | None:
        """The fast path, if supported: built and checked at first use, and permanently
        disabled when the model is modified in a way that it would miss."""
        if which not in self._passes:
            self._passes[which] = self._lean_pass(which) if self.lean else None
        found = self._passes[which]
        if found is not None:
            try:
                found.check()
            except NotLean as reason:
                take_general_way(self.model, reason)
                found = self._passes[which] = None
        return found

    def forget_pass(self, which: Literal["own", "reference"]) -> None:
        """Rebuilds the fast path at next use."""
        self._passes.pop(which, None)

    def _lean_pass(self, which: Literal["own", "reference"]) -> LeanPass | None:
        own = which == "own"
        model, adapter = self.model, self.adapter if own else self.reference_adapter
        if not own and self.reference is not None:
            model, adapter = self.reference, BASE
        logprobs = self._own_logprobs if own else self._reference_logprobs
        try:
            with self.scoring():
                return checked_pass(model, adapter, AUTOCAST.get(self.precision), logprobs)
        except NotLean as reason:
            if own or isinstance(reason, Disagrees):
                take_general_way(model, reason)
            return None

    def _own_logprobs(self, batch: Batch) -> Tensor:
        with self.active() as model:
            return ops.token_logprobs(self.own_forward.logits(model, batch), batch.tokens)

    def _autocast(self) -> Any:
        dtype = AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    # -- checkpoints -------------------------------------------------------------------------------

    def save(self, folder: Path, heads: bool = True) -> None:
        """Writes a folder that `from_pretrained` loads: the model (or adapter), tokenizer,
        generation settings, and heads."""
        if self.shards is not None:
            self.shards.whole.save(folder)
            return
        write_model(self.model, self.adapter, folder)
        self.tokenizer.save_pretrained(folder)
        if heads:
            write_head(self.value_head, folder)

    def save_reference(self, folder: Path) -> None:
        """Writes the reference if it changed during training; an unchanged one is rebuilt on
        load."""
        save_reference(self, folder)

    def load_reference(self, folder: Path) -> None:
        """Loads the reference that `save_reference` wrote, bit by bit, if any."""
        load_reference(self, folder)

    def load(self, folder: Path) -> None:
        """Loads the weights that `save` wrote, in place, bit by bit."""
        if self.shards is not None:
            self.shards.whole.load(folder)
            self.shards.take()
            return
        read_model(self.model, self.adapter, folder)
        self.load_heads(folder)

    def load_heads(self, folder: Path) -> None:
        """Loads the heads that `save` wrote, if any."""
        if has_head(folder):
            self.add_value_head()
            read_head(self.value_head, folder)


def as_policy(name: str, model: Any, tokenizer: Any = None, reference: Any = None) -> Policy:
    """Converts a user's model into a policy.

    Args:
        name: of a new policy.
        model: a causal language model, a PEFT model (with its active adapter), a `Policy`, or a
            tuple `(model, tokenizer)` or `(model, tokenizer, adapter)`.
        tokenizer: its tokenizer, where `model` is not a tuple.
        reference: a frozen reference model.
    """
    if isinstance(model, Policy):
        return model
    adapter = None
    if isinstance(model, tuple):
        model, tokenizer, adapter = (*model, None)[:3]
    adapter = adapter or getattr(model, "active_adapter", None)
    adapter = adapter if isinstance(adapter, str) else None
    return Policy(name, model, tokenizer, adapter=adapter, reference=reference)
