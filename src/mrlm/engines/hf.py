"""Samples from any Hugging Face causal language model in this process, with the live weights of the
learner.

One batched loop with a key-value cache. Every request draws from random numbers of its own, so that
the batch it happens to be in decides nothing. It knows nothing of text except stop strings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.types import Completion, Message, Role, SamplingParams
from mrlm.learn.loading import load_model, load_tokenizer
from mrlm.learn.policy import Policy
from mrlm.play.engine import Request

COMPACT = 0.75
"""Finished rows are dropped when no more than this share is still running."""
STOP_WINDOW = 64
"""Tokens at the end of a completion in which stop strings are looked for, at least: a token may be
a single byte, so a longer stop string takes as many tokens as it has bytes."""


class HFEngine:
    """Samples for one or more policies that live in this process.

    Args:
        policies: name -> policy; they may share a base model and a tokenizer.
        batch_size: rows decoded at once.
    """

    def __init__(self, policies: Mapping[str, Policy], batch_size: int = 256) -> None:
        self.policies: dict[str, Policy] = dict(policies)
        self.batch_size = batch_size
        first = next(iter(self.policies.values()))
        self.tokenizer: Any = first.tokenizer
        self.max_context: int = min(policy.max_context for policy in self.policies.values())
        self.versions: dict[str, int] = dict.fromkeys(self.policies, 0)

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> HFEngine:
        """An engine for one model: a live one with its tokenizer, or a folder or hub id."""
        name = model if isinstance(model, str) else getattr(model, "name_or_path", "")
        if tokenizer is None:
            tokenizer = load_tokenizer(name)
        if isinstance(model, str):
            model = load_model(model)
        return cls({"policy": Policy("policy", model, tokenizer)})

    def respond(
        self, messages: Sequence[Message], sampling: SamplingParams, seed: int = 0
    ) -> Message:
        """The next message of one conversation."""
        name, policy = next(iter(self.policies.items()))
        request = Request(name, policy.chat.prompt(messages).ids, sampling, seed)
        return Message(self._generate([request])[0].text, Role.ASSISTANT)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order. Runs in a thread, so that the event loop goes
        on."""
        return await asyncio.to_thread(self._generate, list(requests))

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """The weights are the learner's own; only the version changes."""
        self.policies[policy] = weights
        self.versions[policy] = version

    def fingerprint(self, policy: str) -> tuple[float, ...]:
        """Numbers that change when the policy's weights do."""
        return self.policies[policy].fingerprint()

    def _generate(self, requests: list[Request]) -> list[Completion]:
        """Batches of one policy and similar prompt length, then back into the order of the
        requests."""
        order = sorted(
            range(len(requests)), key=lambda i: (requests[i].policy, len(requests[i].prompt_ids), i)
        )
        answers: dict[int, Completion] = {}
        start = 0
        while start < len(order):
            name = requests[order[start]].policy
            chosen = [
                i for i in order[start : start + self.batch_size] if requests[i].policy == name
            ]
            completions = self._decode(self.policies[name], [requests[i] for i in chosen])
            for index, completion in zip(chosen, completions, strict=True):
                completion.policy_version = self.versions[name]
                answers[index] = completion
            start += len(chosen)
        return [answers[index] for index in range(len(requests))]

    def _decode(self, policy: Policy, requests: list[Request]) -> list[Completion]:
        """Decode a batch: equal prompts are read once, finished rows are dropped on the way."""
        rows = _Rows(requests, policy)
        with policy.scoring(), torch.inference_mode(), policy.active() as model:
            ids, mask, expand = rows.prompts()
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            cache: Any = None
            while True:
                inputs: dict[str, Any] = {
                    "input_ids": ids,
                    "attention_mask": mask,
                    "use_cache": True,
                }
                if policy.takes_positions:
                    inputs["position_ids"] = positions
                if policy.takes_keep:
                    inputs["logits_to_keep"] = 1
                output = model(**inputs, past_key_values=cache)
                logits = output.logits[:, -1].float()
                if expand is not None:
                    logits, mask, positions = logits[expand], mask[expand], positions[expand]
                    output.past_key_values.batch_select_indices(expand)
                    expand = None
                cache = output.past_key_values
                tokens = rows.draw(logits)
                if not rows.running:
                    break
                mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
                ids, positions = tokens[:, None], positions[:, -1:] + 1
                kept = rows.compact()
                if kept is not None:
                    ids, mask, positions = ids[kept], mask[kept], positions[kept]
                    cache.batch_select_indices(kept)
        return rows.completions()


@dataclass(slots=True)
class _Draft:
    """A completion on its way."""

    request: Request
    uniforms: np.ndarray
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str | None = None
    finish_reason: str | None = None


class _Rows:
    """The rows of one decode batch: what each has sampled, and which still run."""

    def __init__(self, requests: list[Request], policy: Policy) -> None:
        self.policy = policy
        self.device = policy.device
        self.drafts = [_Draft(request, _uniforms(request)) for request in requests]
        self.live = list(self.drafts)
        self._settings()

    @property
    def running(self) -> bool:
        return any(draft.finish_reason is None for draft in self.live)

    def prompts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The different prompts, left-padded, with their mask, (P, T); and which of them each row
        continues, (B,), or `None` if no two are equal."""
        places: dict[tuple[int, ...], int] = {}
        expand = [places.setdefault(tuple(d.request.prompt_ids), len(places)) for d in self.drafts]
        longest = max(map(len, places))
        ids = np.full((len(places), longest), self.policy.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(places):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        tensors = (
            torch.as_tensor(ids, device=self.device),
            torch.as_tensor(mask, device=self.device),
        )
        if len(places) == len(self.drafts):
            return *tensors, None
        return *tensors, torch.tensor(expand, device=self.device)

    def draw(self, logits: Tensor) -> Tensor:
        """The next token of every live row from logits (B, V); finished rows get padding."""
        scaled = logits / self.temperature[:, None]
        if self.truncates:
            scaled = truncated(scaled, self.top_p, self.top_k, self.min_p)
        step = [min(len(draft.token_ids), len(draft.uniforms) - 1) for draft in self.live]
        uniforms = np.array([draft.uniforms[at] for draft, at in zip(self.live, step, strict=True)])
        tokens, logprobs = sample(
            scaled, torch.as_tensor(uniforms, device=self.device), self.greedy
        )
        for draft, token, logprob in zip(
            self.live, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            if draft.finish_reason is None:
                draft.token_ids.append(token)
                draft.logprobs.append(logprob)
                draft.finish_reason = self._finished(draft)
        return tokens

    def compact(self) -> Tensor | None:
        """Drop finished rows if enough have finished; returns which rows stay."""
        kept = [row for row, draft in enumerate(self.live) if draft.finish_reason is None]
        if len(kept) > COMPACT * len(self.live):
            return None
        self.live = [self.live[row] for row in kept]
        self._settings()
        return torch.tensor(kept, device=self.device)

    def completions(self) -> list[Completion]:
        decode = self.policy.chat.decode
        return [
            Completion(
                draft.token_ids,
                draft.logprobs,
                decode(draft.token_ids) if draft.text is None else draft.text,
                "length" if draft.finish_reason == "length" else "stop",
            )
            for draft in self.drafts
        ]

    def _finished(self, draft: _Draft) -> str | None:
        sampling = draft.request.sampling
        if draft.token_ids[-1] in self.policy.eos_ids:
            return "stop"
        if sampling.stop:
            window = max(STOP_WINDOW, *(len(stop.encode()) + 4 for stop in sampling.stop))
            tail = self.policy.chat.decode(draft.token_ids[-window:])
            if any(stop in tail for stop in sampling.stop):
                text = self.policy.chat.decode(draft.token_ids)
                draft.text = text[: min(text.find(stop) for stop in sampling.stop if stop in text)]
                return "stop"
        return "length" if len(draft.token_ids) >= sampling.max_new_tokens else None

    def _settings(self) -> None:
        """Sampling parameters of the live rows as columns."""
        sampling: list[SamplingParams] = [draft.request.sampling for draft in self.live]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.device)

        self.temperature = column([1.0 if each.greedy else each.temperature for each in sampling])
        self.top_p = column([each.top_p for each in sampling])
        self.top_k = column([float(each.top_k) for each in sampling])
        self.min_p = column([each.min_p for each in sampling])
        self.greedy = torch.tensor([each.greedy for each in sampling], device=self.device)
        self.truncates = any(each.truncates for each in sampling)


def _uniforms(request: Request) -> np.ndarray:
    """The request's own random numbers in [0, 1), one per token it may draw."""
    generator = np.random.Generator(np.random.Philox(request.seed))
    return generator.random(max(1, request.sampling.max_new_tokens))


def sample(logits: Tensor, uniforms: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling.

    Args:
        logits: (B, V), already divided by the temperature and cut.
        uniforms: (B,) in [0, 1).
        greedy: (B,) rows that take the most probable token instead.

    Returns:
        Tokens (B,) and their log-probs (B,) under `softmax(logits)`.
    """
    logprobs = logits.log_softmax(-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    targets = uniforms[:, None].double() * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[-1] - 1)[
        :, 0
    ]
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def truncated(logits: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Logits (B, V) with what top-k, top-p and min-p exclude at minus infinity; each (B,), off at
    0, 1 and 0."""
    ordered, order = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    rank = torch.arange(logits.shape[-1], device=logits.device)[None]
    limit = torch.where(top_k > 0, top_k, float(logits.shape[-1]))[:, None]
    before = probs.cumsum(-1) - probs
    cut = (rank >= limit) | ((before >= top_p[:, None]) & (top_p[:, None] < 1))
    cut |= probs < min_p[:, None] * probs[:, :1]
    cut[:, 0] = False
    return logits.masked_fill(torch.zeros_like(cut).scatter(1, order, cut), -torch.inf)


PLUGIN = HFEngine
