"""App: a program that calls agents through an OpenAI client, played as it is."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrlm.core.addresses import app_variables
from mrlm.core.environment import Environment, Split, validated_reward
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import JSON, Message, Reward, StepResult, Task
from mrlm.data.tasks import OnBadRow, question_of, row_messages
from mrlm.environments.shared.reward_functions import RewardCalls, user_function
from mrlm.environments.shared.rows import RowTable, RowTasks, agent_names
from mrlm.sandbox.opening import FIX, open_sandbox
from mrlm.sandbox.types import SandboxUnavailableError

NO_REWARD = (
    "the app has no reward, so the episode failed: return a number (or agent -> number) from "
    "`reward`, or call `await mrlm.reward(0.5)`; 0 is a reward, None is not"
)


class AppEnvironment(RowTasks, Environment):
    """An environment whose episodes are runs of the user's program. Every call of a model by an
    OpenAI client in it is a turn of the agent with the name of the model.

    Args:
        app: function of a row, a coroutine or not, or `module:function`.
        command: a program in any language instead, such as `[node, app.js]`: it reads the row as
            JSON, finds `OPENAI_BASE_URL` and `OPENAI_API_KEY` in its environment, and writes its
            result.
        dataset: the rows; anything `read_rows` accepts.
        reward: `reward(row, result)` returns a number for all agents, or agent -> number (of a
            role, for each of its instances), or `module:function`. Without it, what the app returns
            is the reward. `mrlm.reward` adds to it from inside.
        agents: names of the agents.
        instances: agents of which an episode may have several, `coder#1`, `coder#2`, ...: a list,
            or agent -> the agent that spawns them, which is credited with their own rewards (of an
            agent that spawns itself, `coder#1.2` is spawned by `coder#1`).
        agent_of: rule for the agent of a call, system prompt -> name, or `module:function`; by
            default the name of the model, and of one agent alone any model.
        variables: environment variables of `command`, which gets no others but `PATH` and the like.
        sandbox: run `command` with files, processes and a network of its own (bubblewrap), which
            has the address of its episode only: `True`, or a list of files and folders that it may
            read besides the system's programs.
        rewards: how `reward` is called, as in the environment `reward`.
        eval_dataset: held-out rows; a tenth of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        seed: seed of the split into training and held-out rows.
    """

    blocking: bool = True
    workflow: str | None = "mrlm.serving.apps.workflow:AppWorkflow"

    def __init__(
        self,
        app: Any = None,
        dataset: Any = None,
        reward: Any = None,
        agents: Sequence[str] | str = "agent",
        *,
        command: Sequence[str] | None = None,
        instances: Sequence[str] | Mapping[str, str] | str = (),
        agent_of: Any = None,
        variables: Mapping[str, str] | None = None,
        sandbox: Sequence[str] | bool = False,
        rewards: Mapping[str, Any] | None = None,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        seed: int = 0,
    ) -> None:
        if (app is None) == (command is None):
            raise ConfigError("environment app: give app (module:function) or command, one of them")
        if dataset is None:
            raise ConfigError("environment app: dataset is missing; an episode is played for a row")
        for name, value in (("variables", variables), ("sandbox", sandbox)):
            if value and command is None:
                raise ConfigError(f"environment app: {name} is for a command; remove it")
        self.agents: tuple[str, ...] = agent_names(agents)
        self.instances: dict[str, str | None] = _instances(instances, self.agents)
        self.command: list[str] = [command] if isinstance(command, str) else list(command or ())
        self.variables: dict[str, str] = {k: str(v) for k, v in (variables or {}).items()}
        self.sandbox: list[str] | None = _readable(sandbox)
        with app_variables():  # clients are often made where a module is imported
            self.app: Callable[..., Any] | None = _function(app, "app", 1)
            self._reward = _function(reward, "reward", 2)
            self.agent_of = _function(agent_of, "agent_of", 1)
        self._calls = RewardCalls.of(rewards)
        self._table: RowTable = RowTable(dataset, eval_dataset, split, columns, on_bad_row, seed)
        self.row: JSON = {}
        """The row of this episode."""
        self.outcome: tuple[Any, Any] | None = None
        """The app's result, and its session, which knows the rewards from inside."""
        self.own_rewards: dict[str, float] = {}
        """The rewards of agents without those of the team."""

    def task(self, seed: int, split: Split = "train") -> Task:
        index, row = self._table.row(seed, split)
        name = f"row-{split}-{index}"
        question = question_of(row)
        prompt = [] if question is None else row_messages(question, name)
        return Task(name, prompt, row.get("answer"), seed, {"row": dict(row)})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        self.row, self.outcome = dict(task.info["row"]), None
        self.own_rewards = {}
        return StepResult()

    async def step(self, actions: dict[str, Message]) -> StepResult:
        if self.outcome is None:
            raise EpisodeError(
                "environment app is played by its own workflow, in the process of the run; it "
                "cannot be stepped, and not be remote"
            )
        result, session = self.outcome
        value = result
        if self._reward is not None:
            where = f"reward function of the app, row {self.row!r}"[:300]
            value = await self._calls.call(self._reward, where, self.row, result)
        elif not _is_reward(value):
            value = None
        rewards = self._rewards(value, list(actions), session.rewards)
        return StepResult(rewards=rewards, done=True)

    def _rewards(
        self, value: Any, spoke: list[str], inside: Sequence[tuple[str | None, Any, float]]
    ) -> dict[str, Reward]:
        """Agent -> its reward: that of the whole episode, and those from inside."""
        team = [amount for agent, _, amount in inside if agent is None]
        alone = {agent: 0.0 for agent, _, _ in inside if agent is not None}
        for agent, _, amount in inside:
            if agent is not None:
                alone[agent] += amount
        if isinstance(value, Mapping):
            for name, amount in value.items():
                places = [agent for agent in spoke if name in (agent, agent.partition("#")[0])]
                if not places and name not in self.agents:
                    known = ", ".join(dict.fromkeys((*self.agents, *spoke)))
                    raise EpisodeError(
                        f"reward: agent {name!r} does not exist; the agents are {known}"
                    )
                for agent in places:
                    number = validated_reward(amount, f"reward of agent {agent!r}")
                    if number.known:
                        alone[agent] = alone.get(agent, 0.0) + number.value
        elif value is not None:
            team.append(validated_reward(value, "reward").value)
        if not team and not alone:
            raise EpisodeError(NO_REWARD)
        self.own_rewards = alone
        shared = sum(team)
        return {
            agent: Reward(shared + alone.get(agent, 0.0), known=bool(team) or agent in alone)
            for agent in spoke
        }


def _readable(setting: Sequence[str] | bool) -> list[str] | None:
    """The files and folders that a sandbox shows; `None` without one."""
    if setting is False:
        return None
    paths = [setting] if isinstance(setting, str) else [] if setting is True else [*setting]
    for path in paths:
        if not os.path.exists(path):
            raise ConfigError(f"sandbox: {path} does not exist; it lists what a command may read")
    try:
        open_sandbox("bubblewrap")
    except SandboxUnavailableError as error:
        raise SandboxUnavailableError(
            f"sandbox: a command is isolated by bubblewrap only, which does not work here. {FIX}; "
            "or remove `sandbox`"
        ) from error
    return paths


def _is_reward(value: Any) -> bool:
    """Whether the result of an app is a reward: a number, or agent -> number."""
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return bool(values) and all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in values
    )


def _function(setting: Any, name: str, count: int) -> Callable[..., Any] | None:
    """A user's function that takes `count` arguments by position."""
    function = user_function(setting, name)
    if function is None:
        return None
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        form = {"app": "app(row)", "reward": "reward(row, result)"}.get(name, "agent_of(prompt)")
        raise ConfigError(f"{name}: it is called as {form}, and {setting!r}: {error}") from error
    return function


def _instances(
    setting: Sequence[str] | Mapping[str, str] | str, agents: Sequence[str]
) -> dict[str, str | None]:
    """Agent with instances -> who spawns them."""
    names = [setting] if isinstance(setting, str) else setting
    table = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)
    for name in (*table, *(spawner for spawner in table.values() if spawner is not None)):
        if name not in agents:
            raise ConfigError(f"instances: {name!r} is none of the agents {', '.join(agents)}")
    return table


PLUGIN = AppEnvironment
