"""Builds a `Schedule` from `training.schedule` and the algorithm, with checks, and the policy
assignment at every point of it."""

from collections.abc import Mapping

from mrlm.build.policies import PlayPlan, PolicyAssignment, make_settings
from mrlm.config import ExperimentConfig, ScheduleConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.progress import counted
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.policy.policy import Policy
from mrlm.learn.schedule import Order, Schedule
from mrlm.play.agent import AgentSettings

KEY = "training.schedule"


def schedule_of(
    config: ExperimentConfig, algorithm: Algorithm, assignment: PolicyAssignment
) -> Schedule:
    """The schedule of a run. Raises `ConfigError`: it does not fit the agents, the policies or the
    algorithm."""
    section, name, spec = config.training.schedule, config.training.algorithm, algorithm.spec
    order: Order = section.order or spec.orders[0]
    if order not in spec.orders:
        raise ConfigError(
            f"{KEY}.order={order!r}: {name} supports only {' or '.join(spec.orders)}; set that, or "
            "use mappo, which supports every order"
        )
    algorithm.check_agents(assignment.trained, len(assignment.policy_of))
    policies = [policy for policy, settings in assignment.policies.items() if settings.trainable]
    if section.order not in (None, "simultaneous") and len(policies) < 2:
        raise ConfigError(
            f"{KEY}.order={order!r}: policies alternate, and only {policies[0]!r} is trained; "
            "give each agent a policy of its own, or use 'simultaneous'"
        )
    for field in ("turns", "period"):
        if order != "alternating" and getattr(section, field) is not None:
            raise ConfigError(
                f"{KEY}.{field}: policies have turns only if {KEY}.order is 'alternating', and it "
                f"is {order!r}; remove it, or set that"
            )
    turns = _turns(section, policies) if order == "alternating" else ()
    swap_every, roles = _swap(section, spec.swap_every, assignment)
    return Schedule(order, turns, section.period or 1, swap_every, roles)


def assignments_of(
    plan: PlayPlan, policies: Mapping[str, Policy], schedule: Schedule
) -> list[dict[str, AgentSettings]]:
    """Agent settings for every rotation of the roles, starting with the initial one."""
    rotations = range(1 if schedule.swap_every is None else len(schedule.roles))
    assignments = [plan.assignment.rotated(schedule.roles, places) for places in rotations]
    return [make_settings(plan, policies, assignment) for assignment in assignments]


def _turns(section: ScheduleConfig, policies: list[str]) -> tuple[frozenset[str], ...]:
    """The policies that are trained together, turn by turn."""
    if section.turns is None:
        return tuple(frozenset({name}) for name in policies)
    for name in (name for turn in section.turns for name in turn):
        if name not in policies:
            raise ConfigError(registry.unknown(name, policies, f"{KEY}.turns (trained policies)"))
    never = [name for name in policies if not any(name in turn for turn in section.turns)]
    if never or not all(section.turns):
        text = f"policy {never[0]!r} has no turn" if never else "a turn names no policy"
        raise ConfigError(
            f"{KEY}.turns: {text}; name every trained policy ({', '.join(policies)}) in a turn, "
            "or set trainable=false for one that is never to be trained"
        )
    return tuple(map(frozenset, section.turns))


def _swap(
    section: ScheduleConfig, period: int | None, assignment: PolicyAssignment
) -> tuple[int | None, tuple[str, ...]]:
    """The swap period and the agents that exchange policies. A swap that only the algorithm
    requests is left out where there is nothing to exchange."""
    if period is not None and section.swap_every not in (None, period):
        raise ConfigError(
            f"{KEY}.swap_every={section.swap_every}: the algorithm already swaps every "
            f"{counted(period, 'iteration')} by a setting of its own; remove this one"
        )
    every = section.swap_every or period
    roles = tuple(assignment.trained if section.roles is None else section.roles)
    if every is None:
        if section.roles is not None:
            raise ConfigError(
                f"{KEY}.roles: no agents exchange policies; set {KEY}.swap_every, or remove it"
            )
        return None, ()
    for role in roles:
        if role not in assignment.policy_of:
            raise ConfigError(registry.unknown(role, list(assignment.policy_of), f"{KEY}.roles"))
    if len(set(roles)) == len(roles) and len({assignment.policy_of[role] for role in roles}) > 1:
        return every, roles
    if section.swap_every is None and section.roles is None:
        return None, ()
    these = ", ".join(f"{role} ({assignment.policy_of[role]})" for role in roles) or "none"
    raise ConfigError(
        f"{KEY}.swap_every={every}: needs agents with different policies to exchange, and these "
        f"are {these}; give each agent a policy of its own, or remove it"
    )
