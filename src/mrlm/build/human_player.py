"""An experiment with a human player in place of one agent. The caller decides how the person is
prompted."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from mrlm.build.engines import make_engines
from mrlm.build.policies import PlayPlan, load_policies, make_settings
from mrlm.build.run_plan import play_plan
from mrlm.build.sources import play_of
from mrlm.config import ExperimentConfig
from mrlm.core import tiny_model
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.registry import unknown
from mrlm.learn.policy.loading import load_tokenizer
from mrlm.play.agent import AgentSettings, Ask
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.sources.play import Play

Others = Literal["policy", "expert"]
"""Which side acts for the other agents: their policies, or the environment's own player."""


def open_table(
    config: ExperimentConfig,
    agent: str | None,
    ask: Ask,
    on_step: Callable[[EpisodeRunner], None] | None = None,
    on_reset: Callable[[EpisodeRunner], None] | None = None,
    others: Others = "policy",
) -> tuple[Play, str]:
    """An experiment with a human player: its `Play`, and the agent that was replaced (the first one
    by default); models are loaded for the other agents only. `on_step` is called after every joint
    step, `on_reset` after the reset. Raises `ConfigError`: the config has no environment, or the
    agent does not exist."""
    plan = play_plan(config)
    assignment = plan.assignment
    name = next(iter(assignment.policy_of)) if agent is None else agent
    if name not in assignment.policy_of:
        raise ConfigError(unknown(name, list(assignment.policy_of), "agents"))
    left = {other: policy for other, policy in assignment.policy_of.items() if other != name}
    rest = plan.only(left, set(left.values()) if others == "policy" else ())
    policies = load_policies(rest)
    settings_of = make_settings(rest, policies) if others == "policy" else {}
    chat = Chat(load_tokenizer(tiny_model.NAME))
    settings_of = {
        agent: settings_of.get(agent) or _settings_of(plan, agent, policy, chat)
        for agent, policy in assignment.policy_of.items()
    }
    engines = make_engines(rest, policies)
    calls = {"persons": {name: ask}, "on_step": on_step, "on_reset": on_reset}
    return play_of(plan, settings_of, engines, demonstrate=others == "expert", **calls), name


def _settings_of(plan: PlayPlan, agent: str, policy: str, chat: Chat) -> AgentSettings:
    """Settings of an agent without a model: no message is too long."""
    return AgentSettings(
        name=agent,
        policy=policy,
        chat=chat,
        sampling=replace(plan.config.generation.sampling(), max_new_tokens=1),
        max_prompt_tokens=sys.maxsize,
        system_prompt=plan.agent(agent).system_prompt,
        trained=False,
    )
