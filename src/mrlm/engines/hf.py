"""Samples from any Hugging Face causal language model in this process, with the live weights of the
learner. Every request has random numbers of its own, so that its result does not depend on the
batch. The only text it handles is stop strings."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mrlm.core.types import Completion, Message, Role, SamplingParams
from mrlm.engines.shared.policies import PolicyEngine
from mrlm.engines.shared.sampling import Columns, Draft, uniforms_of
from mrlm.engines.shared.transfer import Transfer
from mrlm.learn.fast.double import double
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.policy.loading import load_model, load_tokenizer
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.wrapped_modules import logits_of
from mrlm.play.engine import Request

COMPACT = 0.75
"""Finished rows are dropped when at most this share of the rows is still running."""
LOOK = 8
"""Tokens that an accelerator samples between two looks of the host."""


class HFEngine(PolicyEngine):
    """Samples for one or more policies in this process.

    Args:
        policies: name -> policy; they may share a base model and a tokenizer.
        batch_size: rows that are decoded at once.
    """

    rounding: ClassVar[tuple[float, float]] = (1e-4, 1.0)

    def __init__(self, policies: Mapping[str, Policy], batch_size: int = 256) -> None:
        super().__init__(policies)
        self.batch_size = batch_size
        self._forwards: int = 0

    @property
    def progress(self) -> int:
        """Forward passes so far."""
        return self._forwards

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> "HFEngine":
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
        name, policy = next(iter(self.policies.items()))
        request = Request(name, policy.chat.prompt(messages).ids, sampling, seed)
        return Message(self._generate([request])[0].text, Role.ASSISTANT)

    def holds(self, policy: str, weights: object) -> bool:
        """Whether it samples with exactly these weights: with the learner's own."""
        return self.policies[policy] is weights

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return await asyncio.to_thread(self._generate, list(requests))

    def _generate(self, requests: list[Request]) -> list[Completion]:
        """Decode batches of one policy and similar prompts; restore the order of the requests."""
        keys = [(request.policy, len(request.prompt_ids)) for request in requests]
        order = sorted(range(len(requests)), key=keys.__getitem__)
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
                self._forwards += 1
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
                ids, positions = tokens[:, None], (positions[:, -1:] + 1).minimum(rows.last)
                indices = rows.compact()
                if indices is not None:
                    ids, mask, positions = ids[indices], mask[indices], positions[indices]
                    cache.batch_select_indices(indices)
        return rows.completions(self.versions[name])

    def _decode_anew(self, rows: "_Rows", policy: Policy, name: str) -> list[Completion]:
        """Decode a batch with a module without a cache: the whole text is read for every token."""
        with policy.scoring(), torch.inference_mode(), policy.active() as model:
            ids, mask, last = rows.texts()
            while rows.running:
                positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
                output = policy.own_forward.interface.call(
                    model, ids, attention_mask=mask, position_ids=positions
                )
                self._forwards += 1
                logits = logits_of(output)[torch.arange(len(ids), device=ids.device), last]
                tokens, last = rows.draw(logits.float()), last + 1
                ids, mask = (torch.cat([x, torch.zeros_like(x[:, :1])], 1) for x in (ids, mask))
                ids = ids.scatter(1, last[:, None], tokens[:, None])
                mask = mask.scatter(1, last[:, None], torch.ones_like(last)[:, None])
                indices = rows.compact()
                if indices is not None:
                    ids, mask, last = ids[indices], mask[indices], last[indices]
                ids, mask = ids[:, : rows.width], mask[:, : rows.width]
        return rows.completions(self.versions[name])


class _Rows:
    """The rows of one decode batch, with their samples. On an accelerator, the host looks at the
    samples of several steps while the next ones are computed."""

    def __init__(self, requests: list[Request], policy: Policy) -> None:
        self.policy = policy
        self.device = policy.device
        ends = policy.eos_ids
        self.drafts = [Draft(request, policy, ends) for request in requests]
        self.live = list(self.drafts)
        width = max(request.sampling.max_new_tokens for request in requests)
        self.uniforms: Tensor = to_device(uniforms_of(requests, width), self.device)
        last = [len(r.prompt_ids) + r.sampling.max_new_tokens - 1 for r in requests]
        self.last: Tensor = to_device(np.array(last), self.device)[:, None]
        """Last position of each row; finished rows that are still computed stay there."""
        self.column = 0
        """Tokens that every live row has sampled."""
        self.every, self.behind = (1, 0) if self.device.type == "cpu" else (LOOK, 1)
        self.sampled: list[tuple[Tensor, Tensor]] = []
        self.looks: deque[tuple[list[Draft], Transfer]] = deque()
        self._settings()

    @property
    def running(self) -> bool:
        return any(draft.finish_reason is None for draft in self.live)

    @property
    def width(self) -> int:
        """Tokens of the longest live row."""
        longest = max((len(draft.request.prompt_ids) for draft in self.live), default=0)
        return self.column + longest

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
        alone = len(places) == len(self.drafts)
        ids, mask, index = (to_device(np.array(x), self.device) for x in (ids, mask, expand))
        return ids, mask, None if alone else index

    def texts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The prompts of all rows, right-padded, with the mask, (B, T); and the index of their last
        token, (B,)."""
        lengths = np.array([len(draft.request.prompt_ids) for draft in self.live])
        ids = np.full((len(lengths), lengths.max()), self.policy.pad_id, dtype=np.int64)
        for row, draft in enumerate(self.live):
            ids[row, : lengths[row]] = draft.request.prompt_ids
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        ids, mask, last = (to_device(x, self.device) for x in (ids, mask, lengths - 1))
        return ids, mask, last

    def draw(self, logits: Tensor) -> Tensor:
        """Sample the next token of every live row from logits (B, V), also of finished ones."""
        tokens, logprobs = self.columns.draw(logits, self.uniforms[:, self.column])
        self.sampled.append((tokens, logprobs))
        self.column += 1
        ended = self.column == self.uniforms.shape[1]
        if ended or len(self.sampled) == self.every:
            self._look(0 if ended else self.behind)
        return tokens

    def _look(self, behind: int) -> None:
        """Start to copy what was sampled to the host, and judge all but the last copies."""
        tokens, logprobs = map(torch.stack, zip(*self.sampled, strict=True))
        self.sampled = []
        both = torch.stack([double(tokens), double(logprobs)])  # which holds both exactly
        self.looks.append((self.live, Transfer.of(both)))
        while len(self.looks) > behind:
            drafts, transfer = self.looks.popleft()
            tokens, logprobs = transfer.read().tolist()
            for ids, scores in zip(tokens, logprobs, strict=True):
                for draft, token, logprob in zip(drafts, ids, scores, strict=True):
                    if draft.finish_reason is None:
                        draft.token_ids.append(int(token))
                        draft.logprobs.append(logprob)
                        draft.judge()

    def compact(self) -> Tensor | None:
        """Drop finished rows if enough have finished; returns the indices of the others."""
        if self.sampled:
            return None
        running_rows = [row for row, draft in enumerate(self.live) if draft.finish_reason is None]
        if len(running_rows) > COMPACT * len(self.live):
            return None
        self.live = [self.live[row] for row in running_rows]
        rows = to_device(np.array(running_rows, np.int64), self.device)
        self.uniforms, self.last = self.uniforms[rows], self.last[rows]
        self._settings()
        return rows

    def completions(self, version: int) -> list[Completion]:
        return [draft.completion(version) for draft in self.drafts]

    def _settings(self) -> None:
        self.columns = Columns([draft.request.sampling for draft in self.live], self.device)


PLUGIN = HFEngine
