"""vLLM's own sampling: all prompts in one call, rows that end at given lengths."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import vllm

from benchmarks.models import make_model, make_tokenizer
from benchmarks.timing import Stepwise
from benchmarks.work import Counts
from benchmarks.worlds import prompt_text


class Sampled:
    """Samples completions of given lengths with vLLM, which schedules them itself.

    Args:
        shape: of the model.
        read: tokens of a prompt.
        lengths: tokens of each completion.
        rows: that run at once, at most.
        device: has to be an accelerator.
        dtype: of the weights.
    """

    def __init__(
        self,
        shape: str,
        read: int,
        lengths: Sequence[int],
        rows: int,
        device: str = "cuda",
        dtype: Any = torch.bfloat16,
    ) -> None:
        self.read, self.lengths = read, list(lengths)
        tokenizer = make_tokenizer(shape)
        self._folder = tempfile.TemporaryDirectory(prefix="mrlm-bench-")
        place = Path(self._folder.name)
        make_model(shape, dtype=dtype).save_pretrained(place)
        tokenizer.save_pretrained(place)
        texts = [prompt_text(shape, read, seed, "agent_0") for seed in range(len(lengths))]
        self.prompts = [{"prompt_token_ids": tokenizer(text).input_ids} for text in texts]
        self.engine = vllm.LLM(
            model=str(place),
            dtype=str(dtype).removeprefix("torch."),
            max_num_seqs=rows,
            max_model_len=read + max(lengths),
            gpu_memory_utilization=0.5,  # our side is on the same device
            enable_prefix_caching=False,  # a prompt is sampled again in every round
        )
        self.sampling = [
            vllm.SamplingParams(max_tokens=length, ignore_eos=True, temperature=1.0)
            for length in lengths
        ]
        self._sampled = 0

    def step(self) -> None:
        found = self.engine.generate(self.prompts, self.sampling, use_tqdm=False)
        self._sampled = sum(len(each.outputs[0].token_ids) for each in found)

    def counts(self) -> Counts:
        return Counts(self.read * len(self.prompts), self._sampled, 0)


def generate(*args: Any, **kwargs: Any) -> Stepwise:
    """`Sampled` as a peer."""
    return Stepwise(Sampled(*args, **kwargs))
