"""Builds a `Population` from the section `opponents`: which policies have past versions, which
frozen policies play them, and checks; and teachers that play in place of policies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mrlm.build.folder import run_folder
from mrlm.build.run_plan import RunPlan
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.learn.policy.copies import opponent_copy
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.reference import load_reference
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import Engine
from mrlm.play.sources.play import EXPERT, AssignOpponents
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.selfplay.matchmaking import match_number
from mrlm.selfplay.opponent_pool import Population

KEY = "opponents"
TEACHER = "teacher"


def check_opponents(plan: RunPlan) -> None:
    """Refuses opponents that could never be met."""
    section, assignment = plan.config.opponents, plan.assignment
    if not section.on:
        if section.policies is not None:
            raise ConfigError(
                f"{KEY}.policies: opponents are not enabled; set {KEY}.every (iterations between "
                f"snapshots) or {KEY}.source"
            )
        return
    if plan.imitates:
        raise ConfigError(
            f"{KEY}: opponents are met in rollouts, and {plan.config.training.algorithm} trains on "
            f"a data set or on collected episodes; remove the section {KEY}"
        )
    trained = list(dict.fromkeys(assignment.trained.values()))
    for name in section.policies or ():
        if name not in trained:
            raise ConfigError(registry.unknown(name, trained, f"{KEY}.policies (trained policies)"))
    populated = set(trained if section.policies is None else section.policies)
    for env in plan.environments:
        of = assignment.policy_of
        policies = [of[name] for name in env.template.agents if name in of]
        learners = [index for index, name in enumerate(policies) if name in trained]
        guests = [index for index, name in enumerate(policies) if name in populated]
        if any(one != other for one in learners for other in guests):
            return
    raise ConfigError(
        f"{KEY}: an opponent replaces {', '.join(sorted(populated)) or 'no policy'} for one agent "
        "while a trained policy acts for another agent of the same environment, and no "
        "environment has two such agents; use a game of several agents with trained policies"
    )


def opponents_of(plan: RunPlan, policies: Mapping[str, Policy]) -> dict[str, list[Policy]]:
    """policy -> the frozen policies that replace it: as many as opponents are met at once."""
    section, assignment = plan.config.opponents, plan.assignment
    if not section.on:
        return {}
    trained = list(dict.fromkeys(assignment.trained.values()))
    copies: dict[str, list[Policy]] = {}
    for policy in trained if section.policies is None else section.policies:
        copies[policy] = []
        for number in range(section.at_once):
            name = f"{policy}-opponent" + (f"-{number + 1}" if number else "")
            while name in assignment.policies:
                name += "-"
            copies[policy].append(opponent_copy(policies[policy], name))
    return copies


def population_of(
    plan: RunPlan,
    policies: Mapping[str, Policy],
    opponents: Mapping[str, Sequence[Policy]],
    engines: Mapping[str, Engine],
) -> Population:
    """The population of a run, without members yet."""
    config = plan.config
    trained = {name: policies[name] for name in dict.fromkeys(plan.assignment.trained.values())}
    folder, seed = run_folder(config), config.training.seed
    return Population(folder, seed, config.opponents, trained, opponents, engines, plan.peers)


def spare_of(
    plan: RunPlan, policies: Mapping[str, Policy], opponents: Mapping[str, Sequence[Policy]]
) -> dict[str, Policy]:
    """The frozen policies by name: opponents, and teachers that play a share of the tasks."""
    spare = {policy.name: policy for several in opponents.values() for policy in several}
    if plan.spec.sampling.others is None or plan.spec.sampling.others[0] == EXPERT:
        return spare
    for name in dict.fromkeys(plan.assignment.trained.values()):
        policy, source = policies[name], plan.spec.reference_of(name)
        assert source is not None
        load_reference(policy, source)
        model = policy.model if policy.reference is None else policy.reference
        adapter = None if policy.reference is not None else policy.reference_adapter
        spare[f"{name}-{TEACHER}"] = policy.over(model, adapter, f"{name}-{TEACHER}")
    return spare


def others_of(plan: RunPlan) -> AssignOpponents | None:
    """The players of a share of the training tasks, spread evenly, in place of the policies."""
    others = plan.spec.sampling.others
    if others is None:
        return None
    who, share = others

    def assign_others(
        env: EnvironmentSpec, task: int, settings_of: Mapping[str, AgentSettings]
    ) -> Mapping[str, AgentSettings]:
        if match_number(task, share) is None:
            return settings_of
        return {
            name: replace(x, sampler=EXPERT if who == EXPERT else f"{x.policy}-{TEACHER}")
            if x.trained
            else x
            for name, x in settings_of.items()
        }

    return assign_others
