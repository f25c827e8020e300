"""Samples from any Hugging Face causal language model in this process, with the live weights of the
learner. Every request has random numbers of its own, so that its result does not depend on the
batch. The only text it handles is stop strings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mrlm.core.types import Completion, Message, Role, SamplingParams
from mrlm.engines.shared.policies import PolicyEngine
from mrlm.engines.shared.sampling import Columns, Draft, uniforms_of
from mrlm.learn.policy.loading import load_model, load_tokenizer
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.wrapped_modules import logits_of
from mrlm.play.engine import Request

COMPACT = 0.75
"""Finished rows are dropped when at most this share of the rows is still running."""


class HFEngine(PolicyEngine):
    """Samples for one or more policies in this process.

    Args:
        policies: name -> policy; they may share a base model and a tokenizer.
        batch_size: rows that are decoded at once.
    """

    rounding: ClassVar[tuple[float, float]] = (1e-4, 0.25)

    def __init__(self, policies: Mapping[str, Policy], batch_size: int = 256) -> None:
        super().__init__(policies)
        self.batch_size = batch_size

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
        return await asyncio.to_thread(self._generate, list(requests))

    def _generate(self, requests: list[Request]) -> list[Completion]:
        """Decode batches of one policy and similar prompts; restore the order of the requests."""
        order = sorted(
            range(len(requests)), key=lambda i: (requests[i].policy, len(requests[i].prompt_ids), i)
        )
        answers: dict[int, Completion] = {}
        while order:
            name = requests[order[0]].policy
            chosen = [i for i in order[: self.batch_size] if requests[i].policy == name]
            completions = self._decode(name, [requests[i] for i in chosen])
            answers.update(zip(chosen, completions, strict=True))
            order = order[len(chosen) :]
        return [answers[index] for index in range(len(requests))]

    def _decode(self, name: str, requests: list[Request]) -> list[Completion]:
        """Decode a batch: equal prompts are prefilled once, and finished rows dropped."""
        policy = self.policies[name]
        rows, interface = _Rows(requests, policy), policy.own_forward.interface
        if not interface.cache:
            return self._decode_anew(rows, policy, name)
        with policy.scoring(), torch.inference_mode(), policy.active() as model:
            ids, mask, expand = rows.prompts()
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            cache: Any = None
            while True:
                output = interface.call(
                    model,
                    ids,
                    attention_mask=mask,
                    position_ids=positions,
                    logits_to_keep=1,
                    use_cache=True,
                    past_key_values=cache,
                )
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
        return rows.completions(self.versions[name])

    def _decode_anew(self, rows: _Rows, policy: Policy, name: str) -> list[Completion]:
        """Decode a batch with a module without a cache: the whole text is read for every token."""
        with policy.scoring(), torch.inference_mode(), policy.active() as model:
            while rows.running:
                ids, mask, last = rows.texts()
                positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
                output = policy.own_forward.interface.call(
                    model, ids, attention_mask=mask, position_ids=positions
                )
                logits = logits_of(output)[torch.arange(len(ids), device=ids.device), last]
                rows.draw(logits.float())
                rows.compact()
        return rows.completions(self.versions[name])


class _Rows:
    """The rows of one decode batch, with their samples and a mask of the running ones."""

    def __init__(self, requests: list[Request], policy: Policy) -> None:
        self.policy = policy
        self.device = policy.device
        ends = policy.eos_ids
        self.drafts = [Draft(request, policy, ends) for request in requests]
        self.uniforms = {id(draft): uniforms_of(draft.request) for draft in self.drafts}
        self.live = list(self.drafts)
        self._settings()

    @property
    def running(self) -> bool:
        return any(draft.finish_reason is None for draft in self.live)

    def prompts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The distinct prompts, left-padded, with their mask, (P, T); and the index of each row's
        prompt, (B,), or `None` if no two are equal."""
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

    def texts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Prompt and completion of every live row, right-padded, with the mask, (B, T); and the
        index of its last token, (B,)."""
        texts = [[*d.request.prompt_ids, *d.token_ids] for d in self.live]
        lengths = np.array([len(text) for text in texts])
        ids = np.full((len(texts), lengths.max()), self.policy.pad_id, dtype=np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        ids, mask, last = (torch.as_tensor(x, device=self.device) for x in (ids, mask, lengths - 1))
        return ids, mask, last

    def draw(self, logits: Tensor) -> Tensor:
        """Sample the next token of every live row from logits (B, V); finished rows get padding."""
        uniforms = np.array([self._uniform(draft) for draft in self.live])
        drawn = torch.as_tensor(uniforms, device=self.device)
        tokens, logprobs = self.columns.draw(logits, drawn)
        for draft, token, logprob in zip(
            self.live, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            if draft.finish_reason is None:
                draft.token_ids.append(token)
                draft.logprobs.append(logprob)
                draft.judge()
        return tokens

    def compact(self) -> Tensor | None:
        """Drop finished rows if enough have finished; returns the indices of the others."""
        kept = [row for row, draft in enumerate(self.live) if draft.finish_reason is None]
        if len(kept) > COMPACT * len(self.live):
            return None
        self.live = [self.live[row] for row in kept]
        self._settings()
        return torch.tensor(kept, device=self.device)

    def completions(self, version: int) -> list[Completion]:
        return [draft.completion(version) for draft in self.drafts]

    def _uniform(self, draft: Draft) -> float:
        numbers = self.uniforms[id(draft)]
        return numbers[min(len(draft.token_ids), len(numbers) - 1)]

    def _settings(self) -> None:
        self.columns = Columns([draft.request.sampling for draft in self.live], self.device)


PLUGIN = HFEngine
