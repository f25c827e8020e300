"""Plain `generate` of transformers: batches of equal prompts whose rows end at given lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from benchmarks.models import make_model, make_tokenizer
from benchmarks.timing import Stepwise
from benchmarks.work import Counts
from benchmarks.worlds import prompt_text


class _AtLengths(StoppingCriteria):
    """A row is finished when it has as many tokens as it should."""

    def __init__(self, lengths: torch.Tensor) -> None:
        self.lengths = lengths

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] >= self.lengths


class Generated:
    """Samples completions of given lengths, `rows` at a time, and decodes them.

    Args:
        shape: of the model.
        read: tokens of a prompt.
        lengths: tokens of each completion, in the order in which they are asked for.
        rows: batch size.
        device: where the model is.
        dtype: of the weights.
    """

    def __init__(
        self,
        shape: str,
        read: int,
        lengths: Sequence[int],
        rows: int,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        self.read, self.lengths, self.rows, self.device = read, list(lengths), rows, device
        self.tokenizer = make_tokenizer(shape)
        self.model = make_model(shape, device=device, dtype=dtype).eval()
        self.texts = [prompt_text(shape, read, seed, "agent_0") for seed in range(len(lengths))]
        self._sampled = 0

    def step(self) -> None:
        self._sampled = 0
        for start in range(0, len(self.texts), self.rows):
            chosen = slice(start, start + self.rows)
            lengths = self.lengths[chosen]
            inputs = self.tokenizer(self.texts[chosen], return_tensors="pt").to(self.device)
            wanted = torch.tensor(lengths, device=self.device)
            output = self.model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                do_sample=True,
                top_k=0,
                max_new_tokens=max(lengths),
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([_AtLengths(self.read + wanted)]),
            )
            for row, length in zip(output, lengths, strict=True):
                written = row[self.read : self.read + length]
                self.tokenizer.decode(written, skip_special_tokens=True)
                self._sampled += len(written)

    def counts(self) -> Counts:
        return Counts(self.read * len(self.texts), self._sampled, 0)


def generate(*args: Any, **kwargs: Any) -> Stepwise:
    """`Generated` as a peer."""
    return Stepwise(Generated(*args, **kwargs))
