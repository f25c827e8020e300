"""The row of sampling with products in 8 bits: its time over that of the exact ones, and how far
its samples are from those of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.models import SHAPES, make_model, make_tokenizer
from benchmarks.rows import Bench, Result
from benchmarks.timing import Stepwise, alternate, ratios
from benchmarks.work import Counts
from mrlm.core.types import Completion, SamplingParams
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.mismatch import divergence
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request


class Side:
    """Samples the same requests again and again."""

    def __init__(self, policy: Policy, requests: list[Request], int8: bool) -> None:
        self.requests = requests
        self.engine = LeanEngine({policy.name: policy}, cache_mib=0, unseen_writes=False, int8=int8)
        self.completions: list[Completion] = []

    def step(self) -> None:
        self.completions = asyncio.run(self.engine.generate(self.requests))

    def counts(self) -> Counts:
        read = sum(len(request.prompt_ids) for request in self.requests)
        return Counts(read, sum(len(each.token_ids) for each in self.completions), 0)


def faster(shape: str, read: int, written: int, rows: Sequence[int]) -> Callable[[Bench], Result]:
    """Seconds of exact sampling over those with products in 8 bits, for some numbers of rows; the
    value is that of the last one."""

    def measure(bench: Bench) -> Result:
        size, most, length, counted = shape, read, written, rows
        if bench.quick:
            size, most, length, counted = "tiny", 8, 6, (1, 2)
        model = make_model(size)
        policy = Policy("policy", model, make_tokenizer(size))
        clock = bench.clock()
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        points: list[tuple[float, float]] = []
        for count in counted:
            requests = _requests(SHAPES[size].vocab, count, most, length)
            exact, small = (Side(policy, requests, int8) for int8 in (False, True))
            counts = Counts(most * count, length * count, 0)
            mine, theirs = alternate(small, Stepwise(exact), bench.rounds, clock, counts)
            result.value, result.low, result.high = ratios(mine, theirs)
            result.ours, result.peer = mine.median, theirs.median
            points.append((count, result.value))
            result.note = _bias(model, small)
        result.lines, result.axis = {"exact over 8 bits": points}, "rows"
        result.scale = "ratio"
        return result

    return measure


def _requests(vocabulary: int, count: int, read: int, written: int) -> list[Request]:
    rng = np.random.default_rng(0)
    drawn = SamplingParams(max_new_tokens=written)
    prompts = rng.integers(4, vocabulary, (count, read)).tolist()
    return [Request("policy", prompt, drawn, seed) for seed, prompt in enumerate(prompts)]


@torch.no_grad()
def _bias(model: torch.nn.Module, side: Side) -> str:
    """How far the log-probs of samples are from those of the weights themselves."""
    pairs = zip(side.requests, side.completions, strict=True)
    ours, theirs = [], []
    for request, found in pairs:
        ids = torch.tensor([[*request.prompt_ids, *found.token_ids]])
        scores = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        said = torch.tensor(found.token_ids)[:, None]
        theirs.append(scores.float().log_softmax(-1).gather(1, said)[:, 0])
        ours.append(torch.tensor(found.logprobs))
    sampler, trainer = torch.cat(ours), torch.cat(theirs)
    gap = float((sampler - trainer).abs().mean())
    kl = float(divergence(sampler, trainer).mean())
    return f"log-probs differ by {gap:.3f} on average, divergence {kl:.1e} nats a token"
