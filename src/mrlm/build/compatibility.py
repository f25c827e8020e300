"""Checks, before a model is loaded, that workflow and data provide the episodes that an algorithm
requires."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mrlm.build.async_play import check_asynchrony
from mrlm.build.engines import check_engine
from mrlm.build.opponents import check_opponents
from mrlm.build.policies import origin_of
from mrlm.build.quantization import check_quantized
from mrlm.build.run_plan import RunPlan
from mrlm.config.paths import STAGE
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.distributed import check_alone, world_size
from mrlm.doctor.examination import make_rules
from mrlm.learn.bases.spec import SamplingPlan
from mrlm.learn.policy.loading import load_tokenizer
from mrlm.learn.policy.reference import check_vocabulary
from mrlm.learn.policy.remote_teacher import RemoteTeacher
from mrlm.play.sources.play import EXPERT
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.tracking.run_log import check_trackers


def check_plays(plan: RunPlan) -> None:
    """Refuses runs that cannot be sampled or trained on."""
    config, sampler = plan.config, plan.spec.sampling
    name = config.training.algorithm
    if plan.rows is not None:
        if plan.spec.reads_old or sampler.greedy or sampler.tree:
            raise ConfigError(
                f"training.algorithm={name!r} has to sample its own completions, and data.dataset "
                "only provides rows; set environments: instead (the environment 'reward' takes a "
                "data set), or train on rows with sft or dpo"
            )
        return
    for env in plan.trained_environments:
        if env.template.workflow is not None:
            _check_app(plan, env)
        if env.workflow.spec.combines and sampler.cross is None:
            raise ConfigError(
                "workflow.name='cross' plays every combination of the agents' answers, and "
                f"{name} compares whole episodes; remove it, or use magrpo with joint_mode=cross"
            )
        if sampler.cross is not None:
            _check_cross(plan, sampler.cross, env)
        if sampler.replays is not None:
            _check_replays(plan, env)
        if env.workflow.spec.forks:
            _check_tree(plan, env)
        elif sampler.tree:
            raise ConfigError(
                f"training.algorithm={name!r} compares several answers to one state, and "
                f"workflow.name={config.workflow.name!r} plays every episode on its own; set "
                "workflow.name=tree"
            )


def _check_app(plan: RunPlan, env: EnvironmentSpec) -> None:
    """Refuses credit that an app cannot have: its answers are not combined, and it has no states;
    and, where agents have several instances, credit that knows each agent by its name."""
    sampler, name = plan.spec.sampling, plan.config.training.algorithm
    if sampler.cross is not None or sampler.tree:
        raise ConfigError(
            f"training.algorithm={name!r} tries several answers to one state, and an app "
            f"({env.name!r}) is played as a whole; use magrpo, grpo or ippo"
        )
    named = plan.spec.critic.topology == "mixed" or sampler.greedy or sampler.replays is not None
    if named and env.template.instances:
        raise ConfigError(
            f"training.algorithm={name!r} credits every agent by its name, and environment "
            f"{env.name!r} has instances of {', '.join(env.template.instances)}; use magrpo, grpo, "
            "ippo or mappo, or remove instances"
        )


def crossed(plan: SamplingPlan, environments: Sequence[EnvironmentSpec]) -> list[EnvironmentSpec]:
    """The environments; every combination of answers is played where the algorithm requires it."""
    if plan.cross is None:
        return list(environments)
    workflow = registry.load("workflows", "cross")()
    return [replace(env, workflow=workflow) if env.trained else env for env in environments]


def check_teachers(plan: RunPlan) -> None:
    """Refuses teachers with other tokens than their policies, or that cannot score them."""
    spec, config = plan.spec, plan.config
    remote = config.distributed.enabled and config.distributed.strategy == "ray"
    if remote and (spec.reveals or spec.sampling.others):
        raise ConfigError(
            f"{config.training.algorithm}: privileged and lmbda are supported in processes that "
            "hold the policies; set distributed.strategy=ddp, or remove them"
        )
    if spec.sampling.others is not None and config.opponents.on:
        raise ConfigError(
            f"{config.training.algorithm}: lmbda lets others play tasks, and so do opponents; "
            "remove the section opponents, or set lmbda=1"
        )
    demonstrated = spec.sampling.others is not None and spec.sampling.others[0] == EXPERT
    for env in plan.trained_environments:
        if demonstrated and not env.template.has_expert:
            raise ConfigError(
                f"environment {env.name!r} has no expert, which would play a share of its tasks "
                "(lmbda); set lmbda=1, or sampler=teacher with a teacher_model"
            )
        tasks = map(env.template.task, range(min(env.template.num_tasks() or 1, 10_000)))
        if "answer" in spec.reveals and (none := [x.id for x in tasks if x.answer is None]):
            raise ConfigError(
                f"privileged: task {none[0]!r} of environment {env.name!r} has no answer to "
                "reveal; give every row one, or remove 'answer'"
            )
    if spec.endpoint is not None:
        RemoteTeacher(spec.endpoint)
        for agent in plan.assignment.trained:
            sampling = config.generation.sampling(**plan.agent(agent).generation)
            if sampling.temperature != 1:
                raise ConfigError(
                    f"agent {agent!r} samples at temperature {sampling.temperature:g}, and an "
                    "endpoint gives log-probs at 1; set generation.temperature=1, or teacher_model"
                )
    for name in dict.fromkeys(plan.assignment.trained.values()):
        source = spec.reference_of(name)
        if source is not None and not source.startswith(STAGE):
            _, _, live, own = origin_of(plan, name)
            trusted = config.model.trust_remote_code
            check_vocabulary(source, live or load_tokenizer(own, trusted), name)


def check_trained(plan: RunPlan) -> None:
    """Refuses a policy that should be trained but only acts where nothing is trained, and a run
    without a trainable policy."""
    assignment = plan.assignment
    trained = {agent for env in plan.trained_environments for agent in env.agents}
    watched = {agent for env in plan.environments for agent in env.agents} - trained
    for name in dict.fromkeys(assignment.trained.values() if plan.rows is None else ()):
        agents = [agent for agent, policy in assignment.policy_of.items() if policy == name]
        if watched.issuperset(agents):
            raise ConfigError(
                f"policies.{name}: {', '.join(agents)} only plays in environments that are "
                f"evaluated and not trained on; set policies.{name}.trainable=false, or name a "
                f"trained policy in agents.{agents[0]}.policy"
            )
    if not any(section.trainable for section in assignment.policies.values()):
        raise ConfigError("no policy is trainable, so there is nothing to train")


def check_swap(plan: RunPlan) -> None:
    """Refuses agents that exchange their policies in a run without rollouts."""
    every = plan.schedule.swap_every
    if every is not None and plan.imitates:
        raise ConfigError(
            f"training.schedule.swap_every={every}: agents exchange their policies between "
            f"rollouts, and {plan.config.training.algorithm} trains on a data set; remove it"
        )


def check_tracking(plan: RunPlan) -> None:
    """Refuses trackers and rules that do not exist or cannot be used here."""
    check_trackers(plan.config.training.report_to, dict(plan.config.training))
    make_rules(plan.config.training.doctor_rules)


def check_processes(plan: RunPlan) -> None:
    """Refuses a strategy that the processes of this run cannot have."""
    section = plan.config.distributed
    check_alone(section)
    if section.enabled and section.strategy == "ray" and world_size() > 1:
        raise ConfigError(
            "distributed.strategy=ray starts its workers itself: run it without torchrun, or "
            "use ddp or fsdp"
        )


def check_gradient_shares(plan: RunPlan) -> None:
    """Refuses gradients by agent of sharded models."""
    section = plan.config.distributed
    if plan.config.training.gradient_shares and section.enabled and section.strategy == "fsdp":
        raise ConfigError(
            "training.gradient_shares computes the gradient of a shared policy by agent, which "
            "distributed.strategy=fsdp does not support; remove it, or set strategy to ddp"
        )


def check_engines(plan: RunPlan) -> None:
    """Refuses engines that do not exist or do not take their settings, and samples of rounded
    weights without a correction."""
    check_engine(plan.config)
    spec = plan.spec
    if plan.config.engine.int8 and spec.reads_old and spec.refuses_rounded is not None:
        raise ConfigError(spec.refuses_rounded.format(name=plan.config.training.algorithm))
    for section in plan.assignment.policies.values():
        if section.endpoint is not None:
            registry.load("engines", section.engine or "openai")


def _check_cross(plan: RunPlan, most: int, env: EnvironmentSpec) -> None:
    """Combinations are those of one joint step, and not too many."""
    size, agents = plan.algorithm.group_size, len(env.template.agents)
    if size**agents > most:
        raise ConfigError(
            f"joint_mode='cross' plays group_size ** agents = {size} ** {agents} = {size**agents} "
            f"joint actions of every task, more than max_joint_actions={most}; set a smaller "
            "group_size, a larger max_joint_actions, or joint_mode=aligned"
        )
    workflow = env.workflow
    limit = workflow.max_turns or env.template.max_turns
    if workflow.spec.forks or not (workflow.spec.one_step or limit == 1):
        raise ConfigError(
            f"joint_mode='cross' combines answers in one joint step, and workflow.name="
            f"{plan.config.workflow.name!r} plays environment {env.name!r} for more; set "
            "workflow.name=single_turn, or joint_mode=aligned"
        )


def _check_replays(plan: RunPlan, env: EnvironmentSpec) -> None:
    """Refuses environments, workflows and engines whose episodes cannot be replayed."""
    config, spec = plan.config, env.workflow.spec
    again = f"{config.training.algorithm} replays every episode with a decision changed, and"
    if spec.forks or spec.opens or spec.combines:
        raise ConfigError(
            f"{again} workflow.name={config.workflow.name!r} makes the episodes of a task from one "
            "another; use the workflow 'turns', or magrpo"
        )
    if not env.template.seeded:
        raise ConfigError(
            f"{again} the reset of environment {env.name!r} takes neither seed nor task, so that "
            "its episodes cannot be played again; give its reset a parameter seed"
        )
    for key, on in (
        ("training.max_lag", config.training.max_lag > 0),
        ("asynchrony.oversample", config.asynchrony.oversample > 1),
    ):
        if on:
            raise ConfigError(
                f"{again} {key} would sample replays with other weights than their episodes, or "
                f"abort episodes that are replayed; remove {key}"
            )
    for name, section in plan.assignment.policies.items():
        if section.endpoint is not None:
            raise ConfigError(
                f"{again} policies.{name} is behind an API, whose answers cannot be reproduced "
                "from a seed; use a policy with weights here, or magrpo"
            )


def _check_tree(plan: RunPlan, env: EnvironmentSpec) -> None:
    """Refuses algorithms and settings that do not fit a workflow with several answers per state."""
    config, sampler = plan.config, plan.spec.sampling
    name = config.training.algorithm
    tries = f"workflow.name={config.workflow.name!r} tries several answers from one state, and"
    if sampler.greedy:
        raise ConfigError(
            f"{tries} training.algorithm={name!r} compares whole episodes with a greedy one; use "
            "the workflow 'turns' or 'single_turn'"
        )
    if sampler.credits == "chains":
        raise ConfigError(
            f"{tries} {name} compares whole episodes; use the workflow 'turns', or an "
            "algorithm that gives credit in trees, such as magrpo"
        )
    if env.workflow.spec.prunes and sampler.credits != "pruned_trees":
        raise ConfigError(
            f"workflow.select='best' continues one answer to a state only, and {name} credits an "
            "answer with what followed it; set workflow.select=all, or use at_grpo"
        )
    limit = env.workflow.max_turns or env.template.max_turns
    if limit:
        env.workflow.check_size(plan.algorithm.group_size, limit)


def check_effects(plan: RunPlan) -> None:
    """Refuses effects of agents where evaluated episodes cannot be replayed."""
    section, obstacle = plan.config.evaluation, effects_obstacle(plan)
    if section.effects and section.episodes and obstacle is not None:
        raise ConfigError(f"evaluation.effects: {obstacle}")


def effects_obstacle(plan: RunPlan) -> str | None:
    """Why the effects of agents cannot be measured in evaluations; `None` if they can."""
    if plan.config.distributed.enabled:
        return (
            "episodes are replayed where the weights are, in one process; remove it or "
            "distributed, and use `mrlm why` on the run"
        )
    for env in plan.environments:
        if not env.template.seeded:
            return (
                f"environment {env.name!r} cannot be replayed, since its reset takes "
                "neither seed nor task; give its reset a parameter seed, or remove the setting"
            )
    assigned = plan.assignment.policy_of
    if len(assigned) < 2:
        return f"the team has one agent, {', '.join(map(repr, assigned))}; remove it"
    for agent, name in assigned.items():
        if plan.assignment.policies[name].endpoint is not None:
            return (
                f"agent {agent!r} is played by policy {name!r} behind an API, which cannot "
                "be replayed; remove the setting"
            )
    return None


CHECKS: tuple[Callable[[RunPlan], None], ...] = (
    *(check_processes, check_tracking, check_trained, check_teachers, check_plays),
    *(check_opponents, check_asynchrony, check_swap, check_gradient_shares, check_engines),
    *(check_effects, check_quantized),
)
"""Checks between the sections of a config, in the order in which they are reported."""
