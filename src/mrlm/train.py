"""The training loop: rollouts, credit, update, weight transfer, until the steps are done; the rest
is in sources, placements and callbacks."""

import time
from collections.abc import Callable, Sequence

from mrlm.core.episodes import Group
from mrlm.core.errors import NonFiniteError
from mrlm.core.timing import span
from mrlm.learn.mismatch import mismatch_metrics
from mrlm.training.checks import (
    check_first_step,
    check_mismatch,
    check_signal,
    check_weights,
    heed_alarms,
    raise_alarm,
)
from mrlm.training.heap import still_heap
from mrlm.training.iteration import credit, evaluate, measure, play, show, update
from mrlm.training.metrics import api_metrics, by_policy
from mrlm.training.run import Phase, Run
from mrlm.training.saving import go_back_to_checkpoint, save, saved_before
from mrlm.training.weight_proof import exchange, prove


async def train(run: Run) -> Run:
    """Train until `run.total_steps` iterations are done or the run is stopped.

    Raises:
        KeyboardInterrupt: the run was interrupted; it has been saved and can be resumed.
        CheckError: an alarm ended it (`training.doctor=stop`); it has been saved.
    """
    with still_heap(run.total_steps - run.step) as tidy:
        return await _train(run, tidy)


async def _train(run: Run, tidy: Callable[[int], object]) -> Run:
    for callback in run.callbacks:
        callback.on_train_begin(run)
    run.population.grow(run.step)
    sampled = run.source.samples and not run.step
    await prove(run, [*run.learners, *run.frozen] if sampled else run.frozen)
    if run.step:
        await _share_weights(run)  # engines drop the proof's state and continue unchanged
    else:
        run.unproven = None if sampled else ()
        if run.config.evaluation.at_start and run.evaluates:
            run.log.log(0, await evaluate(run))
    stopping, interrupted = _agreed(run)
    while run.step < run.total_steps and not stopping:
        for callback in run.callbacks:
            callback.on_step_begin(run)
        run.phase = Phase.PLAYING
        try:
            with saved_before(run):
                metrics = await iterate(run, check=not run.checked)
        except NonFiniteError as error:
            run.phase = Phase.SAVED
            go_back_to_checkpoint(run, error)
            await _share_weights(run)
            continue
        run.checked = True
        run.step += 1
        last = run.step == run.total_steps
        run.population.grow(run.step)
        if run.evaluates and (last or _due(run.config.evaluation.every, run.step)):
            metrics |= await evaluate(run)
        with span("logging"):
            run.log.log(run.step, metrics)
        check_mismatch(run, metrics)
        heed_alarms(run)
        for callback in run.callbacks:
            callback.on_step_end(run, metrics)
        tidy(run.step)
        stopping, interrupted = _agreed(run)
        due = _due(run.config.training.save_steps, run.step) and not run.failing
        if stopping or due or (last and run.saves_end):
            save(run)
        run.phase = Phase.SAVED if run.saves_end or interrupted else Phase.UNSAVED
    if interrupted or (run.peers.size == 1 and run.interrupted):
        raise KeyboardInterrupt
    raise_alarm(run)
    for callback in run.callbacks:
        callback.on_train_end(run)
    return run


async def iterate(run: Run, check: bool = False) -> dict[str, float]:
    """One iteration: groups are sampled, credited and trained on; engines get the new weights.

    Args:
        run: the run.
        check: look for causes that would silently corrupt the run.
    """
    started, checks = time.perf_counter(), run.config.training.checks != "off"
    groups, dropped = await play(run)
    everything = [*groups, *dropped]
    played = time.perf_counter()
    run.log.record.trace(groups)
    valued = await credit(run, groups)
    metrics, scored = measure(run, groups, everything)
    turns = [turn for group in everything for episode in group for turn in episode.own_turns]
    tokens = sum([len(turn.completion_ids) for turn in turns if not turn.fed])
    if check and checks:
        with span("checks"):
            check_first_step(run, groups)
    show(run, run.step + 1, everything)
    opponents = run.population.standing()
    try:
        if checks:
            check_signal(run, groups, metrics)
        updates, between, drift = await update(run, groups)
    finally:  # also episodes that end the run
        with span("logging"):
            run.log.episodes(run.step + 1, everything, opponents)
    with span("sync"):
        await _share_weights(run, groups)
    if check and checks:
        with span("checks"):
            check_weights(run)
    ended = time.perf_counter()
    run.tokens += tokens
    return (
        metrics
        | between
        | by_policy(valued)
        | by_policy(updates)
        | run.peers.add_numbers([api_metrics(run.engines)])[0]
        | run.source.metrics()
        | mismatch_metrics([scored, drift], list(updates))
        | ({"rollbacks": float(run.rollbacks)} if run.config.training.rollback else {})
        | {
            "tokens/total": float(run.tokens),
            "tokens_per_second": tokens / (ended - started) if ended > started else 0.0,
            "seconds/play": max(0.0, played - started),
            "seconds/learn": max(0.0, ended - played),
        }
    )


async def _share_weights(run: Run, groups: Sequence[Group] = ()) -> None:
    """Give the engines the current policies, while no request is pending; `groups` are the latest
    training data."""
    await run.source.pause({learner.policy: learner.version for learner in run.learners})
    await exchange(run, run.learners, groups)


def _agreed(run: Run) -> tuple[bool, bool]:
    """Whether the run stops here, and by an interrupt: in all processes, as soon as in one."""
    flags = run.peers.from_all((run.stopping, run.interrupted))
    return any(stopping for stopping, _ in flags), any(interrupted for _, interrupted in flags)


def _due(every: int | None, step: int) -> bool:
    return bool(every) and step % every == 0  # type: ignore[operator]
