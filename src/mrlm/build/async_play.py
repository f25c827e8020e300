"""Asynchronous rollouts as configured: checks, engine copies of the policies, and the lines that
`--dry-run` prints."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from mrlm.build.run_plan import RunPlan
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.learn.fast.cpu_backends import shared_processor
from mrlm.learn.policy.copies import mirrored
from mrlm.learn.policy.policy import Policy
from mrlm.training.run import Run

LAG = "training.max_lag"
MORE = "asynchrony.oversample"


def check_asynchrony(plan: RunPlan) -> None:
    """Refuses runs that cannot sample ahead, train on stale episodes, or abort episodes."""
    config, spec, schedule = plan.config, plan.spec, plan.schedule
    lag, name = config.training.max_lag, config.training.algorithm
    key = f"{LAG}={lag}" if lag else f"{MORE}={config.asynchrony.oversample:g}"
    more = surplus_of(plan)
    if not lag and not more:
        return
    if plan.imitates:
        raise ConfigError(
            f"{key}: {name} trains on a data set or on collected episodes, so there are no "
            "rollouts to run in parallel; remove it"
        )
    if config.distributed.enabled or plan.peers.size > 1:
        _refuse_several(config)
    if more:
        _check_oversample(plan, key)
    if not lag:
        return
    if spec.reads_old and spec.refuses_lag is not None:
        raise ConfigError(spec.refuses_lag.format(name=type(plan.algorithm).__name__))
    if config.engine.sleep:
        raise ConfigError(
            f"{key}: rollouts continue while policies train, and with engine.sleep=true the "
            "servers that sample sleep then; set engine.sleep=false"
        )
    if config.opponents.on:
        raise ConfigError(
            f"{key}: opponents are sampled per iteration and their weights loaded before it, and "
            "tasks that are played ahead belong to later ones; set "
            f"{LAG}=0, or remove the section opponents"
        )
    if schedule.swap_every is not None or schedule.order == "alternating":
        raise ConfigError(
            f"{key}: the policy of each agent, and the agents that are trained, change with the "
            "iteration here, and tasks that are played ahead belong to later ones; set "
            f"{LAG}=0, or training.schedule.order=simultaneous without swap_every"
        )


def _refuse_several(config: ExperimentConfig) -> None:
    if config.training.max_lag:
        raise ConfigError(
            f"{LAG}={config.training.max_lag}: engines sample from a copy of the policy that one "
            f"process makes, and here several processes train the policy; set {LAG}=0"
        )
    if config.asynchrony.oversample > 1:
        raise ConfigError(
            f"{MORE}={config.asynchrony.oversample:g}: the order in which episodes complete is "
            "counted in rounds of one engine, and here several processes sample; remove it"
        )


def _check_oversample(plan: RunPlan, key: str) -> None:
    """Refuses workflows whose episodes depend on each other: these cannot be aborted one by one."""
    sampler = plan.spec.sampling
    for env in plan.trained_environments:
        together = env.workflow.spec.opens or env.workflow.spec.forks
        if together or sampler.cross is not None or sampler.tree:
            raise ConfigError(
                f"{key}: the episodes of a task of environment {env.name!r} branch from one "
                "another, so none of them can be aborted; remove it"
            )


def surplus_of(plan: RunPlan) -> int:
    """Episodes of each task that are started beyond those that are kept."""
    size = plan.algorithm.group_size
    return math.ceil(round(size * plan.config.asynchrony.oversample, 6)) - size


def copies_of(plan: RunPlan, policies: dict[str, Policy]) -> dict[str, Policy]:
    """Policies that engines sample from: the trained ones, or copies where sampling and training
    overlap."""
    if not plan.config.training.max_lag:
        return policies
    sections = plan.assignment.policies
    return mirrored(policies, [name for name in policies if sections[name].trainable])


@contextmanager
def beside_play(run: Run) -> Iterator[None]:
    """A context around a run that may sample in parallel; sampling ends with it."""
    if not run.config.training.max_lag:
        yield
        return
    with shared_processor():
        try:
            yield
        finally:
            run.source.close()


def describe(plan: RunPlan) -> list[str]:
    """Lines for a person about the overlap of sampling and training; none where nothing does."""
    lag, partial = plan.config.training.max_lag, plan.config.asynchrony.partial
    lines: list[str] = []
    if lag == 1:
        lines.append(
            "asynchrony: while one batch is trained on, the next is sampled, with weights that "
            "are one update old when it is trained on"
        )
    elif lag:
        way = (
            "running episodes take new weights as soon as these arrive"
            if partial
            else "every episode keeps the weights it began with"
        )
        lines.append(
            f"asynchrony: while one batch is trained on, up to {lag} batches are sampled, with "
            f"weights that are at most {lag} updates old when they are trained on; {way}"
        )
    size, more = plan.algorithm.group_size, surplus_of(plan)
    if more:
        lines.append(
            f"oversampling: {size + more} episodes of each task are started, and the first {size} "
            "to complete are kept"
        )
    return lines
