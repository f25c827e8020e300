"""Models of every family that the lean paths know, a few thousand random weights each."""

from typing import Any

import torch
import transformers

VOCABULARY = 300
_COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied-biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "llama-scaled-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 6}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 6}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 6, "layer_types": _MIXED}),
}
"""Name -> family of transformers, and what differs from the common settings."""


def family(name: str, seed: int = 0, **more: Any) -> Any:
    """A model of the family with weights that matter: norms and biases are not what they start
    as."""
    kind, settings = FAMILIES[name]
    config = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCausalLM")(config(**{**_COMMON, **settings, **more}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0).add_(torch.randn_like(weight), alpha=0.05)
    return model.eval()
