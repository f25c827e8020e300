"""The shape of a model, for memory estimates: read from its folder without loading it, or that of a
public model by name or size, for plans on machines without the model."""

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.config import LoraConfig
from mrlm.config.errors import did_you_mean
from mrlm.core import tiny_model
from mrlm.core.errors import ConfigError
from mrlm.learn.policy.gguf import local_name

_SAME = {"qwen2-": "qwen2.5-", "qwen1.5-": "qwen2.5-", "meta-llama-": "llama-"}
_INSIDE = re.compile(r"-(math|coder|it|instruct|base|chat)(?=-|$)")
VOCABULARY = 128_256
"""Vocabulary size of a model that is known by its number of weights only."""


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
        hidden, inside, queries = self.hidden, self.intermediate, self.query_width
        keys, up = (hidden, self.kv_width), (hidden, inside)
        attention = ((hidden, queries), keys, keys, (queries, hidden))
        return (*attention, up, up, (inside, hidden))

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
        return shape_in(tiny_model.ARCHITECTURE | {"vocab_size": 259})
    path = Path(local_name(name)).expanduser() / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return shape_in(config) if isinstance(config, dict) else None


def shape_in(found: Mapping[str, Any]) -> ModelShape | None:
    """The shape in the content of a model's `config.json`; `None` for an unusual one."""
    keys = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
    heads = found.get("num_attention_heads")
    if not heads or any(not isinstance(found.get(key), int) for key in keys):
        return None
    size = found.get("head_dim") or found["hidden_size"] // heads
    kv_heads = found.get("num_key_value_heads") or heads
    tied = bool(found.get("tie_word_embeddings", True))
    hidden, layers, vocab, intermediate = (found[key] for key in keys)
    return ModelShape(hidden, layers, vocab, intermediate, heads * size, kv_heads * size, tied)


@functools.cache
def _public() -> dict[str, ModelShape]:
    """Shapes of public models by name, as in their `config.json`."""
    rows = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
    shapes = {}
    for name, (hidden, layers, vocab, inside, heads, kv_heads, size, tied) in rows.items():
        widths = heads * size, kv_heads * size
        shapes[name] = ModelShape(hidden, layers, vocab, inside, *widths, tied)
    return shapes


def known_shape(name: str) -> ModelShape | None:
    """The shape of a public model by its hub id or name (`Qwen/Qwen2.5-7B-Instruct`); `None` if it
    is not in the table."""
    plain = _INSIDE.sub("", name.rsplit("/", 1)[-1].lower())
    for other, ours in _SAME.items():
        plain = plain.replace(other, ours, 1) if plain.startswith(other) else plain
    shapes = _public()
    fitting = [key for key in shapes if plain == key or plain.startswith(f"{key}-")]
    return shapes[max(fitting, key=len)] if fitting else None


def find_shape(path: str) -> ModelShape | None:
    """The shape of a local folder, or of a public model by its name."""
    return shape_of(path) or known_shape(path)


def similar(name: str) -> str:
    """` (did you mean ...?)` for a name that is not in the table."""
    return did_you_mean(name.rsplit("/", 1)[-1].lower(), _public())


def parameters_of(text: str) -> int:
    """Parse `7B`, `0.5B`, `350M` or a number as a number of weights. Raises `ConfigError`: it has
    another form."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbt]?)\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"--params {text}: write it as 7B, 0.5B, 350M or a number")
    scale = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
    return round(float(match[1]) * scale[match[2].lower()])


def shape_of_size(
    count: int, layers: int | None = None, hidden: int | None = None, vocab: int | None = None
) -> ModelShape:
    """The probable shape of a model with `count` weights: that of the nearest public model, scaled.
    Given dimensions are kept. Raises `ConfigError`: no model of that size has such layers or such a
    vocabulary."""
    pattern = min(_public().values(), key=lambda shape: abs(math.log(shape.parameters / count)))
    vocab = vocab or (pattern.vocab if hidden is None else VOCABULARY)
    layers = layers or pattern.layers
    if hidden is None:
        stretch = math.sqrt(count / pattern.parameters * pattern.layers / layers)
        hidden = max(64, round(pattern.hidden * stretch / 64) * 64)
    tied = pattern.tied
    body = count - vocab * hidden * (1 if tied else 2)
    attention = 2 * hidden * hidden * (1 + pattern.kv_width / pattern.hidden)
    intermediate = round((body / layers - attention) / (3 * hidden))
    if intermediate < hidden // 4:
        raise ConfigError(
            f"--params: {count:,} weights do not make {layers} layers of width {hidden} over "
            f"{vocab:,} words; give fewer --layers, a smaller --hidden or another --vocab"
        )
    kv_width = max(1, round(hidden * pattern.kv_width / pattern.hidden))
    return ModelShape(hidden, layers, vocab, intermediate, hidden, kv_width, tied)
