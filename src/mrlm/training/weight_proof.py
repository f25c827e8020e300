"""Proof that the sampler is the trainer: after every weight update each engine samples a few
tokens, and the learner gives the same tokens the same log-probs, or the run ends. An engine in the
learner's process compares all of its weights with the learner's instead, and samples in every
`EVERY`th step. Policies that are not trained are proven too: at the start of a run, and opponents
whenever they are loaded.

The tokens are sampled by the route of episodes: through the server, its caches and its decode
steps. A prefill of the whole text would not test cached prompts.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.core.log import log
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn.data.batch import as_column
from mrlm.learn.frozen import Frozen
from mrlm.learn.learner import Learner
from mrlm.play.agent import seed_of
from mrlm.play.engine import Engine, LocalEngine, ReplicatedEngine, Request
from mrlm.training.checks import report
from mrlm.training.run import Run

TEXTS = 2
"""Texts that each policy continues after a weight update. Two, so that an engine in this process
keeps its weights in the order that batches need."""
EVERY = 16
"""Steps from one proof with tokens to the next, if all weights are compared in those between."""
READ, SAMPLED = 12, 3
"""Tokens of a text that are read, and the maximal number sampled after them."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Difference between an engine and the trainer.

    Args:
        policy: of the weights.
        nats: largest difference of the log-probs of a token.
        limit: the difference that rounding explains.
    """

    policy: str
    nats: float
    limit: float

    @property
    def wrong(self) -> bool:
        return not self.nats <= self.limit


async def exchange(
    run: Run, learners: Sequence[Learner | Frozen], groups: Sequence[Group] = ()
) -> None:
    """Loads the weights of learners into the engines, and proves that they sample with them: now,
    or where the groups of the run are not sampled, before the next evaluation. Weights without a
    proof are loaded once more, in full.

    Args:
        learners: owners of the weights; frozen policies among them.
        groups: the latest training data: the proof uses its tokens, whose weights moved.

    Raises:
        CheckError: with `training.checks=error`, an engine has other weights than the trained ones.
    """
    await _load(run, learners)
    if run.source.samples:
        await prove(run, learners, groups)
    else:
        run.unproven = groups


async def prove(
    run: Run, learners: Sequence[Learner | Frozen], groups: Sequence[Group] = ()
) -> None:
    """Proves that engines sample with the weights of learners; arguments and errors as those of
    `exchange`."""
    if run.config.training.checks == "off":
        return
    subset = _without(run, learners) if run.step % EVERY else learners
    mismatches = [gap for gap in await gaps(run, subset, groups) if gap.wrong] if subset else []
    if mismatches:
        names = {gap.policy for gap in mismatches}
        named = ", ".join(map(repr, sorted(names)))
        log.warning("the weights of policy %s did not arrive; loading them again", named)
        again = [learner for learner in learners if learner.policy in names]
        await _load(run, again)
        mismatches = [gap for gap in await gaps(run, again, groups, attempt=1) if gap.wrong]
    for gap in mismatches:
        report(
            run,
            f"check weights: the engine of policy {gap.policy!r} does not sample with the policy's "
            f"weights: after two exchanges, log-probs of a few tokens differ by up to "
            f"{gap.nats:.3g}, and rounding explains {gap.limit:g}. Does the engine "
            "load all of them, and compute in the trainer's precision? (engine.tolerance sets "
            "the limit)",
        )


def _without(run: Run, learners: Sequence[Learner | Frozen]) -> list[Learner | Frozen]:
    """Those whose weights are not known to be in the engine, in all processes."""
    engines = [run.engines[learner.policy] for learner in learners]
    flags = [
        isinstance(engine, LocalEngine) and engine.holds(learner.policy, learner.weights_of)
        for engine, learner in zip(engines, learners, strict=True)
    ]
    everywhere = [all(votes) for votes in zip(*run.peers.from_all(flags), strict=True)]
    return [learner for learner, sure in zip(learners, everywhere, strict=True) if not sure]


async def _load(run: Run, learners: Sequence[Learner | Frozen]) -> None:
    loads = (run.engines[x.policy].load_weights(x.policy, x.weights(), x.version) for x in learners)
    await asyncio.gather(*loads)


async def gaps(
    run: Run, learners: Sequence[Learner | Frozen], groups: Sequence[Group] = (), attempt: int = 0
) -> list[Gap]:
    """Differences between engines and learners, for every engine that has weights, over all
    processes. Arguments of `exchange`; `attempt` counts earlier proofs of the same weights."""
    limits = {x.policy: run.engines[x.policy].tolerance(x.policy) for x in learners}
    proven = [member for member in learners if limits[member.policy] is not None]
    by_engine: dict[int, tuple[Engine, list[Request]]] = {}
    trained: dict[str, list[Turn]] = {}
    for turn in (turn for group in groups for episode in group.valid for turn in episode.turns):
        if turn.trained and turn.completion_ids:
            trained.setdefault(turn.policy, []).append(turn)
    for learner in proven:
        engine = run.engines[learner.policy]
        requests = _requests(run, learner, trained.get(learner.policy, []), attempt)
        by_engine.setdefault(id(engine), (engine, []))[1].extend(requests)
    answers = await asyncio.gather(*(_said(*asked) for asked in by_engine.values()))
    ranks = run.peers.from_all(answers)
    turns = [turn for rank_answers in ranks for several in rank_answers for turn in several]
    rollouts = {f"{number}": Rollout(turns=[turn]) for number, turn in enumerate(turns)}
    probed = [Group([Episode("proof", Task("proof"), rollouts, status="done")])]
    await asyncio.gather(*(learner.rescore(probed) for learner in proven))
    result: list[Gap] = []
    for name in (member.policy for member in proven):
        worst = np.max([_apart(turn) for turn in turns if turn.policy == name])
        result.append(Gap(name, float(worst), run.config.engine.tolerance or limits[name] or 0.0))
    return result


def _requests(
    run: Run, learner: Learner | Frozen, trained: Sequence[Turn], attempt: int
) -> list[Request]:
    """Texts to continue: pieces of the policy's latest trained turns, or any tokens."""
    name = learner.policy
    key = (run.config.training.seed, "proof", run.step, name, attempt)
    rng = random.Random(seed_of(key))
    sampling = SamplingParams(max_new_tokens=SAMPLED, temperature=1.0)
    read = min(READ, run.engines[name].max_context - SAMPLED)
    requests: list[Request] = []
    for number in range(TEXTS):
        if trained:
            turn = rng.choice(trained)
            cut = rng.randrange(len(turn))
            ids = [*turn.prompt_ids, *turn.completion_ids[:cut]][-read:]
        else:
            size = len(learner.weights_of.tokenizer)
            ids = [rng.randrange(size) for _ in range(read)]
        request_key = (*key[:3], f"{name}/{attempt}", number)
        requests.append(Request(name, ids, sampling, seed_of(request_key), request_key))
    return requests


async def _said(engine: Engine, requests: Sequence[Request]) -> list[Turn]:
    """The answers of every copy of the weights."""
    several = isinstance(engine, ReplicatedEngine)
    copies = await engine.everywhere(requests) if several else [await engine.generate(requests)]
    pairs = [pair for completions in copies for pair in zip(requests, completions, strict=True)]
    return [
        Turn(q.policy, q.policy, q.prompt_ids, a.token_ids, a.logprobs, sampling=q.sampling)
        for q, a in pairs
    ]


def _apart(turn: Turn) -> float:
    """Largest difference of the log-probs of engine and learner."""
    theirs, ours = (as_column(column, len(turn)) for column in (turn.logprobs, turn.new_logprobs))
    return float(np.abs(theirs - ours).max())
