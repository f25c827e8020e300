"""Requests for engines, and their answers."""

from __future__ import annotations

from typing import Any

from mrlm import SamplingParams
from mrlm.core.types import Completion
from mrlm.play.engine import Request

SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}


def ask(prompt: list[int], seed: int = 0, **sampling: Any) -> Request:
    return Request("policy", prompt, SamplingParams(**{"max_new_tokens": 12, **sampling}), seed)


def ids_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]
