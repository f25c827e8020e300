"""The parts of an iteration: rollouts, credit, update; and evaluation on held-out tasks."""

import asyncio
from collections.abc import Sequence

from mrlm.core.episodes import Group
from mrlm.core.log import log
from mrlm.core.timing import span
from mrlm.learn.agent_numbers import agent_metrics
from mrlm.learn.bases.steps import carry, keeps, refine
from mrlm.learn.credit.explain import explain_others
from mrlm.learn.meter import Measured
from mrlm.learn.mismatch import Tally, first_passes, lag_kl, tally
from mrlm.learn.ops import complete
from mrlm.play.agent import seed_of
from mrlm.play.engine import rest
from mrlm.selfplay.opponent_pool import mean_scores
from mrlm.tracking.payoffs import Payoffs
from mrlm.training.effects import effect_metrics
from mrlm.training.metrics import api_metrics, credit_metrics, distinct_metrics, episode_metrics
from mrlm.training.run import Phase, Run
from mrlm.training.weight_proof import prove

Updates = dict[str, dict[str, float]]
"""Network -> metrics of its update."""


async def play(run: Run) -> tuple[list[Group], list[Group]]:
    """Plays the groups of an iteration with the policies and opponents of its step; returns them,
    and those that the algorithm drops."""
    run.phase = Phase.PLAYING
    run.assign_policies(run.step)
    await run.population.meet(run.step)
    with span("play"):
        groups, dropped = await take(run)
    await rest(run.engines)
    return groups, dropped


async def take(run: Run) -> tuple[list[Group], list[Group]]:
    """The groups of an iteration, and those that the algorithm drops. If it drops all, the first
    ones are trained on anyway."""
    count, refills = run.config.training.batch_size, run.spec.sampling.refills
    groups = await run.source.take(count)
    if not refills:
        return groups, []
    selected: list[Group] = []
    dropped: list[Group] = []
    for refill in range(refills + 1):
        if refill:
            groups = await run.source.take(count - len(selected))
        for group in groups:
            (selected if keeps(run.algorithm, group) else dropped).append(group)
        if len(selected) >= count:
            break
    if not selected:
        log.warning(
            "step %d: none of %d groups (%d refills) has different rewards, so it trains nothing; "
            "use easier or harder tasks, or a larger group_size",
            run.step + 1,
            len(dropped),
            refills,
        )
        return dropped[:count], dropped[count:]
    return selected, dropped


def show(run: Run, step: int, groups: Sequence[Group]) -> None:
    """Calls the callbacks with the episodes of a step."""
    episodes = [episode for group in groups for episode in group]
    for callback in run.callbacks:
        callback.on_episodes(run, step, episodes)


async def credit(run: Run, groups: Sequence[Group]) -> Updates:
    """Writes columns and advantages to turns, and updates the critics.

    Returns:
        The critics' updates.
    """
    algorithm, seed = run.algorithm, run.config.training.seed
    with span("annotate"):
        for critic in run.critics:
            critic.annotate(groups)
        tasks, batch_size = run.source.num_tasks(), run.config.training.batch_size
        if run.spec.renews_reference(run.step, tasks, batch_size):
            for learner in run.learners:
                run.phase = Phase.UPDATING
                learner.renew_reference()
        await asyncio.gather(*(each.annotate(groups, run.spec.columns) for each in run.learners))
    with span("credit"), complete():
        algorithm.credit(groups)
    with span("update"):
        valued: Updates = {}
        for critic in run.critics:
            run.phase = Phase.UPDATING
            critic_seed = seed_of((seed, "critic", run.step, critic.name))
            valued[critic.name] = critic.update(groups, algorithm, run.step, critic_seed)
    with span("credit"), complete():
        refine(algorithm, groups, run.critics)
        explain_others(groups, type(algorithm).__name__)
    return valued


def measure(
    run: Run, groups: Sequence[Group], everything: Sequence[Group]
) -> tuple[dict[str, float], Tally]:
    """Metrics of credited groups before the update, and the mismatch of their columns.

    Args:
        groups: those that are trained on.
        everything: those that were played.
    """
    episodes = [episode for group in groups for episode in [*group.valid, *group.replays]]
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics = episode_metrics(everything)
    if not run.source.rewarded:
        metrics = {
            f"data/{name}" if "reward/" in name else name: value for name, value in metrics.items()
        }
    metrics |= {} if run.spec.sampling.rows else distinct_metrics(everything)
    metrics |= credit_metrics(groups) | run.algorithm.metrics
    metrics |= run.population.note(everything) | lag_kl(turns)
    if run.spec.sampling.refills:
        metrics["num_groups_played"] = float(len(everything))
        metrics["num_groups_trained"] = float(len(groups))
    return metrics, tally(turns, {learner.policy: learner.version for learner in run.learners})


async def update(
    run: Run, groups: Sequence[Group]
) -> tuple[dict[str, Measured], dict[str, float], Tally]:
    """Updates the policies, stage by stage of the schedule.

    Returns:
        The policies' updates; their numbers by agent, with the metrics of an algorithm between two
        stages; and the mismatch in the first passes.
    """
    algorithm, seed = run.algorithm, run.config.training.seed
    run.phase = Phase.UPDATING
    updates = {learner.policy: Measured() for learner in run.learners}
    between: dict[str, float] = {}
    learners = [] if algorithm.waiting else run.learners
    stages = run.schedule.stages(learners, run.step, seed_of((seed, "order", run.step)))
    with span("update"):
        for index, stage in enumerate(stages):
            names = [learner.policy for learner in stage]
            samples = [algorithm.samples(groups, name) for name in names]
            seeds = [seed_of((seed, "update", run.step, name)) for name in names]
            jobs = list(zip(stage, samples, seeds, strict=True))
            metrics = await run.placement.update(jobs, algorithm, run.step)
            updates |= dict(zip(names, metrics, strict=True))
            waiting = [learner for later in stages[index + 1 :] for learner in later]
            with complete():
                between |= await carry(algorithm, stage, waiting, groups)
    drift = first_passes({policy: update.agents for policy, update in updates.items()})
    return updates, between | agent_metrics(updates), drift


async def evaluate(run: Run) -> dict[str, float]:
    """Plays held-out tasks, and games against opponents; returns the metrics under `eval/`."""
    metrics, groups = await evaluate_groups(run)
    effect_values = await effect_metrics(run, groups)
    metrics |= {f"eval/{name}": value for name, value in effect_values.items()}
    run.log.episodes(run.step, groups, run.population.standing())
    show(run, run.step, groups)
    if run.evaluator is not None:
        greedy = run.config.evaluation.greedy
        metrics |= await run.population.evaluate(run.evaluator, run.step, greedy)
        run.log.payoffs(run.step, Payoffs(*mean_scores(run.population)))
    for callback in run.callbacks:
        callback.on_evaluate(run, metrics)
    return metrics


async def evaluate_groups(
    run: Run, episodes: int | None = None, samples: int | None = None, greedy: bool | None = None
) -> tuple[dict[str, float], list[Group]]:
    """Held-out tasks are played: the metrics under `eval/`, and the episodes. Arguments default to
    the `evaluation` section."""
    section = run.config.evaluation
    if run.evaluator is None:
        return {}, []
    if run.unproven is not None:
        groups, run.unproven = run.unproven, None
        await prove(run, run.learners, groups)
    run.assign_policies(max(0, run.step - 1))  # the roles of the latest iteration
    with span("evaluation"):
        groups = await run.evaluator.evaluate(
            section.episodes if episodes is None else episodes,
            section.samples if samples is None else samples,
            section.greedy if greedy is None else greedy,
        )
    metrics = episode_metrics(groups) | run.peers.add_numbers([api_metrics(run.engines)])[0]
    return {f"eval/{name}": value for name, value in metrics.items()}, groups
