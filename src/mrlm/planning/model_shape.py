"""The shape of a model, for memory estimates, read without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.config import LoraConfig
from mrlm.core import tiny_model


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a model.

    Args:
        hidden, layers, vocab, intermediate: as in the model's `config.json`.
        query_width, kv_width: heads times head size, of queries and of keys.
        tied: whether the output layer is the embedding.
    """

    hidden: int
    layers: int
    vocab: int
    intermediate: int
    query_width: int
    kv_width: int
    tied: bool = True

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of the linear maps of a layer."""
        up = (self.hidden, self.intermediate)
        keys = (self.hidden, self.kv_width)
        return (
            (self.hidden, self.query_width),
            keys,
            keys,
            (self.query_width, self.hidden),
            up,
            up,
            (self.intermediate, self.hidden),
        )

    @property
    def parameters(self) -> int:
        """Number of weights without norms and biases."""
        return self.body + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def body(self) -> int:
        """Weights of the linear maps of all layers, without embedding and head."""
        return self.layers * sum(rows * columns for rows, columns in self.linears)

    def adapter(self, lora: LoraConfig) -> int:
        """Weights of a LoRA adapter on every linear map."""
        return self.layers * sum(lora.r * (rows + columns) for rows, columns in self.linears)


def shape_of(name: str) -> ModelShape | None:
    """The shape of the embedded model or of a Hugging Face folder; `None` for a hub id, which is
    not looked up, and for folders of an unusual format."""
    if name == tiny_model.NAME:
        return _shape(tiny_model.ARCHITECTURE | {"vocab_size": 259})
    path = Path(name).expanduser() / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _shape(found) if isinstance(found, dict) else None


def _shape(found: Mapping[str, Any]) -> ModelShape | None:
    keys = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
    heads = found.get("num_attention_heads")
    if not heads or any(not isinstance(found.get(key), int) for key in keys):
        return None
    size = found.get("head_dim") or found["hidden_size"] // heads
    kv_heads = found.get("num_key_value_heads") or heads
    tied = bool(found.get("tie_word_embeddings", True))
    hidden, layers, vocab, intermediate = (found[key] for key in keys)
    return ModelShape(hidden, layers, vocab, intermediate, heads * size, kv_heads * size, tied)
