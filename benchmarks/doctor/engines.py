"""Engines with a disease: the usual one, changed from the step of `ONSET` on. Where an engine
replaces a completion, its log-probs are those that the policy gives it, as the trainer computes."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.doctor.onset import ONSET
from mrlm.core.types import Completion, Turn
from mrlm.engines.lean import LeanEngine
from mrlm.learn.data.batch import Sample, pack
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

SNAPSHOTS = 2
"""Steps between snapshots of `circle`."""
PROOF = "proof"
"""In the keys of requests that compare the engine with the trainer."""
FIRST = "first"
"""The agent of `relay` that is replaced."""
SECOND = "second"
"""The one that reads its message."""


class _Replaced(LeanEngine):
    """Some completions are replaced; the requests of a call of `_forced` have one policy."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        found = await super().generate(requests)
        places: dict[str, list[int]] = {}
        for place, each in enumerate(requests):
            if ONSET.sick and self.replaces(each):
                places.setdefault(each.policy, []).append(place)
        for own in places.values():
            completions = self._forced([requests[place] for place in own])
            for place, completion in zip(own, completions, strict=True):
                found[place] = completion
        return found

    def replaces(self, request: Request) -> bool:
        """Whether the completion of a request of an episode is replaced."""
        return FIRST in request.key

    def text(self, request: Request) -> str:
        """The text instead of the sampled one."""
        raise NotImplementedError

    def _forced(self, requests: Sequence[Request]) -> list[Completion]:
        samples = []
        for number, request in enumerate(requests):
            chat = self.policies[request.policy].chat
            ids = [*chat.encode_text(self.text(request)), chat.tokenizer.eos_token_id]
            drawn = replace(request.sampling, temperature=request.sampling.temperature or 1.0)
            turn = Turn(request.policy, request.policy, request.prompt_ids, ids, sampling=drawn)
            start = [len(turn.prompt_ids)]
            samples.append(Sample([*turn.prompt_ids, *ids], [turn], start, number, number))
        policy = self.policies[requests[0].policy]
        with policy.scoring():
            batch = pack(samples, pad_id=policy.pad_id, device=policy.device)
            logprobs = policy.forward(batch).logprobs.tolist()
        completions, version = [], self.versions[policy.name]
        for request, sample in zip(requests, samples, strict=True):
            ids = sample.turns[0].completion_ids
            own, logprobs = logprobs[: len(ids)], logprobs[len(ids) :]
            completions.append(Completion(ids, own, self.text(request), "stop", version))
        return completions


class Mute(_Replaced):
    """The first agent says nothing: its completions are the end token."""

    def text(self, request: Request) -> str:
        return ""


class Saboteur(_Replaced):
    """The first agent passes on a random number."""

    def text(self, request: Request) -> str:
        return str(random.Random(request.seed).randint(0, 9))


class Deaf(_Replaced):
    """The second agent answers the same number in all episodes of a task, whatever it reads."""

    def replaces(self, request: Request) -> bool:
        return SECOND in request.key

    def text(self, request: Request) -> str:
        return str(random.Random(str(request.key[:4])).randint(0, 9))


class Circling(_Replaced):
    """Every player of `Circle` has one action, which the next snapshot beats: A, B, C, A, ..."""

    def replaces(self, request: Request) -> bool:
        return PROOF not in request.key

    def text(self, request: Request) -> str:
        if request.policy.endswith("-opponent"):
            step = self.versions[request.policy]
        else:
            step = ONSET.step - ("eval" not in request.key)
        return "ABC"[step // SNAPSHOTS % 3]


class Stale(LeanEngine):
    """Samples with the weights of the step before the disease."""

    def __init__(self, policies: dict[str, Policy], batch_size: int = 256) -> None:
        super().__init__(policies, batch_size)
        self._kept: dict[str, Policy] = {}

    async def load_weights(self, policy: str, weights: Policy, version: int) -> None:
        if ONSET.step < ONSET.first - 2:
            await super().load_weights(policy, weights, version)
            return
        if policy not in self._kept:
            self._kept[policy] = weights.over(copy.deepcopy(weights.model), weights.adapter)
        await super().load_weights(policy, self._kept[policy], version)


class Short(LeanEngine):
    """Completions end after one token."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if ONSET.sick:
            requests = [
                replace(each, sampling=replace(each.sampling, max_new_tokens=1))
                for each in requests
            ]
        return await super().generate(requests)
