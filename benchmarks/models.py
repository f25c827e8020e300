"""Models of fixed shapes with random weights, and tokenizers of exactly their vocabulary: one word
is one token, so that texts have as many tokens as is asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, UNKNOWN, START, END, NEVER = "<|pad|>", "<|unk|>", "<|start|>", "<|end|>", "<|never|>"
RESERVED = 4
"""Ids of the first four; `NEVER` has the first id that no model has a logit for."""

TALK = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
ROWS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of the Qwen2 family with tied embeddings."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int

    @property
    def body(self) -> int:
        """Weights that every token is multiplied with, the head aside."""
        head_width = self.width // self.heads
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_heads * head_width
        return self.layers * (attention + 3 * self.width * self.inner)

    @property
    def head(self) -> int:
        """Weights of the head, which are the embeddings too."""
        return self.vocab * self.width

    @property
    def weights(self) -> int:
        """All that a decoding step has to read."""
        return self.body + self.head


SHAPES = {
    "tiny": Shape(256, 64, 2, 2, 1, 128),
    "0.4M": Shape(512, 128, 2, 4, 2, 384),
    "1M": Shape(1024, 128, 4, 4, 2, 384),
    "15M": Shape(8192, 384, 6, 6, 2, 1280),
    "120M": Shape(32000, 768, 12, 12, 4, 2560),
    "0.5B": Shape(151936, 896, 24, 14, 2, 4864),
    "8B": Shape(128256, 4096, 32, 32, 8, 14336),
}


def make_model(shape: str, seed: int = 0, device: str = "cpu", dtype: Any = None) -> Any:
    """A model of a shape, float32 unless a dtype is given. Nothing ends what it writes: it declares
    no end token."""
    config = config_of(SHAPES[shape])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen2ForCausalLM(config)
    model.config._name_or_path = f"random-{shape}"
    return model.to(device=device, dtype=dtype or torch.float32)


def config_of(size: Shape) -> Qwen2Config:
    """The settings of a model of a shape."""
    return Qwen2Config(
        vocab_size=size.vocab,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        intermediate_size=size.inner,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def make_tokenizer(shape: str, endless: bool = True) -> Any:
    """A tokenizer for a shape.

    Args:
        shape: name of the shape.
        endless: its end token has an id that the model has no logit for, so that no side can ever
            draw it and completions have exactly the length that is asked for. `False`: the end
            token is an ordinary one, for written rows.
    """
    vocab = SHAPES[shape].vocab
    words = {f"w{index}": index for index in range(RESERVED, vocab)}
    special = {PAD: 0, UNKNOWN: 1, START: 2, END: 3}
    core = Tokenizer(WordLevel(special | words, unk_token=UNKNOWN))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=NEVER if endless else END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TALK if endless else ROWS
    assert tokenizer.eos_token_id == (vocab if endless else 3)
    return tokenizer


def words_of(rng: random.Random, shape: str, count: int) -> str:
    """A text of exactly `count` tokens."""
    return " ".join(f"w{rng.randrange(RESERVED, SHAPES[shape].vocab)}" for _ in range(count))
