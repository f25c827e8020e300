"""ExperimentConfig -> Run: the only place that puts things together. Plug-ins are loaded by name
here and nowhere else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from mrlm.build.async_play import (
    check_asynchrony,
    check_processes,
    copies_of,
    plan_ahead,
)
from mrlm.build.compatibility import check_plays, check_taught, crossed
from mrlm.build.engines import check_engine, make_engines
from mrlm.build.environments import make_worlds
from mrlm.build.in_process import TINY
from mrlm.build.ineffective import refuse_idle, verdicts
from mrlm.build.opponents import check_opponents, population_of, stand_ins_of
from mrlm.build.placement import placement_of
from mrlm.build.policies import Cast, Parts, assign, load_policies, make_seats
from mrlm.build.schedule import casts_of, schedule_of
from mrlm.build.sources import Data, play_of, rows_of, source_of, total_steps
from mrlm.config import ExperimentConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.sync_async import run_async
from mrlm.data.tasks import Reading
from mrlm.distributed import join
from mrlm.distributed.silent_log import Quiet
from mrlm.learn.checkpoint import (
    clear_temporaries,
    newest_verified,
    read_state,
    step_of,
    thin,
    writing,
)
from mrlm.learn.critics.critic import Critic
from mrlm.learn.data.data_parallel import weights_of
from mrlm.learn.fast.cpu_backends import keep_freed_memory
from mrlm.learn.learner import Learner
from mrlm.learn.policy.policy import Policy
from mrlm.learn.schedule import Schedule
from mrlm.planning.model_shape import ModelShape
from mrlm.planning.plan import Plan, arithmetic
from mrlm.play.engine import Engine
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import WorldSpec, count_tasks
from mrlm.tracking.run_log import RunLog, check_trackers
from mrlm.train import restore
from mrlm.training.input_digests import check_inputs, note_inputs
from mrlm.training.rollback import settle
from mrlm.training.run import Run
from mrlm.training.weight_proof import exchange

log: logging.Logger = logging.getLogger("mrlm")


def build(
    config: ExperimentConfig,
    parts: Parts | None = None,
    resume: Path | None = None,
    checked: bool = True,
) -> Run:
    """Put a run together.

    Args:
        config: one stage of an experiment.
        parts: live objects that stand for sections of the config.
        resume: a run folder or checkpoint to continue from.
        checked: refuse settings that change nothing in this run.

    Raises:
        ConfigError: something asked for does not exist or does not fit; nothing has been written
            then.
    """
    parts = parts or Parts()
    peers = join(config.distributed)
    check_processes(config, peers)
    algorithm = config.algorithm_settings()
    worlds, rows, cast = plan_of(config, parts)
    if checked and resume is None:
        refuse_idle(verdicts(config, parts, worlds, rows is not None, cast))
    log.info("%s", cast)
    if config.training.checks != "off":
        _check_memory(arithmetic_of(config, worlds, rows, cast))
    placing = placement_of(config, cast, parts, peers)
    policies = placing.load_policies()
    if all(policy.device.type == "cpu" for policy in policies.values()):
        keep_freed_memory()
    worlds = placing.worlds(worlds)
    stand_ins = stand_ins_of(config, cast, policies)
    spare = {policy.name: policy for several in stand_ins.values() for policy in several}
    copies = copies_of(config, cast, policies)
    engines = placing.make_engines(copies | spare)
    schedule = schedule_of(config, algorithm, cast)
    if schedule != Schedule():
        log.info("schedule: %s", schedule)
    casts = casts_of(config, cast, policies, parts, schedule)
    seats = casts[0]
    source = source_of(config, algorithm, worlds, rows, seats, engines, peers)
    total = total_steps(config, source.num_tasks())
    plan_ahead(source, total)
    checkpoint = None if resume is None else peers.first(lambda: _checkpoint(config, resume))
    state = None if checkpoint is None else read_state(checkpoint)
    folder = peers.first(lambda: prepare_folder(config, resume))
    learners = placing.make_learners(algorithm, policies, total, folder)
    _check_rates(config, cast, learners)
    for learner in learners if copies is not policies else ():
        learner.mirror = copies[learner.policy]
    population = population_of(config, folder, cast, policies, stand_ins, engines, peers)
    if population and isinstance(source, Play):
        source.sit = population.sit
    critics = placing.make_critics(algorithm, learners, policies, total, folder)
    peers.spread(weights_of([*policies.values(), *spare.values()], critics))
    if config.distributed.enabled and config.distributed.strategy == "fsdp":
        _shard(config, learners, critics, engines, peers)
    run = Run(
        config=config,
        folder=folder,
        algorithm=algorithm,
        source=source,
        learners=learners,
        engines=engines,
        evaluator=play_of(config, 1, worlds, seats, engines, peers=peers) if worlds else None,
        log=open_log(config, folder, total, state, peers),
        total_steps=total,
        critics=critics,
        callbacks=tuple(parts.callbacks),
        schedule=schedule,
        casts=casts,
        population=population,
        peers=peers,
        placement=placing,
        frozen=placing.frozen(policies, copies),
    )
    population.exchange = partial(exchange, run)
    placing.ready(run, checkpoint)
    if checkpoint is not None:
        restore(run, checkpoint)
        log.info("continuing from %s", checkpoint)
        if run.step >= total:
            log.warning(
                "%s: all %d iterations are done already; to go on, raise training.num_iterations",
                folder,
                total,
            )
    return run


def _shard(
    config: ExperimentConfig,
    learners: Sequence[Learner],
    critics: Sequence[Critic],
    engines: Mapping[str, Engine],
    peers: Peers,
) -> None:
    """Cut what is trained over the processes; the engines sample with copies that are whole."""
    from mrlm.distributed.sharded import shard

    shard(learners, critics, config.distributed.fsdp, peers)
    for learner in learners:
        name = learner.policy
        run_async(engines[name].load_weights(name, learner.weights(), learner.version))


def open_log(
    config: ExperimentConfig,
    folder: Path,
    total: int,
    state: dict[str, Any] | None,
    peers: Peers = ALONE,
) -> RunLog:
    """The log of a run, from its beginning or from where the state of a checkpoint left off. Of
    several processes one writes it."""
    if not peers.main:
        return Quiet(folder)
    with writing(folder):
        return RunLog(
            folder,
            config.experiment_name,
            config.resolved(),
            total,
            list(config.training.report_to),
            resume_step=state["step"] + 1 if state else None,
            state=state["parts"]["log"] if state else None,
            every=config.training.logging_steps,
        )


def plan_of(config: ExperimentConfig, parts: Parts) -> tuple[list[WorldSpec], Data | None, Cast]:
    """The worlds, the rows and the cast of a run, with everything checked that can be checked
    before a model is loaded.

    Raises:
        ConfigError: something asked for does not exist or does not fit.
    """
    check_trackers(config.training.report_to)
    algorithm = config.algorithm_settings()
    worlds = make_worlds(config, parts)
    rows = rows_of(config, parts)
    if "rows" in algorithm.requires and rows is None:
        raise ConfigError(
            f"{config.training.algorithm} learns from a data set: set data.dataset "
            "(or pass train_dataset=)"
        )
    played = [world for world in worlds if world.trained]
    if not played and rows is None:
        raise ConfigError(
            "there is nothing to learn from: set data.dataset, or environments: with a "
            "weight above 0 (those of evaluation.environments are never trained on)"
        )
    cast = assign(config, worlds, parts)
    if rows is None:
        check_taught(cast, played, worlds)
    if not any(section.trainable for section in cast.policies.values()):
        raise ConfigError("no policy is trainable, so there is nothing to train")
    check_plays(config, algorithm, worlds, rows is not None)
    worlds = crossed(algorithm, worlds)
    check_opponents(config, algorithm, cast, worlds, rows is not None)
    schedule = schedule_of(config, algorithm, cast)
    check_asynchrony(config, algorithm, schedule, worlds, rows is not None)
    if schedule.swap_every is not None and (rows is not None or algorithm.collection is not None):
        raise ConfigError(
            f"training.schedule.swap_every={schedule.swap_every}: agents exchange their policies "
            f"while they play, and {config.training.algorithm} learns from a data set; remove it"
        )
    check_engine(config)
    for section in cast.policies.values():
        if section.endpoint is not None:
            registry.load("engines", section.engine or "openai")
    return worlds, rows, cast


def rehearse(
    config: ExperimentConfig, parts: Parts | None = None
) -> tuple[Play, dict[str, Policy]]:
    """The worlds, agents and models of a config, ready to play; nothing is trained and nothing is
    written."""
    parts = parts or Parts()
    worlds = make_worlds(config, parts)
    if not worlds:
        raise ConfigError("there is no environment to play in; set environments:")
    cast = assign(config, worlds, parts)
    policies = load_policies(config, cast, parts)
    if all(policy.device.type == "cpu" for policy in policies.values()):
        keep_freed_memory()
    engines = make_engines(config, cast, policies)
    return play_of(config, 1, worlds, make_seats(config, cast, policies, parts), engines), policies


# -- what it needs ---------------------------------------------------------------------------------


def tasks_of(worlds: Sequence[WorldSpec], rows: Data | None) -> int | None:
    """Tasks in one epoch; `None` where they never end, or are not counted."""
    if rows is None:
        return count_tasks(worlds)
    return None if isinstance(rows, Reading) else len(rows)


def arithmetic_of(
    config: ExperimentConfig,
    worlds: Sequence[WorldSpec],
    rows: Data | None,
    cast: Cast,
    *,
    shape: ModelShape | None = None,
    parameters: int | None = None,
) -> Plan:
    """The arithmetic of a run whose worlds, rows and agents are known.

    Args:
        config: one stage of an experiment.
        worlds, rows, cast: what it plays, or learns from, and who with.
        shape, parameters: of every policy's model, where it is not at hand.
    """
    played = [world for world in worlds if world.trained]
    alone = [world.template.max_turns for world in played if len(world.template.agents) == 1]
    trained = [name for name, section in cast.policies.items() if section.trainable]
    return arithmetic(
        config,
        num_agents=len(cast.policy_of),
        trained_agents=sum(policy in trained for policy in cast.policy_of.values()),
        iterations=total_steps(config, tasks_of(worlds, rows)),
        max_turns=max((turns for turns in alone if turns), default=None),
        parameters={} if parameters is None else dict.fromkeys(cast.policies, parameters),
        shapes=None if shape is None else dict.fromkeys(cast.policies, shape),
        policies=cast.policies,
        seats=Counter(cast.policy_of.values()),
    )


def _check_memory(plan: Plan) -> None:
    """Say so before a run that will probably not fit into memory."""
    free = psutil.virtual_memory().available
    if plan.total_memory > free:
        log.warning(
            "check memory: about %.1f GiB are needed and %.1f GiB are free; smaller "
            "training.max_tokens_per_microbatch, gradient_checkpointing, or LoRA need less",
            plan.total_memory / 2**30,
            free / 2**30,
        )


def _check_rates(config: ExperimentConfig, cast: Cast, learners: Sequence[Learner]) -> None:
    """Warn where a small model is trained with a default learning rate, which is one for large,
    pretrained models."""
    if config.training.learning_rate is not None:
        return
    for learner in learners:
        size = learner.weights_of.size
        if size < TINY and cast.policies[learner.policy].learning_rate is None:
            log.warning(
                "policy %r: learning_rate is not set, and the default of %s, %g, is one for large "
                "pretrained models; a model of %.1f million parameters learns nothing with it: set "
                "training.learning_rate, to 1e-3 for example",
                learner.policy,
                config.training.algorithm,
                config.algorithm_settings().default_learning_rate,
                size / 1e6,
            )
            return


# -- the folder ------------------------------------------------------------------------------------


def _checkpoint(config: ExperimentConfig, resume: Path) -> Path:
    """What to go on from. If the run goes on in its folder, what it was doing there when it was
    killed is brought to its end."""
    own = run_folder(config).resolve()
    if resume.resolve() == own:
        settle(own)
    elif resume.resolve().parent == own and resume.name.startswith("checkpoint-"):
        settle(own, step_of(resume))
    found = newest_verified(resume)
    if found.resolve().parent == own:
        thin(found, config.training.save_total_limit)
    return found


def run_folder(config: ExperimentConfig) -> Path:
    """Where a run writes."""
    return Path(config.output_dir or f"outputs/{config.experiment_name}")


def prepare_folder(config: ExperimentConfig, resume: Path | None) -> Path:
    """The run's folder with its `config.yaml`. A folder of an earlier run is moved aside unless it
    is resumed.

    Raises:
        ConfigError: the folder cannot be written.
    """
    folder = run_folder(config)
    try:
        same = resume is not None and folder.resolve() in (
            resume.resolve(),
            resume.resolve().parent,
        )
        if resume is not None:
            check_inputs(resume.parent if resume.name.startswith("checkpoint-") else resume)
        if not same and (list(folder.glob("config.yaml")) or list(folder.glob("*/config.yaml"))):
            number = next(i for i in range(1, 10**6) if not Path(f"{folder}.{i}").exists())
            folder.rename(f"{folder}.{number}")
            log.info("%s held an earlier run; it is %s.%d now", folder, folder, number)
        folder.mkdir(parents=True, exist_ok=True)
        clear_temporaries(folder)
        config.save(folder / "config.yaml")
        if not same:
            note_inputs(config, folder)
    except OSError as error:
        raise ConfigError(f"output_dir={str(folder)!r} cannot be written: {error}") from error
    return folder
