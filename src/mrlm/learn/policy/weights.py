"""The weights of a policy, with its tokenizer and heads. Nothing is scored here."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrlm.core.chat import Chat
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.fast.packed_pass import LeanPass
from mrlm.learn.fast.repeatable import without_cudnn
from mrlm.learn.policy.loading import require_weights
from mrlm.learn.policy.lora import BASE, adapter_of, switch_adapter, without_adapters
from mrlm.learn.policy.modes import restored_modes
from mrlm.learn.policy.own_forward import OwnForward, rounds_to_tf32
from mrlm.learn.policy.quantized import num_weights, use_dequantized
from mrlm.learn.policy.remote_teacher import RemoteTeacher
from mrlm.learn.policy.saved_model import read_heads, read_model, write_model
from mrlm.learn.policy.storage import Storage
from mrlm.learn.policy.wrapped_modules import interface_of, modules_of, output_layer, unwrap

Precision = Literal["fp32", "bf16", "fp16"]
AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class ValueHead(nn.Module):
    """`V(h) = w.h + b`, initialised to zero, so that the first advantages equal the rewards.

    Args:
        hidden_size: width of the hidden states.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear: nn.Linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (...), in float32 whatever the policy's precision."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.linear(hidden.float()).squeeze(-1)


class PolicyWeights:
    """Base of policies: the weights. Arguments are those of `Policy`."""

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
        bare, wrapper = unwrap(model)
        for loaded in (bare, reference):
            if loaded is not None:
                use_dequantized(loaded)
        self.model: Any = bare
        self.across: Across | None = None if wrapper is None else Across(wrapper)
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.precision: Precision = precision
        self.reference: Any = reference
        self.reference_adapter: str = BASE
        self.reference_moved: bool = False
        self.remote_teacher: RemoteTeacher | None = None
        """A server that scores in place of a reference."""
        self.chat: Chat = chat or Chat(tokenizer)
        self.value_head: ValueHead | None = None
        self.lean: bool = lean and precision != "fp16"
        self.dropout: bool = False
        """Whether the model's own dropout acts in updates, and not only that of adapters."""
        self.other_ends: frozenset[int] = frozenset()
        """Stop token ids in addition to the model's own."""
        self.shards: Storage[Any] | None = None
        self.own_forward: OwnForward = OwnForward(interface_of(self.model))
        self.passes: dict[str, LeanPass | None] = {}

    @property
    def storage(self) -> Storage[Any]:
        return self.shards or Storage(self, self.model.parameters, lambda: own_parameters(self))

    @property
    def device(self) -> torch.device:
        return self.storage.device

    @property
    def coarse(self) -> bool:
        """Whether matrix products use 16 bits or fewer (also in float32 on a GPU with TF32): two
        exact ways to compute a log-prob then differ by hundredths."""
        if self.precision != "fp32" or self.model.dtype in (torch.bfloat16, torch.float16):
            return True
        return rounds_to_tf32(self.device)

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
        ids: set[int] = {*self.other_ends, self.chat.control.end_id}  # pyright: ignore
        generation = getattr(self.model, "generation_config", None)
        for value in (self.tokenizer.eos_token_id, generation and generation.eos_token_id):
            ids.update(value if isinstance(value, list | tuple) else [value])  # pyright: ignore
        ids.discard(None)  # pyright: ignore[reportArgumentType]
        return frozenset(ids)

    def modules(self) -> list[nn.Module]:
        """All modules with weights: the model, its heads, and the reference if there is one."""
        parts = (self.model, self.value_head, self.reference)
        return [module for module in parts if module is not None]

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the model or its adapter, and of its heads."""
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

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight changes."""
        return self.storage.fingerprint()

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yields the model with this policy's weights active, under its precision."""
        if self.adapter:
            switch_adapter(self.model, self.adapter)
        bare = without_adapters(self.model) if self.adapter == BASE else nullcontext()
        with self.autocast(), bare:
            yield self.model

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Disables dropout and gradients; restores the modes of the modules afterwards."""
        changed = any(module.training for module in modules_of(self.model, self.adapter))
        with restored_modes(self.model) if changed else nullcontext(), torch.no_grad():
            if changed:
                self.model.eval()
            try:
                yield
            finally:
                self.storage.reshard()

    @cached_property
    def size(self) -> int:
        """Number of parameters of the model, base included."""
        return num_weights(self.model)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context of its precision, and of attention without cuDNN."""
        dtype = AUTOCAST.get(self.precision)
        cast = nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)
        with cast, without_cudnn(self.device):
            yield

    def save(self, folder: Path, heads: bool = True) -> None:
        """Writes a folder that `from_pretrained` loads, with tokenizer, settings and heads."""
        whole = self.storage.whole
        write_model(whole.model, whole.adapter, folder, whole.value_head if heads else None)
        self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Loads the weights that `save` wrote, in place, bit by bit."""
        whole = self.storage.whole
        read_model(whole.model, whole.adapter, folder)
        if whole.value_head is not None and read_heads(folder) is None:
            require_weights(str(folder), whole.value_head.state_dict())
        whole.load_heads(folder)
        self.storage.take()

    def load_heads(self, folder: Path) -> None:
        """Loads the heads that `save` wrote, if any."""
        heads = read_heads(folder)
        if heads is not None:
            self.add_value_head()
            assert self.value_head is not None
            require_weights(str(folder), {*self.value_head.state_dict()} - {*heads})
            self.value_head.load_state_dict(heads)


def own_parameters(policy: PolicyWeights) -> Iterable[Tensor]:
    """The parameters that tell a policy from others: those of its adapter, or of the base alone."""
    if policy.adapter != BASE:
        return policy.named_parameters().values()
    return (v for k, v in policy.model.named_parameters() if adapter_of(k) is None)
