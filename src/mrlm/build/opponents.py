"""Builds a `Population` from the section `opponents`: which policies have past versions, which
frozen policies play them, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mrlm.build.folder import run_folder
from mrlm.build.run_plan import RunPlan
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.learn.policy.copies import opponent_copy
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Engine
from mrlm.selfplay.opponent_pool import Population

KEY = "opponents"


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
