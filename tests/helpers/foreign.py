"""Models other than the embedded one."""

import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrlm import Message, MessageType, Rollout


def untied(path: str, folder: Path) -> str:
    """The embedded model with a head of its own, as a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return str(folder)


ANSWERS = ("4", "5", "four", "a long answer of many tokens")
REWARDS = [1.0, 0.0, 0.5, 0.25]


class GRU(nn.Module):
    """A language model of one's own: nothing but tokens in and logits out."""

    def __init__(self, form: str = "tensor", vocabulary: int = 320) -> None:
        super().__init__()
        self.form = form
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocabulary, 16)
        self.cells = nn.GRU(16, 24, batch_first=True)
        self.output = nn.Linear(24, vocabulary)

    def forward(self, tokens: Tensor) -> Any:
        logits = self.output(self.cells(self.embedding(tokens))[0])
        forms = {
            "tensor": logits,
            "tuple": (logits, None),
            "object": types.SimpleNamespace(logits=logits),
            "mapping": {"logits": logits},
        }
        return forms[self.form]


def written(question: str = "2+2=") -> list[Rollout]:
    return [
        Rollout().add_messages(Message(question), Message(text, MessageType.MODEL))
        for text in ANSWERS
    ]


def settings_of(name: str) -> dict[str, Any]:
    return {"ppo": {"critic": "shared"}}.get(name, {})


def play() -> list[Rollout]:
    """Transcripts of two speakers."""
    return [
        Rollout().add_messages(
            Message("2+2="),
            Message(text, MessageType.MODEL, agent="a"),
            Message(text[::-1], MessageType.MODEL, agent="b"),
        )
        for text in ANSWERS
    ]
