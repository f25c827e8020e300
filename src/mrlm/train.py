"""The one loop. Play, credit, learn, share, until the steps are done; everything else is a
plug-in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import NonFiniteError
from mrlm.core.timing import span
from mrlm.learn.checkpoint import read_checkpoint, read_state, write_checkpoint, writing
from mrlm.learn.critics.critic import Critic
from mrlm.learn.learner import Learner
from mrlm.learn.mismatch import lag_kl, mismatch_metrics, taken, tally
from mrlm.learn.ops import complete
from mrlm.play.agent import seed_of
from mrlm.play.engine import RemoteEngine, Rests
from mrlm.play.sources.ahead import Ahead
from mrlm.training.checks import check_first_step, check_mismatch, check_weights, warn_untrained
from mrlm.training.metrics import api_metrics, by_policy, credit_metrics, episode_metrics
from mrlm.training.rollback import count_at, go_back
from mrlm.training.run import Run
from mrlm.training.weight_proof import exchange, prove

log: logging.Logger = logging.getLogger("mrlm")


async def train(run: Run) -> Run:
    """Train until `run.total_steps` iterations are done or somebody stops the run.

    Raises:
        KeyboardInterrupt: the run was interrupted; it has been saved and can be resumed.
    """
    for callback in run.callbacks:
        callback.on_train_begin(run)
    run.population.grow(run.step)
    if run.step:
        await prove(run, run.frozen)
        await _share_weights(run)  # engines forget the proof, and go on as they would have
    else:
        await prove(run, [*run.learners, *run.frozen])
    if run.step == 0 and run.config.evaluation.at_start and _evaluates(run):
        run.log.log(0, await evaluate(run))
    checked = False
    stopping, interrupted = _agreed(run)
    while run.step < run.total_steps and not stopping:
        for callback in run.callbacks:
            callback.on_step_begin(run)
        try:
            metrics = await iterate(run, check=not checked)
        except NonFiniteError as error:
            await _return(run, error)
            continue
        checked = True
        run.step += 1
        run.population.grow(run.step)
        if _evaluates(run) and (
            run.step == run.total_steps or _due(run.config.evaluation.every, run.step)
        ):
            metrics |= await evaluate(run)
        with span("logging"):
            run.log.log(run.step, metrics)
        check_mismatch(run, metrics)
        for callback in run.callbacks:
            callback.on_step_end(run, metrics)
        stopping, interrupted = _agreed(run)
        if (
            stopping
            or run.step == run.total_steps
            or (_due(run.config.training.save_steps, run.step) and not _failing(run))
        ):
            save(run)
    if interrupted or (run.peers.size == 1 and run.interrupted):
        raise KeyboardInterrupt
    for callback in run.callbacks:
        callback.on_train_end(run)
    return run


async def iterate(run: Run, check: bool = False) -> dict[str, float]:
    """One iteration: groups are played, credited, learned from, and the engines get the new
    weights."""
    started, algorithm = time.perf_counter(), run.algorithm
    run.take_seats(run.step)
    await run.population.meet(run.step)
    with span("play"):
        groups, dropped = await _take(run)
    everything = [*groups, *dropped]
    await _rest(run)
    played = time.perf_counter()
    with span("annotate"):
        for critic in run.critics:
            critic.annotate(groups)
        _renew_references(run)
        await asyncio.gather(*(each.annotate(groups, algorithm.needs) for each in run.learners))
    with span("credit"), complete():
        algorithm.credit(groups)
    with span("update"):
        valued = {critic.name: _value(run, critic, groups) for critic in run.critics}
    with span("credit"), complete():
        algorithm.refine(groups, run.critics)
    metrics = episode_metrics(everything) | credit_metrics(groups) | algorithm.metrics
    if run.config.training.checks != "off":
        warn_untrained(run, metrics)
    metrics |= run.population.note(everything)
    versions = {learner.policy: learner.version for learner in run.learners}
    turns = [turn for group in groups for episode in group.valid for turn in episode.turns]
    scored, aged = tally(turns, versions), lag_kl(turns)
    if algorithm.refills:
        metrics["num_groups_played"] = float(len(everything))
        metrics["num_groups_trained"] = float(len(groups))
    if check and run.config.training.checks != "off":
        with span("checks"):
            check_first_step(run, groups)
    with span("logging"):
        _note(run, run.step + 1, everything)
    updates: dict[str, dict[str, float]] = {learner.policy: {} for learner in run.learners}
    with span("update"):
        seed = seed_of((run.config.training.seed, "order", run.step))
        stages = run.schedule.stages(algorithm.order(run.learners), run.step, seed)
        for place, stage in enumerate(stages):
            updates |= await _update(run, stage, groups)
            waiting = [learner for later in stages[place + 1 :] for learner in later]
            if waiting:
                with complete():
                    metrics |= await algorithm.carry(stage, waiting, groups)
    with span("sync"):
        await _share_weights(run, groups)
    if check and run.config.training.checks != "off":
        with span("checks"):
            check_weights(run)
    ended = time.perf_counter()
    episodes = [episode for group in everything for episode in group]
    tokens = sum(len(turn) for episode in episodes for turn in episode.own_turns)
    run.tokens += tokens
    return (
        metrics
        | by_policy(valued)
        | aged
        | mismatch_metrics([scored, taken(updates)], list(versions))
        | by_policy(updates)
        | (run.source.metrics() if isinstance(run.source, Ahead) else {})
        | run.peers.add_numbers([api_metrics(run.engines)])[0]
        | ({"rollbacks": float(run.rollbacks)} if run.config.training.rollback else {})
        | {
            "tokens/total": float(run.tokens),
            "tokens_per_second": tokens / max(ended - started, 1e-9),
            "seconds/play": played - started,
            "seconds/learn": ended - played,
        }
    )


async def _take(run: Run) -> tuple[list[Group], list[Group]]:
    """The groups of an iteration, and those that the algorithm does not keep. If it keeps none at
    all, the first ones are learned from all the same."""
    count, algorithm = run.config.training.batch_size, run.algorithm
    groups = await run.source.take(count)
    if not algorithm.refills:
        return groups, []
    kept: list[Group] = []
    dropped: list[Group] = []
    for refill in range(algorithm.refills + 1):
        if refill:
            groups = await run.source.take(count - len(kept))
        for group in groups:
            (kept if algorithm.keeps(group) else dropped).append(group)
        if len(kept) >= count:
            break
    if not kept:
        log.warning(
            "step %d: in none of %d groups (%d refills) do rewards differ, so it trains nothing; "
            "use easier or harder tasks, or a larger group_size",
            run.step + 1,
            len(dropped),
            algorithm.refills,
        )
        return dropped[:count], dropped[count:]
    return kept, dropped


async def evaluate(
    run: Run, episodes: int | None = None, samples: int | None = None, greedy: bool | None = None
) -> dict[str, float]:
    """Play held-out tasks and return the metrics under `eval/`. Arguments default to the
    `evaluation` section."""
    metrics, groups = await evaluate_groups(run, episodes, samples, greedy)
    _note(run, run.step, groups)
    if run.evaluator is not None:
        calm = run.config.evaluation.greedy if greedy is None else greedy
        metrics |= await run.population.evaluate(run.evaluator, run.step, calm)
    for callback in run.callbacks:
        callback.on_evaluate(run, metrics)
    return metrics


async def evaluate_groups(
    run: Run, episodes: int | None = None, samples: int | None = None, greedy: bool | None = None
) -> tuple[dict[str, float], list[Group]]:
    """The same, with the episodes that were played."""
    section = run.config.evaluation
    if run.evaluator is None:
        return {}, []
    run.take_seats(max(0, run.step - 1))  # the roles of the latest iteration
    with span("evaluation"):
        groups = await run.evaluator.evaluate(
            section.episodes if episodes is None else episodes,
            section.samples if samples is None else samples,
            section.greedy if greedy is None else greedy,
        )
    found = episode_metrics(groups) | run.peers.add_numbers([api_metrics(run.engines)])[0]
    return {f"eval/{name}": value for name, value in found.items()}, groups


def save(run: Run) -> Path:
    """Write a checkpoint of everything the run holds.

    Raises:
        TrainingError: the disk refused; the checkpoint before is as it was.
    """
    parts = {
        "source": run.source.state_dict(),
        "algorithm": run.algorithm.state_dict(),
        "population": run.population.state_dict(),
        "log": run.log.state(),
        "run": {"tokens": run.tokens, "rollbacks": run.rollbacks, "config": run.config.hash()},
        "api": {name: engine.state_dict() for name, engine in _remote(run).items()},
    }
    keep = run.config.training.save_total_limit
    with span("saving"), writing(run.folder / f"checkpoint-{run.step}"):
        place = run.folder / f".checkpoint-{run.step}.tmp-shards"
        shards = None
        if _cut(run):
            from mrlm.distributed.checkpoint import write_shards

            shards = write_shards(place, run.learners, run.critics, run.peers)
        folder = run.peers.first(
            lambda: write_checkpoint(
                run.folder, run.step, run.learners, parts, keep, run.critics, shards
            )
        )
    run.population.tidy()
    for callback in run.callbacks:
        callback.on_save(run, folder)
    return folder


def restore(run: Run, folder: Path) -> None:
    """Continue where a verified checkpoint folder was written."""
    shards_of = None
    if _cut(run) or (folder / "shards").is_dir():
        from mrlm.distributed.checkpoint import CheckpointReader

        shards_of = CheckpointReader(folder)
    state = read_checkpoint(folder, run.learners, run.critics, shards_of)
    run.step, run.tokens = state["step"], state["parts"]["run"]["tokens"]
    recorded = state["parts"]["run"].get("rollbacks", 0)
    run.ease(count_at(folder.parent, run.step, recorded))
    run.source.load_state_dict(state["parts"]["source"])
    run.algorithm.load_state_dict(state["parts"]["algorithm"])
    if "population" in state["parts"]:
        run.population.load_state_dict(state["parts"]["population"], folder.parent)
    for name, known in state["parts"].get("api", {}).items():
        if name in _remote(run):
            _remote(run)[name].load_state_dict(known)


async def _return(run: Run, error: NonFiniteError) -> None:
    """Take up the last good checkpoint and learn more slowly from there.

    Raises:
        NonFiniteError: the same again, where the run may not or cannot.
    """
    allowed = run.config.training.rollback
    failed = run.step

    def decide() -> Path | NonFiniteError:
        try:
            return go_back(run.folder, failed, run.rollbacks, allowed, error)
        except NonFiniteError as refused:
            return refused

    with writing(run.folder):
        folder = run.peers.first(decide)
        if isinstance(folder, NonFiniteError):
            raise folder
        state = read_state(folder)
        run.log.back(state["step"], state["parts"]["log"])
    restore(run, folder)
    factor = run.config.training.rollback_factor**run.rollbacks
    log.warning("%s", error)
    run.log.note(
        f"step {failed + 1} failed; going on from {folder.name} with {factor:g} times the "
        f"learning rate (rollback {run.rollbacks} of {allowed})"
    )
    await _share_weights(run)


def _failing(run: Run) -> bool:
    """Whether somebody is in the middle of steps that are not finite: nothing to come back to."""
    stepped = (*run.learners, *run.critics)
    return run.config.training.rollback > 0 and any(each.nonfinite for each in stepped)


def _note(run: Run, step: int, groups: Sequence[Group]) -> None:
    """Log what was played, and show it to whoever wants to see."""
    episodes: list[Episode] = [episode for group in groups for episode in group]
    run.log.episodes(step, episodes, run.population.standing())
    for callback in run.callbacks:
        callback.on_episodes(run, step, episodes)


async def _update(
    run: Run, stage: Sequence[Learner], groups: Sequence[Group]
) -> dict[str, dict[str, float]]:
    """Metrics by policy of a stage of learners that update together."""
    jobs = [
        (
            learner,
            run.algorithm.samples(groups, learner.policy),
            seed_of((run.config.training.seed, "update", run.step, learner.policy)),
        )
        for learner in stage
    ]
    metrics = await run.placement.update(jobs, run.algorithm, run.step)
    return {learner.policy: found for learner, found in zip(stage, metrics, strict=True)}


async def _share_weights(run: Run, groups: Sequence[Group] = ()) -> None:
    """Give the engines the policies as they are, while nobody asks them for anything; `groups` are
    what was trained on last."""
    if isinstance(run.source, Ahead):
        await run.source.rest({learner.policy: learner.version for learner in run.learners})
    await exchange(run, run.learners, groups)


async def _rest(run: Run) -> None:
    """Everything is played: engines may let go of memory that learning can use."""
    for engine in {id(each): each for each in run.engines.values()}.values():
        if isinstance(engine, Rests):
            await engine.rest()


def _remote(run: Run) -> dict[str, RemoteEngine]:
    """policy -> what asks for it, of those behind an API."""
    return {
        name: engine for name, engine in run.engines.items() if isinstance(engine, RemoteEngine)
    }


def _renew_references(run: Run) -> None:
    """Where an outer loop begins anew, compare with the policies as they are now."""
    batch_size, tasks = run.config.training.batch_size, run.source.num_tasks()
    if run.algorithm.renews_reference(run.step, tasks, batch_size):
        for learner in run.learners:
            learner.renew_reference()


def _value(run: Run, critic: Critic, groups: Sequence[Group]) -> dict[str, float]:
    seed = seed_of((run.config.training.seed, "critic", run.step, critic.name))
    return critic.update(groups, run.algorithm, run.step, seed)


def _agreed(run: Run) -> tuple[bool, bool]:
    """Whether the run stops here, and whether that is because somebody interrupted it: in all
    processes, as soon as it does in one."""
    flags = run.peers.gather((run.stopping, run.interrupted))
    return any(stopping for stopping, _ in flags), any(interrupted for _, interrupted in flags)


def _cut(run: Run) -> bool:
    """Whether weights are cut over processes."""
    section = run.config.distributed
    return section.enabled and section.strategy == "fsdp"


def _evaluates(run: Run) -> bool:
    return run.evaluator is not None and run.config.evaluation.episodes > 0


def _due(every: int | None, step: int) -> bool:
    return bool(every) and step % every == 0  # type: ignore[operator]
