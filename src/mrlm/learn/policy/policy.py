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
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.critics.value_head import ValueHead
from mrlm.learn.data.batch import Batch, Grid, Outputs, Sample, pack
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.fast import full_kl as full_kl_module
from mrlm.learn.fast.llama_modules import NotLean, take_general_way
from mrlm.learn.fast.packed_pass import LeanPass, hidden_states
from mrlm.learn.policy.loading import import_peft, quietly
from mrlm.learn.policy.lora import (
    BASE,
    adapter_of,
    adapter_weights,
    switch_adapter,
    without_adapters,
    write_config,
)
from mrlm.learn.policy.reference import keep, load_reference, save_reference, standing
from mrlm.learn.policy.shards import Shards
from mrlm.learn.policy.wrapped_modules import (
    Interface,
    interface_of,
    logits_of,
    output_layer,
    unwrap,
)

log: logging.Logger = logging.getLogger("mrlm")

Precision = Literal["fp32", "bf16", "fp16"]
AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
HEADS = "value_head.safetensors"
"""File name of the heads in a saved folder."""
AGREEMENT: dict[torch.dtype, float] = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference between log-probs of the fast and the general forward, by compute dtype."""
AGREEMENT |= dict.fromkeys((torch.bfloat16, torch.float16), 0.3)


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
        self.interface: Interface = interface_of(self.model)

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
        with self.active() as model:
            logits, hidden = self._logits(model, batch)
        selected = self._at_tokens(logits, batch)
        logprobs = ops.token_logprobs(selected, batch.tokens)
        with nullcontext() if entropy_gradient else torch.no_grad():
            entropy = ops.entropy(selected)
        values = None
        if self.value_head is not None:
            values = self.value_head(hidden[batch.sequence, self._grid(batch).column])
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
        # sharded and custom models return hidden states from their own forward only
        if self.shards is not None or not self.interface.cache:
            with self.active() as model:
                _, hidden = self._logits(model, batch)
            return hidden[batch.sequence, self._grid(batch).column]
        grid = batch.grid
        offered = {"attention_mask": grid.attention_mask, "position_ids": grid.position_ids}
        with self.active() as model:
            causal = model.get_base_model() if hasattr(model, "get_base_model") else model
            found = self.interface.call(
                causal.base_model, grid.input_ids, **offered, use_cache=False
            )
            hidden = found.last_hidden_state  # (B, T, H)
        return hidden[batch.sequence, grid.keep[grid.column]]

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
            logits, _ = self._logits(model, batch)
        return ops.full_kl(self._at_tokens(logits, batch), self._reference_logits(batch))

    def _need_reference(self) -> None:
        if self.adapter is None and self.reference is None:
            raise ModelError(f"policy {self.name!r} has no reference; call keep_reference first")

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        return ops.token_logprobs(self._reference_logits(batch), batch.tokens)

    def _reference_logits(self, batch: Batch) -> Tensor:
        """Logits (N, V) of the frozen reference that predict the trained tokens."""
        with self._autocast(), standing(self) as model:
            logits, _ = self._logits(model, batch)
        return self._at_tokens(logits, batch)

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
        try:
            lean = LeanPass(model, adapter, AUTOCAST.get(self.precision))
        except NotLean as reason:
            if own:
                take_general_way(model, reason)
            return None
        probe = _probe(model.config.vocab_size, self.device)
        with self.scoring():
            found = lean.outputs(probe).logprobs
            if own:
                heads, self.value_head = self.value_head, None
                self._passes["own"] = None
                expected = self.forward(probe).logprobs
                self.value_head = heads
            else:
                expected = self._reference_logprobs(probe)
        gap = float((found - expected).abs().max())
        if gap <= AGREEMENT[lean.forward.dtype]:
            return lean
        take_general_way(model, f"log-probs of the fast path differ by {gap:.2g}")
        return None

    def _logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, K, V) and the hidden states (B, K, H) behind them, at the columns
        `batch.grid.keep`."""
        interface = self.interface
        grid = self._grid(batch)
        offered = {
            "attention_mask": grid.attention_mask,
            "position_ids": grid.position_ids,
            "logits_to_keep": grid.keep,
            "use_cache": False,
        }
        seen: list[Tensor] = []
        hook = None
        if self.value_head is not None and model is self.model:
            hook = self.output_layer.register_forward_pre_hook(
                lambda _, arguments: seen.append(arguments[0])
            )
        try:
            logits = logits_of(interface.call(model, grid.input_ids, **offered))
        finally:
            if hook is not None:
                hook.remove()
        hidden = seen[0] if seen else logits
        if not interface.keep:
            logits = logits[:, grid.keep]
            hidden = hidden[:, grid.keep] if seen else logits
        return logits, hidden

    def _grid(self, batch: Batch) -> Grid:
        """The batch as the grid that the model takes."""
        return batch.grid if self.interface.mask else batch.right_padded

    def _at_tokens(self, logits: Tensor, batch: Batch) -> Tensor:
        """Logits (N, V) in float32 that predict the trained tokens, gathered from those of a
        grid."""
        selected = logits[batch.sequence, self._grid(batch).column].float()
        return selected / batch.temperature[:, None]

    def _autocast(self) -> Any:
        dtype = AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    # -- checkpoints -------------------------------------------------------------------------------

    def save(self, folder: Path, heads: bool = True) -> None:
        """Writes a folder that `from_pretrained` loads: the model (or adapter), tokenizer,
        generation settings, and heads."""
        from safetensors.torch import save_file

        if self.shards is not None:
            self.shards.whole.save(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            with quietly():
                self.model.save_pretrained(folder)
        else:
            tensors = adapter_weights(self.model, self.adapter)
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            config = copy.copy(self.model.peft_config[self.adapter])
            config.inference_mode = True
            config.base_model_name_or_path = (
                config.base_model_name_or_path or _causal(self.model).name_or_path
            )
            write_config(config, folder)
        self.tokenizer.save_pretrained(folder)
        if heads and self.value_head is not None:
            save_file(self.value_head.state_dict(), folder / HEADS)

    def save_reference(self, folder: Path) -> None:
        """Writes the reference if it changed during training; an unchanged one is rebuilt on
        load."""
        save_reference(self, folder)

    def load_reference(self, folder: Path) -> None:
        """Loads the reference that `save_reference` wrote, bit by bit, if any."""
        load_reference(self, folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Loads the weights that `save` wrote, in place, bit by bit."""
        from safetensors.torch import load_file

        if self.shards is not None:
            self.shards.whole.load(folder)
            self.shards.take()
            return
        if self.adapter is None:
            with quietly():
                saved = type(self.model).from_pretrained(folder, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
        else:
            tensors = load_file(folder / "adapter_model.safetensors")
            import_peft().set_peft_model_state_dict(self.model, tensors, adapter_name=self.adapter)
        self.load_heads(folder)

    def load_heads(self, folder: Path) -> None:
        """Loads the heads that `save` wrote, if any."""
        from safetensors.torch import load_file

        if (folder / HEADS).is_file():
            self.add_value_head()
            assert self.value_head is not None
            self.value_head.load_state_dict(load_file(folder / HEADS))


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


def _causal(model: Any) -> Any:
    """The causal language model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _probe(vocabulary: int, device: torch.device) -> Batch:
    """Two short samples with a common prefix, to compare the two forwards."""
    samples: list[Sample] = []
    for number in range(2):
        ids = [(37 * place + 5 + (place > 5) * number) % vocabulary for place in range(14)]
        turn = Turn("probe", "probe", ids[:8], ids[8:])
        samples.append(Sample(ids, [turn], [8], number, number))
    return pack(samples, device=device)
