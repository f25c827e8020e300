"""Play beside learning, as a config asks for it: what cannot work is refused, sources and policies
are made for it, and `--dry-run` says what will happen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from mrlm.build.run_plan import RunPlan
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import Peers
from mrlm.learn.fast.cpu_backends import shared_processor
from mrlm.learn.policy.copies import mirrored
from mrlm.learn.policy.policy import Policy
from mrlm.training.run import Run

LAG = "training.max_lag"
MORE = "asynchrony.oversample"


def check_asynchrony(plan: RunPlan) -> None:
    """Refuse what cannot be played ahead, learned from late, or broken off.

    Raises:
        ConfigError: names the setting and the reason.
    """
    config, spec, schedule = plan.config, plan.spec, plan.schedule
    lag, name = config.training.max_lag, config.training.algorithm
    key = f"{LAG}={lag}" if lag else f"{MORE}={config.asynchrony.oversample:g}"
    more = surplus_of(plan)
    if not lag and not more:
        return
    if plan.imitates:
        raise ConfigError(
            f"{key}: {name} learns from a data set or from collected episodes, so there is no play "
            "that could go on beside it; remove it"
        )
    if config.distributed.enabled:
        _refuse_several(config)
    if more:
        _check_oversample(plan, key)
    if not lag:
        return
    if spec.reads_old and spec.refuses_lag is not None:
        raise ConfigError(spec.refuses_lag.format(name=type(plan.algorithm).__name__))
    if config.engine.sleep:
        raise ConfigError(
            f"{key}: play goes on while policies learn, and with engine.sleep=true the servers "
            "that sample sleep then; set engine.sleep=false"
        )
    if config.opponents.on:
        raise ConfigError(
            f"{key}: opponents are drawn for the tasks of one iteration and given their weights "
            "before it, and tasks that are played ahead belong to later ones; set "
            f"{LAG}=0, or remove the section opponents"
        )
    if schedule.swap_every is not None or schedule.order == "alternating":
        raise ConfigError(
            f"{key}: who plays with which policy, and whose turns are learned from, changes with "
            "the iteration here, and tasks that are played ahead belong to later ones; set "
            f"{LAG}=0, or training.schedule.order=simultaneous without swap_every"
        )


def check_processes(config: ExperimentConfig, peers: Peers) -> None:
    """Refuse what only one process can count, however the others were started.

    Raises:
        ConfigError: names the setting and the reason.
    """
    if peers.size > 1:
        _refuse_several(config)


def _refuse_several(config: ExperimentConfig) -> None:
    if config.training.max_lag:
        raise ConfigError(
            f"{LAG}={config.training.max_lag}: what engines sample from is a copy that one process "
            f"makes of what it trains, and here several processes train it; set {LAG}=0"
        )
    if config.asynchrony.oversample > 1:
        raise ConfigError(
            f"{MORE}={config.asynchrony.oversample:g}: which episodes are complete first is "
            "counted in rounds of one engine, and here several processes play; remove it"
        )


def _check_oversample(plan: RunPlan, key: str) -> None:
    """Only plays that know nothing of each other can be broken off one by one."""
    asked = plan.spec.sampling
    for world in plan.trained_worlds:
        together = world.workflow.spec.opens or world.workflow.spec.forks
        if together or asked.cross is not None or asked.tree:
            raise ConfigError(
                f"{key}: the plays of a task of environment {world.name!r} grow from one another, "
                "so none of them can be broken off; remove it"
            )


def surplus_of(plan: RunPlan) -> int:
    """Episodes of each task that are begun besides those that are kept."""
    size = plan.algorithm.group_size
    return math.ceil(round(size * plan.config.asynchrony.oversample, 6)) - size


def copies_of(plan: RunPlan, policies: dict[str, Policy]) -> dict[str, Policy]:
    """The policies that engines sample from: those that learn, or copies where both go on at the
    same time."""
    if not plan.config.training.max_lag:
        return policies
    return mirrored(policies, [name for name in policies if plan.cast.policies[name].trainable])


@contextmanager
def beside_play(run: Run) -> Iterator[None]:
    """Around a run whose play may go on beside it; play ends with it."""
    if not run.config.training.max_lag:
        yield
        return
    with shared_processor():
        try:
            yield
        finally:
            run.source.close()


def describe(plan: RunPlan) -> list[str]:
    """What will go on beside what, in lines for a person; none where nothing does."""
    lag, partial = plan.config.training.max_lag, plan.config.asynchrony.partial
    lines: list[str] = []
    if lag == 1:
        lines.append(
            "asynchrony: while a batch is learned from, the next one is played, with weights that "
            "are one update older when its turn comes"
        )
    elif lag:
        way = (
            "episodes go on with new weights where they are when those come"
            if partial
            else "every episode is played with the weights it began with"
        )
        lines.append(
            f"asynchrony: while a batch is learned from, up to {lag} batches are played, with "
            f"weights that are at most {lag} updates older when their turn comes; {way}"
        )
    size, more = plan.algorithm.group_size, surplus_of(plan)
    if more:
        lines.append(
            f"oversampling: {size + more} episodes of each task are begun, and the first {size} to "
            "be complete are kept"
        )
    return lines
