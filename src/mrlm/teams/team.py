"""`Team`: a trained team, loaded from a folder or the Hub, and played."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mrlm.build.engines import make_engines
from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects, PlayPlan, assign, load_policies, make_settings
from mrlm.build.sources import play_of
from mrlm.config import ExperimentConfig, parse_config
from mrlm.config.trust import check
from mrlm.core.environment import Environment, Split
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.prompt_template import PromptTemplate, by_agent
from mrlm.core.registry import unknown
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import row_messages
from mrlm.learn.policy.loading import run_model
from mrlm.learn.policy.policy import Policy
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec, PlannedTask
from mrlm.teams.hub import download
from mrlm.teams.packing import pack
from mrlm.teams.saving import TEAM, absolute_team


class Team:
    """A team of agents with their policies, workflow and environments.

    `Team.from_pretrained` makes one.

    Args:
        folder: its folder, with `team.yaml`.
        agents: name -> settings of an agent.
        policies: name -> weights; adapters on one base share it.
        play: plays its environments; the last is a conversation.
        missing: agent -> the name of a function that writes what it reads of a text, and is not
            here.

    Example:
        >>> team = Team.from_pretrained("outputs/quickstart")  # doctest: +SKIP
        >>> episode = team.play(seed=1)  # doctest: +SKIP
        >>> episode.reward, episode.rollouts["first"].messages[-1].content  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: Path,
        agents: Mapping[str, AgentSettings],
        policies: Mapping[str, Policy],
        play: Play,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self.folder: Path = folder
        self.agents: Mapping[str, AgentSettings] = agents
        self.policies: Mapping[str, Policy] = policies
        self._play = play
        self._missing: Mapping[str, str] = missing or {}
        *specs, self._conversation = play.environments
        self._environments: dict[str, EnvironmentSpec] = {spec.name: spec for spec in specs}

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        environment: Any = None,
        formatters: Any = None,
        device: str = "auto",
        revision: str | None = None,
        endpoint: str | None = None,
        trust_remote_code: bool = False,
    ) -> "Team":
        """Loads a team; every model once, also where several adapters use it.

        Args:
            source: a run folder, a folder that `mrlm pull` or `save_pretrained` wrote, or a
                repository of the Hub.
            environment: an environment to play instead of the team's own: an instance, a class or a
                function.
            formatters: row -> what an agent reads of a text (the row's `prompt`), as for a trainer:
                in place of those that the team was trained with.
            device: of the models, as `model.device`.
            revision: branch, tag or commit of the repository.
            endpoint: URL of the Hub; `HF_ENDPOINT` by default.
            trust_remote_code: accept settings that import code beyond the library, run programs, or
                send texts to a server.

        Raises:
            ConfigError: the folder is not that of a team, or its settings need trust.
            HubError: the repository cannot be read.
        """
        path = Path(run_model(os.path.expanduser(source)))
        if not path.is_dir():
            path = download(str(source), revision=revision, endpoint=endpoint)
        data = absolute_team(path)
        if environment is not None:
            data["environments"], data["evaluation"] = [], {}
        where = f"{source}: {TEAM}"
        if not trust_remote_code:
            check(data, where, advice="give trust_remote_code=True")
        config = parse_config(data, {"model.device": device}, where)
        reading = _formatters(config, formatters)
        plan = _plan(config, environment, reading)
        policies = load_policies(plan)
        settings_of = make_settings(plan, policies)
        missing = {
            name: section.formatter_function
            for name, section in config.agents.items()
            if section.formatter_function and name not in reading
        }
        play = play_of(plan, settings_of, make_engines(plan, policies))
        return cls(path, settings_of, policies, play, missing)

    def play(
        self,
        task: str | Task | None = None,
        *,
        seed: int = 0,
        greedy: bool = True,
        environment: str | None = None,
    ) -> Episode:
        """Plays one episode; works inside a notebook's running event loop too.

        Args:
            task: a text, which all agents read and to which no reward is known; a task of the
                environment; or `None`: the environment's held-out task number `seed`.
            seed: of the random numbers.
            greedy: take the most probable token instead of sampling.
            environment: the name of one of the team's environments; the first by default.

        Raises:
            ConfigError: the environment does not exist.
            EpisodeError: the episode failed.
        """
        return run_async(self.aplay(task, seed=seed, greedy=greedy, environment=environment))

    async def aplay(
        self,
        task: str | Task | None = None,
        *,
        seed: int = 0,
        greedy: bool = True,
        environment: str | None = None,
    ) -> Episode:
        """`play` as a coroutine, with the same arguments and errors; concurrent episodes are
        sampled together."""
        if isinstance(task, str):
            if environment is not None:
                raise ConfigError(
                    f"environment={environment!r}: a text is read without an environment; give a "
                    "Task, or leave the environment out"
                )
            if self._missing:
                examples = ", ".join(
                    f"{agent!r}: {name.rsplit('.', 1)[-1]}" for agent, name in self._missing.items()
                )
                raise ConfigError(
                    f"{self.folder}: the agents {', '.join(self._missing)} were trained with "
                    "prompts that Python functions wrote, which are no part of the team; give "
                    f"them: Team.from_pretrained(..., formatters={{{examples}}})"
                )
            read = Task("text", [Message(task)])
            return await self._episode(self._conversation, seed, read, greedy)
        if not self._environments:
            raise ConfigError(
                f"{self.folder}: the team has no environment; give play a text, or from_pretrained "
                "an environment"
            )
        name = next(iter(self._environments)) if environment is None else environment
        if name not in self._environments:
            raise ConfigError(unknown(name, list(self._environments), "environment"))
        return await self._episode(self._environments[name], seed, task, greedy)

    async def _episode(
        self, env: EnvironmentSpec, seed: int, task: Task | None, greedy: bool
    ) -> Episode:
        """An episode of a task, or of the held-out one of a number."""
        total = env.template.num_tasks("eval")
        index = seed % total if task is None and total else seed
        lineup = {name: how.greedy() if greedy else how for name, how in self.agents.items()}
        return await self._play.play_task(PlannedTask(env, "eval", index, [lineup], task=task))

    def save_pretrained(self, folder: str | os.PathLike[str], *, merge: bool = False) -> Path:
        """Writes the team into a new folder, as `mrlm push` publishes it.

        Args:
            folder: a folder that does not exist, or is empty.
            merge: write adapters as whole models, merged into their bases.

        Raises:
            ConfigError: the folder is not empty.
        """
        return pack(self.folder, Path(folder).expanduser(), merge=merge)


def _formatters(config: ExperimentConfig, extra: Any) -> dict[str, Any]:
    """Agent -> its formatter: the team's own template, or the one that is `extra`, which may be for
    some agents only."""
    agents = list(config.agents)
    some = isinstance(extra, Mapping) and set(extra) < set(agents)
    passed = dict(extra) if some else by_agent(extra, agents)
    templates = {name: text.formatter for name, text in config.agents.items() if text.formatter}
    given = (templates | passed).items()
    return {name: PromptTemplate(how) if isinstance(how, str) else how for name, how in given}


def _plan(config: ExperimentConfig, environment: Any, reading: Mapping[str, Any]) -> PlayPlan:
    """The plan of a team, in its environments and in a conversation."""
    live_environments = [] if environment is None else [environment]
    alone = Conversation(("agent",), dict(zip(["agent"], reading.values(), strict=False)))
    bare = config.merged({"environments": [], "evaluation": {"environments": []}})
    (probe,) = make_environments(bare, LiveObjects(eval_environments=[alone]))
    single = len(config.agents) == 1 or probe.workflow.spec.single_agent or probe.workflow.agents
    conversation = alone if single else Conversation(tuple(config.agents), reading)
    parts = LiveObjects(environments=live_environments, eval_environments=[conversation])
    environments = make_environments(config, parts)
    assignment = assign(config, environments, parts)
    return PlayPlan(config=config, parts=parts, environments=environments, assignment=assignment)


class Conversation(Environment):
    """An environment in which every agent reads the prompt of the task and answers once. Its
    rewards are missing.

    Args:
        formatters: agent -> what it reads of a row with the text as its `prompt`.
    """

    name: str = "conversation"
    blocking: bool = False

    def __init__(
        self, agents: tuple[str, ...], formatters: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        self.agents = agents
        self._formatters = formatters

    def num_tasks(self, split: Split = "train") -> int:
        return 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        prompt = list(task.prompt) if task is not None else []
        return StepResult({agent: Observation(self._read(agent, prompt)) for agent in self.agents})

    def _read(self, agent: str, prompt: list[Message]) -> list[Message]:
        """The messages of the task for an agent."""
        formatter = self._formatters.get(agent)
        if formatter is None or not prompt:
            return list(prompt)
        made = formatter({"prompt": prompt[-1].content})
        return [*prompt[:-1], *row_messages(made, f"formatter of agent {agent!r}")]

    def step(self, actions: dict[str, Message]) -> StepResult:
        rewards = {agent: Reward(0.0, known=False) for agent in self.agents}
        return StepResult(rewards=rewards, done=True)
