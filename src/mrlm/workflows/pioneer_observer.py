"""One agent answers, and another answers the same question after reading that answer."""

from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow, WorkflowSpec
from mrlm.workflows._team import play_alone


@dataclass
class PioneerObserver(Workflow):
    """A workflow in which the pioneer plays the environment to its end. Then the environment is
    reset to the same task, and the observer plays it with the pioneer's last answer appended to the
    question (arXiv 2410.06101). Each agent receives its own reward; any sharing is left to the
    algorithm (`cory`: both receive the sum).

    Args:
        pioneer: name of the agent that plays first.
        observer: name of the agent that reads its answer.
        template: message for the observer; `{answer}` is replaced by the pioneer's answer.
        max_turns: turns of each agent before it is truncated; `None`: the environment's own limit.
    """

    pioneer: str = "pioneer"
    observer: str = "observer"
    template: str = "Another answer:\n{answer}"
    max_turns: int | None = None

    spec = WorkflowSpec(single_agent=True, repeats=True)

    def __post_init__(self) -> None:
        if "{answer}" not in self.template:
            raise ConfigError(
                f"workflow pioneer_observer: template={self.template!r} has no placeholder for the "
                "answer; put {answer} into it"
            )
        if self.pioneer == self.observer:
            raise ConfigError(
                f"workflow pioneer_observer: pioneer and observer are both {self.pioneer!r}; "
                "name two agents (they may share a policy)"
            )
        self.agents = (self.pioneer, self.observer)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        first, taken = await play_alone(agents[self.pioneer], env, self.max_turns)
        hint = Message(self.template.replace("{answer}", first.content))
        _, more = await play_alone(agents[self.observer], env, self.max_turns, [hint])
        env.end(truncated=not (taken[-1].done and more[-1].done))


PLUGIN = PioneerObserver
