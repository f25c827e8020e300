"""A model as `forward(batch) -> Outputs`, over any Hugging Face causal language model."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrlm.core.errors import ModelError
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.data.batch import Batch, Outputs, merge, pack
from mrlm.learn.fast import packed_pass
from mrlm.learn.fast.llama_modules import NotLean, take_general_way
from mrlm.learn.fast.lm_head import Distributions, TopTokens, rows_at_once
from mrlm.learn.fast.packed_pass import LeanPass, hidden_states
from mrlm.learn.policy.incoming import check_kind, live_adapter
from mrlm.learn.policy.lora import BASE, adapter_weights, changes_nothing, set_adapter_weights
from mrlm.learn.policy.own_forward import checked_pass
from mrlm.learn.policy.reference import freeze, renew, standing
from mrlm.learn.policy.weights import AUTOCAST, PolicyWeights
from mrlm.learn.policy.wrapped_modules import unwrap

REFERENCE = "reference.safetensors"
Which = Literal["own", "reference"]


class Policy(PolicyWeights):
    """A language model that completes, scores and trains: weights, tokenizer, perhaps an adapter.

    Args:
        model: a causal language model, a PEFT model shared by several policies, or a custom module
            that returns logits (B, T, V) for token ids (B, T); optionally compiled or inside
            `DistributedDataParallel`. Never wrapped, cast or copied.
        adapter: the adapter of `model` that is this policy; `None` for the model itself, `BASE` for
            the model with all adapters disabled.
        precision: compute precision; weights keep their dtype (`bf16` and `fp16` run under
            autocast).
        reference: a frozen model for `ref_logprobs`; made by `keep_reference` if `None`.
        chat: renderer of conversations; made from the tokenizer if `None`.
        lean: use the fast path for supported model families; others use their own forward.
    """

    def over(self, model: Any, adapter: str | None, name: str | None = None) -> "Policy":
        """A policy with the settings of this one and other weights."""
        return Policy(
            name or self.name,
            model,
            self.tokenizer,
            adapter=adapter,
            precision=self.precision,
            chat=self.chat,
            lean=self.lean,
        )

    def alike(self) -> "Policy":
        """Another policy with the same weights."""
        other = copy.copy(self)
        other.passes = {}
        return other

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
        lean, values = self.lean_pass, None
        if lean is not None:
            return lean.outputs(batch, self.value_head)
        with self.active() as model:
            if self.value_head is None:
                logits = self.own_forward.logits(model, batch)
            else:
                logits, states = self.own_forward.logits_and_states(model, batch, self.output_layer)
                values = self.value_head(states)
        logprobs = ops.token_logprobs(logits, batch.tokens)
        with nullcontext() if entropy_gradient else torch.no_grad():
            entropy = ops.entropy(logits)
        return Outputs(logprobs, entropy, values, Distributions(logits))

    def values(self, batch: Batch) -> Tensor:
        """Values (N,) where trained tokens are predicted, without logits; needs a value head."""
        head = self.value_head
        assert head is not None
        return head(self.hidden(batch))

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states (N, H) at the same positions."""
        lean = self.lean_pass
        if lean is not None:
            return hidden_states([(lean, batch)])
        with self.active() as model:
            if self.storage.sharded:  # a part of it alone gathers nothing
                return self.own_forward.logits_and_states(model, batch, self.output_layer)[1]
            return self.own_forward.states(model, batch, self.output_layer)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Log-probs (N,) of the trained tokens under the frozen reference."""
        if self.remote_teacher is not None:
            return self.remote_teacher.logprobs(batch.as_taught)
        self._need_reference()
        lean, batch = self._pass("reference"), batch.as_taught
        if lean is not None:
            return lean.outputs(batch).logprobs
        return ops.token_logprobs(self._logits("reference", batch), batch.tokens)

    def reference_distributions(self, batch: Batch) -> Distributions | TopTokens:
        """The frozen reference's distributions at the trained tokens, N of them."""
        if self.remote_teacher is not None:
            size = self.output_layer.weight.shape[0]
            return self.remote_teacher.distributions(batch.as_taught, size)
        self._need_reference()
        lean, batch = self._pass("reference"), batch.as_taught
        with self.scoring():
            if lean is None:
                return Distributions(self._logits("reference", batch))
            return lean.distributions(hidden_states([(lean, batch)]), batch)

    @torch.no_grad()
    def full_kl(self, batch: Batch) -> Tensor:
        """KL divergence (N,) from the reference over the whole vocabulary, at trained tokens."""
        self._need_reference()
        policy_pass, reference = self.lean_pass, self._pass("reference")
        if policy_pass is not None and reference is not None:
            return packed_pass.full_kl(policy_pass, reference, batch)
        return ops.full_kl(self._logits("own", batch), self._logits("reference", batch))

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Logits (N, V) that predict the trained tokens, at their sampling temperatures."""
        return self._logits("own", batch)

    def _need_reference(self) -> None:
        if self.adapter is None and self.reference is None:
            raise ModelError(f"policy {self.name!r} has no reference; call keep_reference first")

    def _logits(self, which: Which, batch: Batch) -> Tensor:
        """Logits (N, V) that predict the trained tokens, by the model's own forward."""
        context = self.active() if which == "own" else standing(self)
        with self.autocast(), context as model:
            return self.own_forward.logits(model, batch)

    def _pass(self, which: Which) -> LeanPass | None:
        """The fast path, if supported: built and checked at first use, and permanently
        disabled when the model is modified in a way that it would miss. Inside a user's
        `torch.autocast` the model's own forward is taken, which follows it."""
        if torch.is_autocast_enabled(self.device.type):
            return None
        if which not in self.passes:
            self.passes[which] = self._lean_pass(which) if self.lean else None
        lean_pass = self.passes[which]
        if lean_pass is not None:
            try:
                lean_pass.check()
            except NotLean as reason:
                take_general_way(self.model, reason)
                lean_pass = self.passes[which] = None
        return lean_pass

    def _lean_pass(self, which: Which) -> LeanPass | None:
        is_own = which == "own"
        model, adapter = self.model, self.adapter if is_own else self.reference_adapter
        if not is_own and self.reference is not None:
            model, adapter = self.reference, BASE

        def logprobs(batch: Batch) -> Tensor:
            return ops.token_logprobs(self._logits(which, batch), batch.tokens)

        try:
            with self.scoring():
                return checked_pass(model, adapter, AUTOCAST.get(self.precision), logprobs)
        except NotLean as reason:
            if is_own or reason.differs:
                take_general_way(model, reason)
            return None

    def keep_reference(self) -> None:
        """Freezes the current policy as the reference, unless it has one."""
        if self.reference is not None or self.reference_adapter or self.adapter == BASE:
            return
        # an adapter that is still a no-op uses the base with all adapters disabled
        if self.adapter is None or not changes_nothing(self.model, self.adapter):
            freeze(self)

    def save_reference(self, folder: Path) -> None:
        """Writes the reference if it changed; an unchanged one is rebuilt on load."""
        from safetensors.torch import save_file, save_model

        if not self.reference_moved:
            return
        folder.mkdir(parents=True, exist_ok=True)
        file = str(folder / REFERENCE)
        if self.adapter is None:
            save_model(self.reference, file)
        else:
            save_file(adapter_weights(self.model, self.reference_adapter), file)

    @torch.no_grad()
    def load_reference(self, folder: Path) -> None:
        """Loads the reference that `save_reference` wrote, bit by bit, if any."""
        from safetensors.torch import load_file, load_model

        file = folder / REFERENCE
        if not file.is_file():
            return
        renew(self)
        if self.adapter is None:
            load_model(self.reference, file)
        else:
            set_adapter_weights(self.model, self.reference_adapter, load_file(file))


def scored(policy: Policy, ids: Sequence[int], most: int) -> list[list[tuple[int, float, int]]]:
    """For every token of a text but the first the (id, log-prob, rank from 1) of it and of the
    `most` likeliest, given the tokens before."""
    if len(ids) < 2:
        return []
    turn = Turn("", policy.name, [*ids[:1]], [*ids[1:]])
    batch = pack(merge([turn]), None, policy.pad_id, policy.device)
    rows: list[list[tuple[int, float, int]]] = []
    with policy.scoring():
        spread = policy.forward(batch).distributions
        assert spread is not None
        size = rows_at_once(spread.vocabulary, spread.states.device)
        for start in range(0, len(spread), size):
            logprobs = spread[slice(start, start + size)].logprobs()
            own = batch.tokens[start : start + size, None]
            number = logprobs.gather(1, own)
            rank = 1 + (logprobs > number).sum(-1, keepdim=True)
            top, tokens = logprobs.topk(min(most, logprobs.shape[1]))
            ranks = torch.arange(1, top.shape[1] + 1, device=top.device).expand_as(top)
            columns = [(tokens, own), (top, number), (ranks, rank)]
            table = (torch.cat(pair, 1).tolist() for pair in columns)
            for several in zip(*table, strict=True):
                unique = {entry[0]: entry for entry in zip(*several, strict=True)}
                rows.append(list(unique.values()))
    return rows


def random_forward(policy: Policy, dropout: bool | None = None) -> bool:
    """Whether a policy's forward in training mode is random: the dropout of its model, if
    `dropout` (by default the policy's own) lets it act, or that of its adapter."""
    lean = policy.lean_pass
    inside = _dropouts(policy, True) if lean is None else lean.dropouts
    if dropout is None:
        dropout = policy.dropout and lean is None  # the fast path has none of the model's own
    return any(module.p > 0 for module in inside) or (dropout and own_dropout(policy))


def stop_adapter_dropout(policy: Policy) -> None:
    """Sets the dropout of a policy's adapters to 0, in its model."""
    for module in _dropouts(policy, True):
        module.p = 0.0


def own_dropout(policy: Policy) -> bool:
    """Whether a policy's model has dropout, apart from adapters."""
    config = getattr(policy.model, "config", None)
    attention = float(getattr(config, "attention_dropout", 0.0) or 0.0)
    return attention > 0 or any(module.p > 0 for module in _dropouts(policy, False))


def _dropouts(policy: Policy, of_adapters: bool) -> Iterator[nn.Dropout]:
    for name, module in policy.model.named_modules():
        if isinstance(module, nn.Dropout) and ("lora_dropout" in name) is of_adapters:
            yield module


def as_policy(name: str, model: Any, tokenizer: Any = None, reference: Any = None) -> Policy:
    """Converts a user's model into a policy.

    Args:
        name: of a new policy.
        model: a causal language model, a PEFT model (with its active adapter), a `Policy`, or a
            tuple `(model, tokenizer)` or `(model, tokenizer, adapter)`.
        tokenizer, reference: its tokenizer, where `model` is not a tuple, and a frozen reference
            model.

    Raises:
        ModelError: the model has no tokenizer.
    """
    if isinstance(model, Policy):
        return model
    adapter = None
    if isinstance(model, tuple):
        model, tokenizer, adapter = (*model, None)[:3]
    if tokenizer is None:
        raise ModelError(
            f"policy {name!r} has a model and no tokenizer; give tokenizer=, or (model, tokenizer)"
        )
    bare = unwrap(model)[0]
    if adapter is None:
        adapter = live_adapter(bare)
    elif adapter in getattr(bare, "peft_config", ()):
        check_kind(bare.peft_config[adapter], f"adapter {adapter!r}")
    return Policy(name, model, tokenizer, adapter=adapter, reference=reference)
