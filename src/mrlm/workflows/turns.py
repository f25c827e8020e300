"""Many turns in any environment: agents with an observation act until the environment is done."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mrlm.core.environment import TURN_SETTINGS
from mrlm.core.errors import ConfigError
from mrlm.core.matters import SEVERAL_TURNS, Matters, check_choices, each_of
from mrlm.core.types import Message, Observation, StepResult, Task
from mrlm.data.tasks import row_messages
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.external_transition import Dialogue, Mode, Transition, observed
from mrlm.play.workflow import Workflow, WorkflowSpec

Seen = dict[str, list[Message]]


@dataclass
class Turns(Workflow):
    """The default workflow. Each agent has its own conversation; all agents that have an
    observation act concurrently. An observation with `info["new_conversation"]` starts a new
    conversation.

    Args:
        max_turns: joint steps after which the episode is truncated; `None`: the environment's own
            limit. In the environment `reward` this is the number of turns.
        external_transition: `external_transition(prompt, agent_completions, num_agents,
            prompt_history_per_agent, response_history_per_agent) -> list[prompt]`, by these names
            or in this order, or its name as `module:function`. It is called after every joint step
            except the last and returns each agent's next prompt, a text or a list of messages,
            which replaces the environment's messages. `prompt` is the task's text;
            `agent_completions` the last answer of each agent (empty if it has not answered yet);
            the histories are all prompts and answers so far, one list per agent. Prompts of agents
            that do not act next are ignored.
        transition_mode: `replace`: the returned prompt is the agent's whole next prompt. `append`:
            it is added to the agent's conversation.
        external_prompt_passthrough: in the environment `reward`, do not pass the returned prompts
            through the agents' `formatters`.
        termination_threshold: an episode (in a tree: a state) whose team reward for a joint step
            (in a tree: the mean over the answers to it) is above this ends there; an
            evaluation plays all turns. `None` disables it.

    Raises:
        ConfigError: a setting is out of range, or `external_transition` raised an error or did not
            return one prompt per agent.
    """

    max_turns: int | None = None
    external_transition: Callable[..., Any] | str | None = None
    transition_mode: Mode = "replace"
    external_prompt_passthrough: bool = False
    termination_threshold: float | None = None

    spec = WorkflowSpec(speaks_once=True, transitions=True)

    matters: ClassVar[Mapping[str, Matters]] = {
        "max_turns": Matters(
            lambda s, run: any(limit is None or limit >= s.max_turns for limit in run.limits),
            "the environment ends every episode earlier by itself; raise its own limit "
            "(max_turns or max_attempts of the environment), or remove it",
        ),
        "external_transition": SEVERAL_TURNS,
        "termination_threshold": SEVERAL_TURNS,
        **each_of(
            "transition_mode external_prompt_passthrough",
            lambda s, run: s.external_transition is not None,
            "it applies to the prompts of external_transition, which is not set; set one, or "
            "remove it",
        ),
    }

    def __post_init__(self) -> None:
        check_choices(self, f"workflow {type(self).__module__.rsplit('.', 1)[-1]}")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"workflow: max_turns={self.max_turns} must be at least 1")
        transition = self.external_transition
        self._transition = None if transition is None else Transition(transition)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        limit, dialogue = self.limit(env), self.dialogue(env)
        seen: Seen = {name: [] for name in agents}
        result = await env.reset()
        enough = self.termination_threshold if env.forking else None
        solved = False
        while not (result.done or result.truncated or solved) and env.num_steps < limit:
            if env.num_steps:
                await self.following(task, env, dialogue)
            result = await self.joint_step(env, agents, seen, dialogue)
            solved = enough is not None and env.episode.step_rewards[-1] > enough
        env.end(truncated=not (result.done or solved))

    def turn_settings(self) -> Mapping[str, object]:
        return {name: getattr(self, name) for name in TURN_SETTINGS}

    def with_turn_settings(self, settings: Mapping[str, Any]) -> Workflow:
        return replace(self, **settings)

    def limit(self, env: EpisodeRunner) -> int:
        """Maximum number of joint steps of an episode."""
        return self.max_turns or env.environment.max_turns or 64

    def dialogue(self, env: EpisodeRunner) -> Dialogue | None:
        """Histories for the user's function, of all agents in the order of the environment's
        agents; `None` without such a function."""
        if self._transition is None:
            return None
        names = [name for name in env.environment.agents if name in env.agents]
        return Dialogue(names or list(env.agents))

    async def joint_step(
        self, env: EpisodeRunner, agents: Agents, seen: Seen, dialogue: Dialogue | None
    ) -> StepResult:
        """Let all agents with an observation act concurrently, record their answers, and step the
        environment."""
        going = {n: obs for n, obs in env.result.observations.items() if not obs.done}
        for name, observation in going.items():
            hear(seen[name], observation)
            if dialogue is not None:
                dialogue.show(name, observation.messages)
        if len(going) == 1:  # a task of its own would cost more than many an answer
            (name,) = going
            actions = {name: await agents[name].act(seen[name])}
        else:
            messages = await asyncio.gather(*(agents[name].act(seen[name]) for name in going))
            actions = dict(zip(going, messages, strict=True))
        for name, message in actions.items():
            seen[name].append(message)
            if dialogue is not None:
                dialogue.answer(name, message)
        return await env.step(actions)

    async def following(self, task: Task, env: EpisodeRunner, dialogue: Dialogue | None) -> None:
        """Replace the environment's messages by the prompts of the user's function, before the next
        step."""
        if self._transition is None or dialogue is None:
            return
        prompt = "\n".join(message.content for message in task.prompt)
        async with env.working():
            prompts = await self._transition(dialogue, prompt, task.id)
        where = f"{self._transition.where}, task {task.id!r}"
        mode = self.transition_mode
        written = {name: observed(row_messages(o, where), mode) for name, o in prompts.items()}
        env.result.observations = {
            name: written.get(name, observation) if not observation.done else observation
            for name, observation in env.result.observations.items()
        }


def hear(seen: list[Message], observation: Observation) -> None:
    """Append an observation to an agent's conversation, or start a new conversation with it."""
    if observation.info.get("new_conversation"):
        seen.clear()
    seen.extend(observation.messages)


PLUGIN = Turns
