"""Checks of the first step: a cause that would silently corrupt a run becomes a named error, or a
warning with the fix."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import CheckError
from mrlm.core.log import log
from mrlm.core.types import Message, Role
from mrlm.learn.data.batch import Sample, as_column, pack
from mrlm.learn.data.samples import samples_of
from mrlm.learn.learner import Learner
from mrlm.learn.mismatch import comparable
from mrlm.training.run import Run

PROBE = 8
"""Number of samples that are checked."""
MISMATCH_KL = {False: 1e-4, True: 0.05}
"""Largest `mismatch_kl` that rounding explains; `True` for 16 bits."""
MISMATCH = {"fp32": 1e-3, "bf16": 0.15, "fp16": 2e-2}
"""Largest mean absolute difference of log-probs between engine and trainer from rounding."""


def check_first_step(run: Run, groups: Sequence[Group]) -> None:
    """Checks the first groups before anything is trained on them. Raises `CheckError`: with
    `training.checks=error`, the first; with `warn` all are logged instead."""
    for learner in run.learners:
        samples = samples_of(groups, learner.policy, credited=False)[:PROBE]
        look = partial(problems_of, rounded=run.config.engine.int8)
        for problem in run.placement.problems(look, learner, samples) if samples else ():
            report(run, problem)
    if run.spec.sampling.siblings and not run.spec.distils:
        lively = [group for group in groups if len({e.reward for e in group.valid}) > 1]
        if not lively:
            log.warning(
                "check variance: none of the %d groups of the first step has episodes with "
                "different rewards, so it trains "
                "nothing. If this continues, use easier tasks, a larger group_size, or a "
                "supervised stage first",
                len(groups),
            )


def warn_untrained(run: Run, metrics: Mapping[str, float]) -> None:
    """Warns, once a run, of an agent whose trained turns all have advantage 0 in an iteration."""
    for name, share in metrics.items():
        agent = name.removeprefix("advantage/").removesuffix("/zero")
        if share == 1.0 and name == f"advantage/{agent}/zero" and agent not in run.untrained:
            run.untrained.add(agent)
            log.warning(
                "iteration %d: all turns of agent %r have advantage 0, so nothing was trained on "
                "them. Either the episodes that are compared had the same reward "
                "(use easier or harder tasks, a larger group_size), or the reward comes after its "
                "turns and %s does not credit them with it; see advantage/%s/zero",
                run.step + 1,
                agent,
                run.config.training.algorithm,
                agent,
            )


def check_signal(run: Run, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
    """Checks that an iteration has a token to train on, and warns of an agent that has none. Equal
    rewards are no error: they are counted (`tied_steps`). Nor are rows without one after rows that
    had one: a pair of equal answers, or an answer that the policy has learned to write itself
    (SPIN); they are warned of. Raises `CheckError`: it has none; the message names the cause."""
    if not run.spec.distils:
        warn_untrained(run, metrics)
    if metrics.get("tokens/trained", 0.0) or run.algorithm.waiting:
        return
    episodes = [episode for group in groups for episode in group if not episode.failed]
    cause = _why_untrained(run, episodes) if episodes else None
    if cause is None:
        return
    problem = f"check signal: iteration {run.step + 1} has no token to train on: {cause}"
    if run.step and _learns_rows(run):
        log.warning(problem)
    else:
        report(run, problem)


def _learns_rows(run: Run) -> bool:
    return run.spec.sampling.rows or not run.source.rewarded


def _why_untrained(run: Run, episodes: Sequence[Episode]) -> str | None:
    """Why no turn of some episodes has an advantage; `None` if it is for equal rewards."""
    policies = {learner.policy for learner in run.learners}
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy in policies]
    written = [turn for turn in turns if turn.completion_ids]
    where = "row" if _learns_rows(run) else "episode"
    if not any(episode.scored for episode in episodes):
        return (
            f"the reward of all {len(episodes)} episodes is None, which means that it is unknown; "
            "return a number for at least some of them"
        )
    if not written:
        return (
            f"no {where} has a message of a trained agent. A {where} needs an assistant message, "
            "or the name of a trained agent in `agent`"
        )
    masked = run.spec.leaves_out
    if masked == "cut" and all(turn.finish_reason == "length" for turn in written):
        return (
            f"all {len(written)} completions were cut at the token limit, and the algorithm leaves "
            "these out; raise generation.max_new_tokens"
        )
    if masked == "truncated" and all(item.status == "truncated" for item in episodes):
        return (
            f"all {len(episodes)} episodes were truncated, and the algorithm leaves these out; "
            "raise the limits of turns and tokens"
        )
    if run.source.rewarded and run.spec.sampling.collection is None:
        log.warning(
            "iteration %d: no message has an advantage, because every reward equals what it is "
            "compared with",
            run.step + 1,
        )
        return None
    return (
        f"{run.config.training.algorithm} gave no advantage to any of {len(written)} messages of "
        f"{len(episodes)} {where}s. Are both sides of all pairs the same, or does its mode train "
        "on text that they do not have?"
    )


def check_weights(run: Run) -> None:
    """Checks, after the first step, that all processes hold the same weights. Raises `CheckError`:
    they do not."""
    if run.peers.size == 1:
        return
    ours = [learner.weights_of.fingerprint() for learner in run.learners]
    if not all(np.allclose(ours, theirs, rtol=1e-6) for theirs in run.peers.from_all(ours)):
        report(
            run,
            "check weights: after the first step the processes do not hold the same weights. Does "
            "every one run the same program, with the same versions?",
        )


def check_mismatch(run: Run, metrics: Mapping[str, float]) -> None:
    """Checks that sampler and trainer agree: the data of a step was sampled with the weights that
    were trained. Raises `CheckError`: `mismatch_kl` of a policy exceeds what rounding explains."""
    if run.config.training.checks == "off":
        return
    for learner in run.learners:
        alone = len(run.learners) == 1
        value = metrics.get("mismatch_kl" if alone else f"mismatch_kl/{learner.policy}", 0.0)
        coarse = learner.weights_of.coarse or run.config.engine.int8
        limit = run.config.training.max_mismatch_kl or MISMATCH_KL[coarse]
        if not value <= limit:
            report(
                run,
                f"check mismatch_kl: the log-probs of policy {learner.policy!r} in step "
                f"{run.step} differ between engine and trainer at the same "
                f"weights: their divergence is {value:.3g}, and rounding explains {limit:g} "
                "(training.max_mismatch_kl). Do both use the same weights, precision and "
                "temperature? A callback that changes weights must pass them to the engine with "
                "load_weights",
            )


def heed_alarms(run: Run) -> None:
    """Ends the run after this step if a rule has raised an alarm, with `training.doctor=stop`."""
    if run.config.training.doctor == "stop" and run.log.alarms:
        run.alarm = str(run.log.alarms[0])
        run.stop()


def raise_alarm(run: Run) -> None:
    """Raises the alarm that ended the run, in all processes. Raises `CheckError`: there is one."""
    alarms = [alarm for alarm in run.peers.from_all(run.alarm) if alarm is not None]
    if alarms:
        raise CheckError(
            f"doctor: {alarms[0]} (training.doctor=stop; checkpoint-{run.step} is saved, and "
            "training.doctor=warn continues from it)"
        )


def problems_of(
    learner: Learner, samples: Sequence[Sample], rounded: bool = False
) -> Iterator[str]:
    """Problems in how a learner reads samples of its policy, or of its `rounded` weights."""
    _warn_of_forking(learner, samples)
    yield from _wrong_tokens(learner, samples)
    yield from _wrong_logprobs(learner, samples, rounded)


def _wrong_tokens(learner: Learner, samples: Sequence[Sample]) -> Iterator[str]:
    """Checks that exactly the sampled tokens are trained on, and none of the environment's."""
    batch = pack(samples, pad_id=learner.weights_of.pad_id)
    grid, tree = batch.grid, batch.tree
    at = grid.keep[grid.column]
    aligned = torch.equal(grid.input_ids[batch.sequence, at + 1], batch.tokens)
    same = torch.equal(grid.input_ids[batch.sequence, at], tree.ids[tree.predictors])
    real = bool(grid.attention_mask[batch.sequence, at + 1].all())
    count = sum(len(turn) for sample in samples for turn in sample.turns)
    if not (aligned and same and real) or len(batch) != count:
        yield (
            f"check tokens: the trained tokens of policy {learner.policy!r} are not those that "
            "were sampled; tokens of an environment would get a gradient, so check the chat "
            "template"
        )


def _wrong_logprobs(learner: Learner, samples: Sequence[Sample], rounded: bool) -> Iterator[str]:
    """Checks that engine and trainer give the sampled tokens the same probability."""
    policy = learner.weights_of
    current = partial(comparable, version=learner.version)
    probed = [sample for sample in samples if all(map(current, sample.turns))]
    if not probed:
        return
    batch = pack(probed, pad_id=policy.pad_id, device=policy.device)
    with policy.scoring():
        ours = policy.forward(batch).logprobs.float().cpu().numpy()
    theirs = np.concatenate([as_column(turn.logprobs, len(turn)) for turn in batch.turns])
    gap = float(np.abs(ours - theirs).mean())
    limit = MISMATCH[policy.precision]
    if rounded or policy.model.dtype in (torch.bfloat16, torch.float16):
        limit = max(limit, MISMATCH["bf16"])
    if not gap <= limit:
        yield (
            f"check mismatch_kl: engine and trainer give the tokens of policy {learner.policy!r} "
            "log-probs that differ by "
            f"{gap:.4f} on average (rounding explains {limit:g}); do they use the same weights, "
            "precision and temperature?"
        )


def _warn_of_forking(learner: Learner, samples: Sequence[Sample]) -> None:
    """Warns of a template that rewrites the past: each turn becomes a sample, correct but slow."""
    opening = [Message("a"), Message("b", Role.ASSISTANT), Message("c")]
    first = learner.chat.render(opening[:1])
    if not learner.chat.render(opening).startswith(first + "b") and any(
        t.index for s in samples for t in s.turns
    ):
        log.warning(
            "check template: the chat template of policy %r does not keep prefixes, so every turn "
            "is read from its start",
            learner.policy,
        )


def report(run: Run, problem: str) -> None:
    """Raises or logs the result of a check. Raises `CheckError`: unless `training.checks=warn`,
    which logs it."""
    if run.config.training.checks == "error":
        raise CheckError(f"{problem} (training.checks=warn continues anyway)")
    log.warning(problem)
