"""The lean engine: all policies of one base decode in one batch. Models that the decoder does not
support, or computes differently from their own forward pass, are sampled by the general engine."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.errors import ConfigError
from mrlm.core.types import Completion, SamplingParams, Turn
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean.batch import DecodingBatch, Stats
from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.fixed_batch import FixedBatch, Graphs
from mrlm.engines.lean.memory import Fresh, Lasting, budget_of
from mrlm.engines.lean.prefix_cache import PrefixCache
from mrlm.learn import ops
from mrlm.learn.data.batch import Batch, Sample, pack
from mrlm.learn.fast.llama_modules import (
    NotLean,
    anatomy_of,
    refuse_unnamed_adapter,
    take_general_way,
)
from mrlm.learn.policy.lora import with_noise
from mrlm.learn.policy.own_forward import exact_logprobs, rounding_explains, rounds_to_tf32
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.weights import AUTOCAST
from mrlm.play.engine import Request

AGREE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.int8: 0.5}
"""Tolerance of log-probs against the general path's."""


@dataclass(slots=True)
class _Base:
    """A model that several policies may share."""

    decoder: Decoder
    cache: PrefixCache
    memory: Fresh
    graphs: Graphs
    checked: bool = False


class LeanEngine(HFEngine):
    """Samples for one or more policies in this process.

    Args:
        policies: name -> policy; they may share a base model and a tokenizer.
        batch_size: rows that are decoded at once.
        cache_mib: memory of the prefix caches, in MiB, over all models.
        unseen_writes: weights may change without a call of `load_weights`, as in a custom training
            loop: all of their values are compared before every call. Without it, `load_weights` has
            to be called after every change.
        int8: products in 8 bits, on a CPU, adapters apart. Completions and their log-probs are
            those of the rounded weights, so training has to weigh them by importance.
        kv_mib: memory of the keys and values of the running rows, in MiB; further rows wait. By
            default, what an accelerator has free, or half of the machine's memory.

    Raises:
        ConfigError: `int8` with a policy that is not on a CPU.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        batch_size: int = 256,
        cache_mib: int = 1024,
        unseen_writes: bool = True,
        int8: bool = False,
        kv_mib: int | None = None,
    ) -> None:
        super().__init__(policies, batch_size)
        for policy in policies.values() if int8 else ():
            if policy.device.type != "cpu":
                raise ConfigError(
                    f"engine.int8=true is for a CPU, and policy {policy.name!r} is on "
                    f"{policy.device}; remove it"
                )
        self.int8 = int8
        self.cache_mib = cache_mib
        self.kv_mib = kv_mib
        self.unseen_writes = unseen_writes
        self.stats: Stats = Stats()
        self._bases: dict[tuple[int, torch.dtype], _Base] = {}
        self.general: dict[int, str] = {}
        """Models (by `id`) that are sampled by the general path, and the reason."""
        self._lock = threading.Lock()

    @property
    def progress(self) -> int:
        """Forward passes and prompt tokens so far."""
        return super().progress + self.stats.steps + self.stats.read

    async def load_weights(self, policy: str, weights: Policy, version: int) -> None:
        """Mark the learner's weights for copying before their next use: those of an adapter, or of
        the whole model; both if the version is already known (a repeated exchange). All cached
        prefixes are dropped, those of other policies included: a resumed run starts with an empty
        cache and must continue bit by bit."""
        whole = not weights.adapter or version == self.versions[policy]
        await super().load_weights(policy, weights, version)
        with self._lock:
            for (model, _), base in self._bases.items():
                base.cache.flush()
                if model == id(_inner(weights.model)):
                    if weights.adapter:
                        base.decoder.mark(weights.adapter)
                    if whole:
                        base.decoder.mark()

    def tolerance(self, policy: str) -> float | None:
        return self.rounding[self.int8 or self.policies[policy].coarse]

    def holds(self, policy: str, weights: object) -> bool:
        """Whether it samples with exactly these weights: all copies of them are compared, bit by
        bit."""
        if not super().holds(policy, weights):
            return False
        with self._lock, torch.inference_mode():
            sampler = self.policies[policy]
            base = self._base(sampler)
            if base is None:
                return True
            if sampler.adapter or not base.checked:
                return False
            self._refresh(base)
            return base.decoder.holds()

    async def rest(self) -> None:
        """Release what learning can use: the memory of running rows, the recorded steps, and on an
        accelerator the copies of weights, which have changed before their next use."""
        with self._lock:
            for base in self._bases.values():
                base.graphs.drop()
                base.memory.release()
                if not base.decoder.on_processor:
                    base.decoder.release()

    def _generate(self, requests: list[Request]) -> list[Completion]:
        """Decode one batch per base; unsupported models take the general path."""
        parts: dict[int, list[Request]] = {}
        answers: dict[int, Iterator[Completion]] = {}
        with self._lock, torch.inference_mode():
            bases = self._bases_of({request.policy for request in requests})
            for request in requests:
                parts.setdefault(id(bases[request.policy]), []).append(request)
            for number, chosen in parts.items():
                base = bases[chosen[0].policy]
                if base is not None and self._agrees(base, chosen):
                    answers[number] = iter(self._lean(base, chosen))
                else:
                    answers[number] = iter(super()._generate(chosen))
        return [next(answers[id(bases[request.policy])]) for request in requests]

    def _bases_of(self, names: Iterable[str]) -> dict[str, _Base | None]:
        """The decoder of every policy's model, which is inspected once for all of its adapters."""
        base_by_key: dict[tuple[object, ...], _Base | None] = {}
        bases: dict[str, _Base | None] = {}
        for name in names:
            policy = self.policies[name]
            key = (id(policy.model), policy.precision, policy.adapter is None)
            if key not in base_by_key:
                base_by_key[key] = self._base(policy)
            bases[name] = base_by_key[key]
        return bases

    def _base(self, policy: Policy) -> _Base | None:
        """The decoder of a policy's model; `None` for the general path."""
        model = policy.model
        try:
            anatomy = anatomy_of(model)
            dtype = AUTOCAST.get(policy.precision, anatomy.embedding.dtype)
            refuse_unnamed_adapter(anatomy, policy.adapter)
            if dtype not in AGREE:
                raise NotLean(f"it computes in {dtype}")
        except NotLean as error:
            self._give_up(model, str(error))
            return None
        if id(anatomy.model) in self.general:
            return None
        key = (id(anatomy.model), dtype)
        base = self._bases.get(key)
        if base is None:
            shape = (len(anatomy.layers), 2 * anatomy.kv_heads, anatomy.head_dim)
            share = self.cache_mib / len({id(other.model) for other in self.policies.values()})
            decoder = Decoder(anatomy, dtype, self.unseen_writes, self.int8)
            size = int(np.prod(shape)) * decoder.dtype.itemsize
            cache = PrefixCache(shape, int(share * 2**20 / size), decoder.dtype, decoder.device)
            kind = Fresh if decoder.on_processor else Lasting
            memory = kind(decoder.dtype, decoder.device)
            graphs = Graphs(decoder, memory)
            base = self._bases[key] = _Base(decoder, cache, memory, graphs)
        base.decoder.anatomy = anatomy
        return base

    def _give_up(self, model: Any, reason: str) -> None:
        """Use the general path for a model from now on."""
        inner = _inner(model)
        self.general.setdefault(id(inner), reason)
        take_general_way(inner, reason)

    def _agrees(self, base: _Base, requests: Sequence[Request]) -> bool:
        """Whether decoder and general path agree; checked at the first use of a model."""
        if base.checked:
            return True
        names = sorted({request.policy for request in requests})
        limit = AGREE[torch.int8 if self.int8 else base.decoder.stored]
        if rounds_to_tf32(base.decoder.device):
            limit = max(limit, AGREE[torch.bfloat16])
        try:
            gap = max(self._gap(base, name, limit) for name in names)
            reason = f"log-probs differ by {gap:.2g} from those of its own forward"
        except (RuntimeError, ValueError) as error:
            gap, reason = float("inf"), f"the lean decoder fails: {error}"
        if not gap <= limit:
            self._give_up(base.decoder.anatomy.model, reason)
            return False
        base.checked = True
        return True

    def _gap(self, base: _Base, name: str, limit: float) -> float:
        """The largest difference of log-probs on a few random tokens, with noise in the adapter;
        0 if it is above the limit and rounding to 16 bits explains it."""
        policy = self.policies[name]
        base.decoder.mark(policy.adapter)
        with with_noise(policy.model, policy.adapter):
            batch, sampled = self._probed(base, name)
            with policy.scoring(), policy.active() as model:
                own = ops.token_logprobs(policy.own_forward.logits(model, batch), batch.tokens)
            gap = float((sampled - own).abs().max())
            if gap > limit and base.decoder.stored.itemsize == 2 and not self.int8:
                exact = exact_logprobs(policy.model, policy.adapter, batch)
                gap = 0.0 if rounding_explains(sampled, own, exact) else gap
        base.decoder.mark(policy.adapter)
        return gap

    def _probed(self, base: _Base, name: str) -> tuple[Batch, Tensor]:
        """A few tokens sampled after random ones, and the log-probs (N,) that they were sampled
        with."""
        rng = np.random.default_rng(0)
        vocabulary = len(base.decoder.anatomy.embedding)
        prompts = [rng.integers(0, vocabulary, n).tolist() for n in (9, 9, 4)]
        prompts[1] = prompts[0]
        drawn = SamplingParams(max_new_tokens=8)  # enough for a CUDA graph, if those are used
        requests = [Request(name, prompt, drawn, seed) for seed, prompt in enumerate(prompts)]
        stats, self.stats = self.stats, Stats()
        nothing = PrefixCache((0, 0, 0), 0, base.decoder.dtype, base.decoder.device)
        completions = self._lean(replace(base, cache=nothing), requests)
        self.stats = stats
        samples = [
            Sample(
                [*prompt, *completion.token_ids],
                [Turn(name, name, prompt, completion.token_ids)],
                [len(prompt)],
                number,
                number,
            )
            for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        device = self.policies[name].device
        sampled = [value for completion in completions for value in completion.logprobs]
        return pack(samples, device=device), torch.tensor(sampled, device=device)

    def _lean(self, base: _Base, requests: Sequence[Request]) -> list[Completion]:
        names = sorted({request.policy for request in requests})
        adapters = {self.policies[name].adapter or "" for name in names} - {""}
        self._refresh(base, len(requests) == 1)
        changed = base.decoder.use(sorted(adapters))
        for name, policy in self.policies.items():
            if policy.adapter in changed:
                base.cache.flush(name)
        base.cache.begin()
        budget = budget_of(base.memory, self.kv_mib)
        arguments = (base.decoder, base.cache, self.policies, requests, self.batch_size, self.stats)
        if base.decoder.on_processor:
            batch = DecodingBatch(*arguments, base.memory, budget)
        else:
            batch = FixedBatch(*arguments, base.memory, budget, base.graphs)
        batch.run()
        return [draft.completion(self.versions[draft.request.policy]) for draft in batch.drafts]

    def _refresh(self, base: _Base, single: bool | None = None) -> None:
        """Copy the weights of a base that changed; what was cached with the old ones is dropped."""
        if not base.decoder.refresh(single):
            return
        for name in self.policies:
            base.cache.flush(name)


def _inner(model: Any) -> Any:
    """The model itself, or the base of a PEFT model."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


PLUGIN = LeanEngine
