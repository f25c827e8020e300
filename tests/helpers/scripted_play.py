"""Play of a world by engines that say what a script says."""

from typing import Any

from mrlm.core.chat import Chat
from mrlm.core.environment import Environment, as_environment
from mrlm.core.types import Message, Observation, Reward, SamplingParams, StepResult, Task
from mrlm.engines.scripted import ScriptedEngine
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import as_workflow
from mrlm.workflows.turns import Turns


class Echo(Environment):
    """Two seats speak at once for three rounds; each is paid for its own words."""

    agents = ("a", "b")

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.left = self.rounds
        start = Observation([Message(f"start {seed}")])
        return StepResult(dict.fromkeys(self.agents, start))

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.left -= 1
        seen = {agent: Observation([Message(f"left {self.left}")]) for agent in self.agents}
        rewards = {agent: Reward(float(len(actions[agent].content))) for agent in self.agents}
        return StepResult({} if not self.left else seen, rewards, done=not self.left)


def seats(tokenizer: Any, *names: str, **sampling: Any) -> dict[str, AgentSettings]:
    chat = Chat(tokenizer)
    params = SamplingParams(**{"max_new_tokens": 16, **sampling})
    return {name: AgentSettings(name, "policy", chat, params, 4096) for name in names}


def play(
    tokenizer: Any,
    world: Any,
    script: Any,
    names: tuple[str, ...],
    workflow: Any = None,
    group_size: int = 2,
    **spec: Any,
) -> tuple[Play, ScriptedEngine]:
    engine = ScriptedEngine(script, tokenizer)
    template = as_environment(world)
    make = template.spawn if not callable(world) else lambda: as_environment(world)
    where = EnvironmentSpec("world", template, make, as_workflow(workflow or Turns()), **spec)
    return Play([where], seats(tokenizer, *names), {"policy": engine}, group_size, seed=0), engine


def spoken(request: Any) -> str:
    """Words whose number depends on the request's own seed: what a sampler does."""
    return "x" * (1 + request.seed % 7)
