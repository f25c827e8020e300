"""A model as `forward(batch) -> Outputs`, over any Hugging Face causal language model: whole, or
one LoRA adapter of a base that several policies share. It knows nothing of rewards or
optimisers."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrlm.core.chat import Chat
from mrlm.core.errors import ModelError
from mrlm.learn import ops
from mrlm.learn.batch import Batch, Outputs
from mrlm.learn.loading import import_peft, quietly
from mrlm.learn.value_head import ValueHead

Precision = Literal["fp32", "bf16", "fp16"]
BASE = ""
"""The adapter name of a policy that is the shared base itself, with every adapter off."""
_ADAPTER = re.compile(r"\.(?:lora_\w+|ia3_\w+|modules_to_save)\.(\w[^.]*)")
AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Policy:
    """Weights that speak.

    Args:
        name: the policy's name.
        model: a causal language model, or a PEFT model that several policies share. Never wrapped,
            cast or copied.
        tokenizer: its tokenizer.
        adapter: the adapter of `model` that is this policy; `None` for the model itself, `BASE` for
            the model with every adapter off.
        precision: what is computed in; weights keep their own type (`bf16` and `fp16` run under
            autocast).
        reference: a frozen model for `ref_logprobs`; for an adapter, the base with all adapters off
            serves.
        chat: renderer of its conversations; made from the tokenizer when `None`.
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
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.precision: Precision = precision
        self.reference: Any = reference
        self.chat: Chat = chat or Chat(tokenizer)
        self.value_head: ValueHead | None = None
        accepted = inspect.signature(_causal(model).forward).parameters
        free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
        self.takes_positions: bool = "position_ids" in accepted or (
            free and _has_position_ids(model)
        )
        self.takes_keep: bool = "logits_to_keep" in accepted

    # -- what it is --------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def max_context(self) -> int:
        """How many tokens the model can read."""
        config = self.model.config
        for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
            if getattr(config, name, None):
                return int(getattr(config, name))
        return 1 << 20

    @property
    def pad_id(self) -> int:
        """An id to fill with; masks say where, so it may be the end token."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id or 0 if pad is None else pad

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a completion."""
        found: set[int] = set()
        generation = getattr(self.model, "generation_config", None)
        for value in (self.tokenizer.eos_token_id, generation and generation.eos_token_id):
            found.update(value if isinstance(value, list | tuple) else [value])  # pyright: ignore
        found.discard(None)  # pyright: ignore[reportArgumentType]
        return frozenset(found)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are this policy's own: the model's, or its adapter's; and its
        heads'."""
        named = dict(self.model.named_parameters())
        if self.adapter is not None:
            named = {key: value for key, value in named.items() if _adapter_of(key) == self.adapter}
        if self.value_head is not None:
            heads = self.value_head.named_parameters()
            named |= {f"value_head.{key}": value for key, value in heads}
        return named

    def parameters(self) -> list[nn.Parameter]:
        """Those of `named_parameters` that take gradients."""
        return [value for value in self.named_parameters().values() if value.requires_grad]

    def add_value_head(self) -> None:
        """Give the policy a value head, if it has none."""
        if self.value_head is None:
            width = self.model.get_output_embeddings().weight.shape[-1]
            self.value_head = ValueHead(width).to(self.device)

    def keep_reference(self) -> None:
        """Make sure there is something frozen to compare with: nothing to do for an adapter; else a
        copy of the model as it is now."""
        if self.adapter is None and self.reference is None:
            self.reference = copy.deepcopy(self.model).eval().requires_grad_(False)

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight does."""
        named = self.named_parameters()
        if self.adapter == BASE:
            named = {k: v for k, v in self.model.named_parameters() if _adapter_of(k) is None}
        with torch.no_grad():
            sums = [value.detach().double().sum() for value in named.values()]
            squares = [value.detach().double().square().sum() for value in named.values()]
            return (float(torch.stack(sums).sum()), float(torch.stack(squares).sum()))

    # -- what it computes --------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[Any]:
        """The model with this policy's weights switched on, under the policy's precision."""
        if self.adapter:
            switch_adapter(self.model, self.adapter)
        bare = without_adapters(self.model) if self.adapter == BASE else nullcontext()
        with self._autocast(), bare:
            yield self.model

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Without dropout and without gradients; the model's mode is put back afterwards."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)

    def forward(self, batch: Batch, entropy_gradient: bool = False) -> Outputs:
        """Log-probs, entropy and (with a value head) values of the trained tokens, each (N,).

        Logits are computed only in the columns where some row has a trained token, and divided by
        the temperature each token was drawn with.
        """
        with self.active() as model:
            logits, hidden = self._logits(model, batch)
        selected = (
            logits[batch.sequence, batch.column].float() / batch.temperature[:, None]
        )  # (N, V)
        logprobs = ops.token_logprobs(selected, batch.tokens)
        with nullcontext() if entropy_gradient else torch.no_grad():
            entropy = ops.entropy(selected)
        values = None
        if self.value_head is not None:
            values = self.value_head(hidden[batch.sequence, batch.column])
        return Outputs(logprobs, entropy, values)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Log-probs (N,) of the trained tokens under the frozen reference."""
        if self.adapter is not None:
            with self._autocast(), without_adapters(self.model):
                logits, _ = self._logits(self.model, batch)
            if self.adapter:
                switch_adapter(self.model, self.adapter)
        elif self.reference is not None:
            with self._autocast():
                logits, _ = self._logits(self.reference, batch)
        else:
            raise ModelError(
                f"policy {self.name!r} has no reference to compare with; call keep_reference first"
            )
        selected = logits[batch.sequence, batch.column].float() / batch.temperature[:, None]
        return ops.token_logprobs(selected, batch.tokens)

    def _logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, K, V) and the hidden states (B, K, H) they were read from, at the columns
        `batch.keep`."""
        inputs: dict[str, Any] = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "use_cache": False,
        }
        if self.takes_positions:
            inputs["position_ids"] = batch.position_ids
        if self.takes_keep:
            inputs["logits_to_keep"] = batch.keep
        seen: list[Tensor] = []
        hook = None
        if self.value_head is not None and model is self.model:
            head = model.get_output_embeddings()
            hook = head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            logits = model(**inputs).logits
        finally:
            if hook is not None:
                hook.remove()
        hidden = seen[0] if seen else logits
        if not self.takes_keep:
            logits = logits[:, batch.keep]
            hidden = hidden[:, batch.keep] if seen else logits
        return logits, hidden

    def _autocast(self) -> Any:
        dtype = AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    # -- what is kept ------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads: the model (or the adapter), the tokenizer,
        the generation settings, and the heads beside them."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            with quietly():
                self.model.save_pretrained(folder)
        else:
            peft = import_peft()
            state = peft.get_peft_model_state_dict(self.model, adapter_name=self.adapter)
            tensors = {key: value.detach().contiguous() for key, value in state.items()}
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            config = copy.copy(self.model.peft_config[self.adapter])
            config.inference_mode = True
            config.base_model_name_or_path = (
                config.base_model_name_or_path or _causal(self.model).name_or_path
            )
            config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.value_head is not None:
            save_file(self.value_head.state_dict(), folder / "value_head.safetensors")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take the weights that `save` wrote, in place, bit by bit."""
        from safetensors.torch import load_file

        if self.adapter is None:
            with quietly():
                saved = type(self.model).from_pretrained(folder, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
        else:
            tensors = load_file(folder / "adapter_model.safetensors")
            import_peft().set_peft_model_state_dict(self.model, tensors, adapter_name=self.adapter)
        heads = folder / "value_head.safetensors"
        if heads.is_file():
            self.add_value_head()
            assert self.value_head is not None
            self.value_head.load_state_dict(load_file(heads))


def add_adapter(model: Any, name: str, settings: Mapping[str, Any]) -> Any:
    """A new LoRA adapter called `name` on `model` (wrapped at the first call); returns the PEFT
    model.

    Args:
        model: a causal language model, or a PEFT model.
        name: name of the adapter.
        settings: `r`, `alpha`, `dropout`, `target_modules`.
    """
    peft = import_peft()
    config = peft.LoraConfig(
        r=settings["r"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=settings["target_modules"],
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of one library about the other
        if not isinstance(model, peft.PeftModel):
            return peft.get_peft_model(model, config, adapter_name=name)
        model.add_adapter(name, config)
    _thaw(model)
    return model


def switch_adapter(model: Any, name: str) -> None:
    """Make `name` the adapter in use. PEFT freezes every other adapter when it switches; they are
    all left trainable here, since each belongs to a learner of its own."""
    if model.active_adapter != name or list(model.base_model.active_adapters) != [name]:
        model.set_adapter(name)
        _thaw(model)


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """The base alone. PEFT comes back with every adapter frozen but the one in use."""
    try:
        with model.disable_adapter():
            yield
    finally:
        _thaw(model)


def _thaw(model: Any) -> None:
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            parameter.requires_grad_(True)


def _adapter_of(key: str) -> str | None:
    """The adapter that a parameter of a PEFT model belongs to; `None` for the base's own."""
    found = _ADAPTER.search(key)
    return found[1] if found else None


def _causal(model: Any) -> Any:
    """The causal language model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _has_position_ids(model: Any) -> bool:
    backbone = getattr(_causal(model), _causal(model).base_model_prefix, None)
    return backbone is not None and "position_ids" in inspect.signature(backbone.forward).parameters
