"""What an algorithm asks of its episodes, and whether workflow and data give it: what cannot work
is refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrlm.build.policies import Cast
from mrlm.config import ExperimentConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.play.sources.task_sampler import WorldSpec


def check_plays(
    config: ExperimentConfig, algorithm: Algorithm, worlds: Sequence[WorldSpec], has_rows: bool
) -> None:
    """Refuse what cannot be played, or not be learned from.

    Raises:
        ConfigError: names the setting, and says what would work.
    """
    name = config.training.algorithm
    if has_rows:
        if algorithm.reads_old or algorithm.requires & {"greedy", "tree"}:
            raise ConfigError(
                f"training.algorithm={name!r} has to play its tasks itself, and data.dataset is "
                "not played; set environments: instead (the environment 'reward' plays a data "
                "set), or learn from rows with sft or dpo"
            )
        return
    for world in (world for world in worlds if world.trained):
        if getattr(world.workflow, "crosses", False) and not algorithm.crosses:
            raise ConfigError(
                "workflow.name='cross' plays every combination of the agents' answers, and "
                f"{name} compares whole episodes; remove it, or use magrpo with joint_mode=cross"
            )
        if algorithm.crosses:
            _check_cross(config, algorithm, world)
        if getattr(world.workflow, "forks", False):
            _check_tree(config, algorithm, world)
        elif "tree" in algorithm.requires:
            raise ConfigError(
                f"training.algorithm={name!r} compares several answers to one state, and "
                f"workflow.name={config.workflow.name!r} plays every episode on its own; set "
                "workflow.name=tree"
            )


def crossed(algorithm: Algorithm, worlds: Sequence[WorldSpec]) -> list[WorldSpec]:
    """The worlds, with every combination of answers played where the algorithm asks for that."""
    if not algorithm.crosses:
        return list(worlds)
    workflow = registry.load("workflows", "cross")()
    return [replace(world, workflow=workflow) if world.trained else world for world in worlds]


def check_taught(cast: Cast, played: Sequence[WorldSpec], worlds: Sequence[WorldSpec]) -> None:
    """Refuse a policy that is to be trained and whose agents play only where nobody learns.

    Args:
        cast: who plays with what.
        played: the worlds that are trained on.
        worlds: those and the worlds that are only evaluated.

    Raises:
        ConfigError: names the policy and its agents.
    """
    seated = {agent for world in played for agent in world.agents}
    watched = {agent for world in worlds for agent in world.agents} - seated
    for name in dict.fromkeys(cast.trained.values()):
        agents = [agent for agent, policy in cast.policy_of.items() if policy == name]
        if watched.issuperset(agents):
            raise ConfigError(
                f"policies.{name}: {', '.join(agents)} only plays in environments that are "
                f"evaluated and not trained on; set policies.{name}.trainable=false, or say with "
                f"agents.{agents[0]}.policy which trained policy speaks for it"
            )


def _check_cross(config: ExperimentConfig, algorithm: Algorithm, world: WorldSpec) -> None:
    """Combinations are those of one joint step."""
    algorithm.check_joint(len(world.template.agents))
    known = config.workflow.name in ("single_turn", "cross")
    limit = getattr(world.workflow, "max_turns", None) or world.template.max_turns
    if getattr(world.workflow, "forks", False) or not (known or limit == 1):
        raise ConfigError(
            f"joint_mode='cross' combines answers in one joint step, and workflow.name="
            f"{config.workflow.name!r} plays environment {world.name!r} for more; set "
            "workflow.name=single_turn, or joint_mode=aligned"
        )


def _check_tree(config: ExperimentConfig, algorithm: Algorithm, world: WorldSpec) -> None:
    """The same for a workflow that tries several answers from one state."""
    name = config.training.algorithm
    tries = f"workflow.name={config.workflow.name!r} tries several answers from one state, and"
    if "greedy" in algorithm.requires:
        raise ConfigError(
            f"{tries} training.algorithm={name!r} compares whole episodes with a greedy one; use "
            "the workflow 'turns' or 'single_turn'"
        )
    if not algorithm.reads_trees:
        raise ConfigError(
            f"{tries} {name} compares whole episodes; use the workflow 'turns', or an "
            "algorithm that gives credit in trees, such as magrpo"
        )
    if getattr(world.workflow, "prunes", False) and not algorithm.reads_pruned:
        raise ConfigError(
            f"workflow.select='best' follows up one answer to a state only, and {name} credits an "
            "answer with what followed it; set workflow.select=all, or use at_grpo"
        )
    limit = getattr(world.workflow, "max_turns", None) or world.template.max_turns
    check = getattr(world.workflow, "check_size", None)
    if check is not None and limit:
        check(algorithm.group_size, limit)
