"""Builds a `Run` from an `ExperimentConfig`: the only module that connects the parts and loads
plug-ins by name."""

from collections import Counter
from functools import partial
from pathlib import Path

import torch

from mrlm.build.async_play import copies_of
from mrlm.build.compatibility import CHECKS, crossed, effects_obstacle
from mrlm.build.engines import make_engines
from mrlm.build.environments import check_isolation, make_environments
from mrlm.build.folder import checkpoint_of, has_earlier_run, open_log, prepare_folder, run_folder
from mrlm.build.in_process import InProcess
from mrlm.build.ineffective import facts_of, refuse_idle, verdicts
from mrlm.build.learning_rates import check_rates
from mrlm.build.lock import unlock
from mrlm.build.microbatch import microbatch_tokens
from mrlm.build.opponents import opponents_of, population_of, spare_of
from mrlm.build.policies import LiveObjects, assign, load_policies, make_settings, origin_of
from mrlm.build.precision import device_type, precision_text, with_precision
from mrlm.build.preview import assignment_text
from mrlm.build.quantization import section_of
from mrlm.build.recorded import recorded_config, refuse_program
from mrlm.build.run_plan import RunPlan, play_plan
from mrlm.build.schedule import assignments_of
from mrlm.build.sources import amount, play_of, rows_of, source_of, total_steps
from mrlm.build.team_config import team_config
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.sync_async import run_async
from mrlm.distributed import join
from mrlm.distributed.learning_job import LearningJob
from mrlm.learn.checkpoint import read_state
from mrlm.learn.data.data_parallel import weights_of
from mrlm.learn.policy.loading import free_memory
from mrlm.learn.policy.policy import Policy
from mrlm.learn.schedule import Schedule
from mrlm.planning.model_shape import ModelShape
from mrlm.planning.plan import Plan, arithmetic
from mrlm.play.sources.play import Play
from mrlm.record.vocabulary import write_vocabulary
from mrlm.training.run import Run
from mrlm.training.saving import restore
from mrlm.training.weight_proof import exchange


def build(
    config: ExperimentConfig,
    parts: LiveObjects | None = None,
    resume: Path | None = None,
    checked: bool = True,
) -> Run:
    """Builds a run.

    Args:
        config: one stage of an experiment.
        parts: live objects in place of sections of the config.
        resume: a run folder or checkpoint to continue from.
        checked: refuse settings that have no effect in this run.

    Raises:
        ConfigError: something requested does not exist or does not fit; nothing has been written
            then.
    """
    plan = plan_of(config, parts or LiveObjects(), join(config.distributed))
    if checked and resume is None:
        refuse_idle({k: why for k, why in verdicts(plan).items() if k not in plan.parts.usual})
    return run_of(plan, config, resume)


def run_of(plan: RunPlan, config: ExperimentConfig, resume: Path | None) -> Run:
    """Builds the run of a plan, made of a config, from its beginning or from the run folder or
    checkpoint `resume`."""
    peers = plan.peers
    peers.first(lambda: has_earlier_run(run_folder(config), resume))
    log.info("%s", assignment_text(plan))
    log.info("%s", precision_text(config, plan.config))
    if not (config.distributed.enabled and config.distributed.strategy == "ray"):
        check_isolation(plan.environments)
    if config.training.checks != "off":
        _check_memory(arithmetic_of(plan))
    try:
        return _assembled(plan, resume)
    except BaseException:
        if peers.main:
            unlock(run_folder(config))
        raise


def _assembled(plan: RunPlan, resume: Path | None) -> Run:
    """The run of a plan, with its models loaded and its folder opened."""
    config, peers, placing = plan.config, plan.peers, placement_of(plan)
    policies = placing.load_policies()
    plan.environments = placing.environments(plan.environments)
    opponents = opponents_of(plan, policies)
    spare = spare_of(plan, policies, opponents)
    copies = copies_of(plan, policies)
    engines = placing.make_engines(copies | spare)
    if plan.schedule != Schedule():
        log.info("schedule: %s", plan.schedule)
    assignments = assignments_of(plan, policies, plan.schedule)
    population = population_of(plan, policies, opponents, engines)
    opposed = population.assign_opponents if population else None
    source = source_of(plan, assignments[0], engines, opposed)
    total = total_steps(config.training, plan.spec, source.num_tasks())
    source.plan(total)
    checkpoint = None if resume is None else peers.first(lambda: checkpoint_of(config, resume))
    state = None if checkpoint is None else read_state(checkpoint)
    folder = peers.first(lambda: prepare_folder(config, resume, partial(recorded_config, plan)))
    if peers.main and config.record.tokens != "none":
        write_vocabulary(folder, {name: weights.tokenizer for name, weights in policies.items()})
    job = LearningJob(plan.algorithm, total, folder, microbatch_tokens(plan, policies, state))
    learners = placing.make_learners(job, policies)
    check_rates(plan, learners)
    for learner in learners if copies is not policies else ():
        learner.mirror = copies[learner.policy]
    critics = placing.make_critics(job, learners, policies)
    peers.spread(weights_of([*policies.values(), *spare.values()], critics))
    run = Run(
        config=config,
        folder=folder,
        algorithm=plan.algorithm,
        spec=plan.spec,
        source=source,
        learners=learners,
        engines=engines,
        evaluator=play_of(plan, assignments[0], engines) if plan.environments else None,
        log=open_log(config, folder, total, state, peers),
        total_steps=total,
        critics=critics,
        callbacks=tuple(plan.parts.callbacks),
        schedule=plan.schedule,
        assignments=assignments,
        population=population,
        peers=peers,
        placement=placing,
        frozen=placing.frozen(policies, copies),
        team=team_config(plan),
        live_models=[name for name in plan.parts.models if origin_of(plan, name)[0] is not None],
        measures_effects=placing.local and effects_obstacle(plan) is None,
    )
    _shard(run)
    population.exchange = partial(exchange, run)
    placing.ready(run, checkpoint)
    if checkpoint is not None:
        restore(run, checkpoint)
        log.info("continuing from %s", checkpoint)
    run.log.note(amount(plan, facts_of(plan).turns, total))
    return run


def placement_of(plan: RunPlan) -> InProcess:
    """The placement of a run's parts."""
    section = plan.config.distributed
    if section.enabled and section.strategy == "ray":
        from mrlm.build.ray import OnRay

        return OnRay(plan)
    return InProcess(plan)


def _shard(run: Run) -> None:
    """Shards trained networks over the processes of an fsdp run; engines sample from copies that
    are whole."""
    section = run.config.distributed
    if not (section.enabled and section.strategy == "fsdp"):
        return
    from mrlm.distributed.sharded import shard

    shard(run.learners, run.critics, section.fsdp, run.peers)
    for learner in run.learners:
        name = learner.policy
        run_async(run.engines[name].load_weights(name, learner.weights(), learner.version))


def plan_of(config: ExperimentConfig, parts: LiveObjects, peers: Peers = ALONE) -> RunPlan:
    """The plan of a run, with everything checked that can be checked before a model is loaded.
    Raises `ConfigError`: something requested does not exist or does not fit."""
    refuse_program(config, parts)
    config = with_precision(config, parts.models)
    algorithm = config.algorithm_settings()
    environments = make_environments(config, parts)
    rows = rows_of(config, parts, algorithm.spec)
    if algorithm.spec.sampling.rows and rows is None:
        raise ConfigError(
            f"{config.training.algorithm} trains on a data set; set data.dataset "
            "(or pass train_dataset=)"
        )
    if rows is None and not any(env.trained for env in environments):
        raise ConfigError(
            "the config has nothing to train on; set data.dataset, or environments: with a "
            "weight above 0 (those of evaluation.environments are never trained on)"
        )
    plan = RunPlan(
        config=config,
        parts=parts,
        environments=environments,
        assignment=assign(config, environments, parts),
        peers=peers,
        algorithm=algorithm,
        rows=rows,
    )
    for check in CHECKS:
        check(plan)
    plan.environments = crossed(plan.spec.sampling, environments)
    return plan


def rehearse(config: ExperimentConfig) -> tuple[Play, dict[str, Policy]]:
    """The environments, agents and models of a config, ready to play; nothing is trained or
    written."""
    plan = play_plan(config)
    policies = load_policies(plan)
    engines = make_engines(plan, policies)
    return play_of(plan, make_settings(plan, policies), engines), policies


# -- requirements ----------------------------------------------------------------------------------


def arithmetic_of(
    plan: RunPlan,
    *,
    shape: ModelShape | None = None,
    parameters: int | None = None,
    free: float | None = None,
) -> Plan:
    """The memory and time estimate of a run: with `shape` and `parameters` of every policy's model,
    where it is not available, and `free` bytes of memory before the run (by default what is free
    here)."""
    assignment, device = plan.assignment, device_type(plan.config)
    config = plan.config.model_copy(update={"model": section_of(plan)})
    if free is None:
        free = free_memory(torch.device("cuda" if device == "cuda" else "cpu"))
    templates = [env.template for env in plan.trained_environments]
    alone = [template.max_turns for template in templates if len(template.agents) == 1]
    return arithmetic(
        config,
        num_agents=len(assignment.policy_of),
        trained_agents=len(assignment.trained),
        iterations=total_steps(config.training, plan.spec, plan.num_tasks),
        max_turns=max((turns for turns in alone if turns), default=None),
        accelerated=device != "cpu",
        free=free,
        parameters={} if parameters is None else dict.fromkeys(assignment.policies, parameters),
        shapes=None if shape is None else dict.fromkeys(assignment.policies, shape),
        policies=assignment.policies,
        agents_per_policy=Counter(assignment.policy_of.values()),
    )


def _check_memory(plan: Plan) -> None:
    """Warns before a run that will probably not fit into memory."""
    free = free_memory(torch.device("cpu"))
    if plan.total_memory > free:
        log.warning(
            "check memory: about %.1f GiB are needed and %.1f GiB are free; smaller "
            "training.max_tokens_per_microbatch, gradient_checkpointing, or LoRA need less",
            plan.total_memory / 2**30,
            free / 2**30,
        )
