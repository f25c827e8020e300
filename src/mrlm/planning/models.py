"""Shapes of public models by name, for plans on machines without the model: facts of their
`config.json`, no weights."""

from __future__ import annotations

import math
import re

from mrlm.config.errors import did_you_mean
from mrlm.core.errors import ConfigError
from mrlm.planning.model_shape import ModelShape

Row = tuple[int, int, int, int, int, int, int, bool]

KNOWN: dict[str, Row] = {
    "qwen2.5-0.5b": (896, 24, 151936, 4864, 14, 2, 64, True),
    "qwen2.5-1.5b": (1536, 28, 151936, 8960, 12, 2, 128, True),
    "qwen2.5-3b": (2048, 36, 151936, 11008, 16, 2, 128, True),
    "qwen2.5-7b": (3584, 28, 152064, 18944, 28, 4, 128, False),
    "qwen2.5-14b": (5120, 48, 152064, 13824, 40, 8, 128, False),
    "qwen2.5-32b": (5120, 64, 152064, 27648, 40, 8, 128, False),
    "qwen2.5-72b": (8192, 80, 152064, 29568, 64, 8, 128, False),
    "qwen3-0.6b": (1024, 28, 151936, 3072, 16, 8, 128, True),
    "qwen3-1.7b": (2048, 28, 151936, 6144, 16, 8, 128, True),
    "qwen3-4b": (2560, 36, 151936, 9728, 32, 8, 128, True),
    "qwen3-8b": (4096, 36, 151936, 12288, 32, 8, 128, False),
    "qwen3-14b": (5120, 40, 151936, 17408, 40, 8, 128, False),
    "qwen3-32b": (5120, 64, 151936, 25600, 64, 8, 128, False),
    "qwen-7b": (4096, 32, 151936, 11008, 32, 32, 128, False),
    "qwen-14b": (5120, 40, 152064, 13696, 40, 40, 128, False),
    "llama-2-7b": (4096, 32, 32000, 11008, 32, 32, 128, False),
    "llama-2-13b": (5120, 40, 32000, 13824, 40, 40, 128, False),
    "llama-2-70b": (8192, 80, 32000, 28672, 64, 8, 128, False),
    "llama-3-8b": (4096, 32, 128256, 14336, 32, 8, 128, False),
    "llama-3-70b": (8192, 80, 128256, 28672, 64, 8, 128, False),
    "llama-3.1-8b": (4096, 32, 128256, 14336, 32, 8, 128, False),
    "llama-3.1-70b": (8192, 80, 128256, 28672, 64, 8, 128, False),
    "llama-3.1-405b": (16384, 126, 128256, 53248, 128, 8, 128, False),
    "llama-3.2-1b": (2048, 16, 128256, 8192, 32, 8, 64, True),
    "llama-3.2-3b": (3072, 28, 128256, 8192, 24, 8, 128, True),
    "llama-3.3-70b": (8192, 80, 128256, 28672, 64, 8, 128, False),
    "mistral-7b": (4096, 32, 32768, 14336, 32, 8, 128, False),
    "mistral-nemo": (5120, 40, 131072, 14336, 32, 8, 128, False),
    "mistral-small-24b": (5120, 40, 131072, 32768, 32, 8, 128, False),
    "gemma-2-2b": (2304, 26, 256000, 9216, 8, 4, 256, True),
    "gemma-2-9b": (3584, 42, 256000, 14336, 16, 8, 256, True),
    "gemma-2-27b": (4608, 46, 256000, 36864, 32, 16, 128, True),
    "gemma-3-1b": (1152, 26, 262144, 6912, 4, 1, 256, True),
    "gemma-3-4b": (2560, 34, 262208, 10240, 8, 4, 256, True),
    "gemma-3-12b": (3840, 48, 262208, 15360, 16, 8, 256, True),
    "gemma-3-27b": (5376, 62, 262208, 21504, 32, 16, 128, True),
    "smollm2-135m": (576, 30, 49152, 1536, 9, 3, 64, True),
    "smollm2-360m": (960, 32, 49152, 2560, 15, 5, 64, True),
    "smollm2-1.7b": (2048, 24, 49152, 8192, 32, 32, 64, True),
    "tinyllama-1.1b": (2048, 22, 32000, 5632, 32, 4, 64, False),
}
"""name -> hidden, layers, vocabulary, intermediate, heads, heads of keys, size of a head, tied."""

_SAME = {"qwen2-": "qwen2.5-", "qwen1.5-": "qwen2.5-", "meta-llama-": "llama-"}
_INSIDE = re.compile(r"-(math|coder|it|instruct|base|chat)(?=-|$)")
VOCABULARY = 128_256
"""Vocabulary size of a model that is known by its number of weights only."""


def known_shape(name: str) -> ModelShape | None:
    """The shape of a public model by its hub id or name (`Qwen/Qwen2.5-7B-Instruct`); `None` if it
    is not in the table."""
    plain = _INSIDE.sub("", name.rsplit("/", 1)[-1].lower())
    for other, ours in _SAME.items():
        plain = plain.replace(other, ours, 1) if plain.startswith(other) else plain
    fitting = [key for key in KNOWN if plain == key or plain.startswith(f"{key}-")]
    return _shape(KNOWN[max(fitting, key=len)]) if fitting else None


def similar(name: str) -> str:
    """` (did you mean ...?)` for a name that is not in the table."""
    return did_you_mean(name.rsplit("/", 1)[-1].lower(), KNOWN)


def parameters_of(text: str) -> int:
    """Parse `7B`, `0.5B`, `350M` or a number as a number of weights.

    Raises:
        ConfigError: it has another form.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbt]?)\s*", text, re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"--params {text}: write it as 7B, 0.5B, 350M or a number")
    scale = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
    return round(float(found[1]) * scale[found[2].lower()])


def shape_of_size(
    count: int, layers: int | None = None, hidden: int | None = None, vocab: int | None = None
) -> ModelShape:
    """The probable shape of a model with a number of weights: that of the nearest public model,
    scaled. Given dimensions are kept.

    Args:
        count: weights.
        layers, hidden, vocab: dimensions of the model, if known.

    Raises:
        ConfigError: no model of that size has such layers or such a vocabulary.
    """
    near = min(KNOWN.values(), key=lambda row: abs(math.log(_shape(row).parameters / count)))
    pattern = _shape(near)
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


def _shape(row: Row) -> ModelShape:
    hidden, layers, vocab, intermediate, heads, kv_heads, size, tied = row
    return ModelShape(hidden, layers, vocab, intermediate, heads * size, kv_heads * size, tied)
