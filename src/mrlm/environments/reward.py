"""Reward function: rows of a data set as prompts, answered by every agent in one or several turns,
and scored by the user's own function."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from mrlm.core.environment import Environment, Split, accepted_parameters, validated_reward
from mrlm.core.errors import ConfigError, DataError, EpisodeError, RewardError
from mrlm.core.matters import Matters
from mrlm.core.messages import without_nulls
from mrlm.core.prompt_template import PromptTemplate, by_agent
from mrlm.core.registry import load
from mrlm.core.types import JSON, Message, Observation, Reward, Role, StepResult, Task
from mrlm.data.forms import refuse_media
from mrlm.data.tasks import OnBadRow, row_messages
from mrlm.environments.shared.reward_functions import (
    JointSample,
    RewardCalls,
    Scorers,
    user_function,
)
from mrlm.environments.shared.reward_functions import RewardProcessors as RewardProcessors
from mrlm.environments.shared.rows import RowTable, RowTasks, agent_names, whole_number
from mrlm.play.external_transition import Dialogue, Mode, Transition, Turning, observed

Formatter = Callable[..., Any]
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""`module:name`."""


class RewardEnvironment(RowTasks, Environment):
    """An environment in which every agent answers a prompt made from the row, concurrently, and all
    of them receive the same reward. With `max_turns` they answer several times: the reward function
    is called after every turn with the answers of that turn, and `external_transition` writes the
    next prompts.

    A reward function with parameters named `prompts` or `completions` is called in the batched form
    `f(prompts, completions, **columns) -> list[float | None]`: columns are lists, and all waiting
    episodes are scored in one call (with several agents each completion is a separate sample, the
    column `agent` names its agent, and the team's reward is the mean). `None` means that this
    function does not contribute; if all functions return `None` the reward is missing: the episode
    counts in no baseline and is not trained on. A non-finite number fails its episode. Any other
    function is called once per joint action with one list per agent, `f(["..."], ["..."]) ->
    [float]`; columns are passed to further parameters of their names, the row to `batch_items` and
    its prompt to a first parameter `prompts`, as in CoMLRL. Both forms may be coroutine functions.

    Args:
        dataset: the rows; anything `read_rows` accepts.
        reward_func: one function, a list whose values are added (each is logged by its name), or
            `module:name`.
        formatters: row -> the agent's prompt (text or messages), a function, `module:name`, or a
            template such as `"Short: {prompt}"`: one for all, a list in the order of the agents, or
            a dictionary by agent. The row's `prompt` when `None`.
        agents: names of the agents.
        num_agents: number of agents `agent_0`, `agent_1`, ..., instead of `agents`.
        reward_weights: factor of each function's values in the sum; its metric has no factor.
        rewards: how they are called: `retries` after an error (0), `timeout` of a call in seconds,
            and `on_error`: `fail` ends the run, `skip` the episode only.
        reward_processor: number -> number, applied to the sum of the functions' values, or
            `module:name`.
        max_turns: turns of an episode; 1 if neither this nor the workflow's `max_turns` is set.
        external_transition: function that writes the prompts of the next turn, as in the workflow
            `turns`, whose setting it defaults to. Its `prompt` is the row's.
        transition_mode: `replace`: the returned text replaces the row's `prompt`, is passed through
            `formatters`, and starts a new conversation. `append`: it is added to the conversation
            unchanged.
        external_prompt_passthrough: with `replace`, do not pass it through `formatters`.
        reward_model: folder of a trained reward model (the algorithm `reward_model`), whose scores
            are added like those of another function. In a pipeline, `stage:<name>` is the model
            trained by that stage.
        reward_model_reads: score each `agent`'s answer by itself, or the `team`'s as one text.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None` (with fewer
            than ten rows, all); `False`: none is held out, and evaluations have those rows, too.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        seed: seed of the split into training and held-out rows.

    Raises:
        RewardError: from `step`; names the function, the sample and the value.
    """

    blocking: bool = True
    step_timeout: float | None = None  # a step is a call of the user's function
    matters: ClassVar[Mapping[str, Matters]] = {
        "transition_mode": Matters(
            lambda s, run: s.external_transition or run.config.workflow.parameters,
            "it applies to the prompts of external_transition, which is not set; set one, or "
            "remove it",
        ),
        "external_prompt_passthrough": Matters(
            lambda s, run: s.formatters is not None and s.transition_mode == "replace",
            "the prompts of external_transition are passed to no formatter; remove it",
        ),
    }

    def __init__(
        self,
        dataset: Any = None,
        reward_func: Any = None,
        formatters: Any = None,
        agents: Sequence[str] | str | None = None,
        num_agents: int | None = None,
        *,
        reward_weights: Sequence[float] | None = None,
        rewards: Mapping[str, Any] | None = None,
        reward_processor: Any = None,
        max_turns: int | None = None,
        external_transition: Any = None,
        transition_mode: Mode = "replace",
        external_prompt_passthrough: bool = False,
        reward_model: str | None = None,
        reward_model_reads: Literal["agent", "team"] = "agent",
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        seed: int = 0,
    ) -> None:
        self.agents: tuple[str, ...] = _agent_names(agents, num_agents)
        if reward_model is not None:
            listed = list(reward_func) if isinstance(reward_func, list | tuple) else [reward_func]
            scorer = load("engines", "reward_model")(reward_model)
            scorer = scorer.of_team(self.agents) if reward_model_reads == "team" else scorer
            reward_func = [*(function for function in listed if function is not None), scorer]
        if dataset is None or reward_func is None:
            missing = "dataset" if dataset is None else "reward_func"
            raise ConfigError(
                f"environment reward: {missing} is missing; set dataset, and reward_func or "
                "reward_model"
            )
        self.formatters: dict[str, Any] = by_agent(formatters, self.agents)
        """Agent -> its formatter as it was given."""
        self._formatters = {name: _formatter(given) for name, given in self.formatters.items()}
        self._scorers = Scorers(reward_func, self.agents, RewardCalls.of(rewards), reward_weights)
        self._processor = user_function(reward_processor, "reward_processor")
        required = () if self._formatters else ("prompt",)
        settings = (dataset, eval_dataset, split, columns, on_bad_row, seed)
        self._table: RowTable = RowTable(*settings, required=required, convert=refuse_media)
        mode = (transition_mode, external_prompt_passthrough)
        self._turns = Turning(max_turns, external_transition, *mode)
        self.max_turns: int | None = self._turns.count
        self._dialogue = Dialogue(self.agents)
        self._turn = 0
        self._conversational = isinstance(self._table.row(0, "train")[1].get("prompt"), list)
        self._task = Task("none")
        self._prompts: dict[str, list[Message]] = {}

    def task(self, seed: int, split: Split = "train") -> Task:
        index, row = self._table.row(seed, split)
        name = f"row-{split}-{index}"
        prompt = self._shown(self.agents[0], row, name)
        info = {column: value for column, value in row.items() if column != "prompt"}
        if "prompt" in row:
            info["row_prompt"] = row["prompt"]
        return Task(name, prompt, row.get("answer"), seed, info)

    def with_turns(self, settings: Mapping[str, Any]) -> "RewardEnvironment":
        """A copy with the workflow's turn settings, unless it has its own. Raises `ConfigError`: a
        setting differs from the workflow's, there are several turns and no `external_transition`,
        or vice versa."""
        env = copy.copy(self)
        env._turns = self._turns.joined(settings)
        env._turns.check()
        env.max_turns = env._turns.count
        return env

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._turns.check()
        self._task = task = task or self.task(seed or 0)
        self._dialogue, self._turn = Dialogue(self.agents), 0
        row = self._row(task)
        self._prompts = {
            agent: self._shown(agent, row, task.id) if self._formatters else list(task.prompt)
            for agent in self.agents
        }
        prompts = self._prompts.items()
        return StepResult({agent: Observation(list(messages)) for agent, messages in prompts})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        silent = [agent for agent in self.agents if agent not in actions]
        if silent:
            raise EpisodeError(
                f"task {self._task.id!r}: agent {silent[0]!r} sent no message; the reward function "
                "requires one of every agent"
            )
        texts = {agent: actions[agent].content for agent in self.agents}
        sample = JointSample(
            self._task.id,
            {agent: self._as_given(messages) for agent, messages in self._prompts.items()},
            {name: self._as_given([Message(texts[name], Role.ASSISTANT)]) for name in self.agents},
            texts,
            self._columns(self._task),
            self._row(self._task)["prompt"],
        )
        components = await self._scorers.score(sample)
        value = self._processed(self._scorers.total(components)) if components else 0.0
        reward = Reward(value, dict(components), known=bool(components))
        rewards = {agent: copy.deepcopy(reward) for agent in self.agents}
        self._turn += 1
        transition = self._turns.external_transition
        if transition is None or self._turn >= self._turns.count:
            return StepResult(rewards=rewards, done=True)
        return StepResult(await self._following(transition, actions), rewards)

    def _processed(self, value: float) -> float:
        if self._processor is None:
            return value
        where = f"reward_processor, task {self._task.id!r}, reward {value!r}"
        try:
            result = self._processor(value)
        except Exception as error:  # a user's function may raise anything
            raise RewardError(f"{where}: it raised {error!r}") from error
        return validated_reward(result, where).value

    async def _following(
        self, transition: Transition, actions: Mapping[str, Message]
    ) -> dict[str, Observation]:
        for agent, messages in self._prompts.items():
            self._dialogue.show(agent, messages)
            self._dialogue.answer(agent, actions[agent])
        row, name = self._row(self._task), self._task.id
        prompt = "\n".join(message.content for message in row_messages(row["prompt"], name))
        prompts = await transition(self._dialogue, prompt, name)
        for agent, value in prompts.items():
            if self._formatters and self._turns.formatted:
                value = self._formatted(agent, {**row, "prompt": value}, name, value)
            self._prompts[agent] = row_messages(value, f"{transition.where}, task {name!r}")
        mode = self._turns.transition_mode
        return {agent: observed(messages, mode) for agent, messages in self._prompts.items()}

    def state(self) -> str:
        dialogue = self._dialogue
        lines = [
            f"{agent}: {text}"
            for turn in range(self._turn)
            for part in (dialogue.prompts, dialogue.answers)
            for agent in self.agents
            for text in part[agent][turn : turn + 1]
        ]
        now = [f"{agent}: {messages[-1].content}" for agent, messages in self._prompts.items()]
        return "\n".join([*lines, *now])

    def _row(self, task: Task) -> JSON:
        prompt = "\n".join(message.content for message in task.prompt)
        return {**self._columns(task), "prompt": task.info.get("row_prompt", prompt)}

    def _columns(self, task: Task) -> JSON:
        columns = {name: value for name, value in task.info.items() if name != "row_prompt"}
        return columns if task.answer is None else {"answer": task.answer, **columns}

    def _as_given(self, messages: Sequence[Message]) -> Any:
        """Messages in the batched form: objects if the data set's prompts are conversations, else
        text."""
        if self._conversational:
            return [{"role": str(message.role), "content": message.content} for message in messages]
        return "\n".join(message.content for message in messages)

    def _shown(self, agent: str, row: JSON, name: str) -> list[Message]:
        made, where = row.get("prompt"), name
        if self._formatters:
            made = self._formatted(agent, row, name)
            where = f"formatter of agent {agent!r}, task {name!r}"
        messages = row_messages(made, where)
        if variables := without_nulls(row.get("chat_template_kwargs") or {}):
            metadata = {**messages[0].metadata, "template_kwargs": variables}
            messages[0] = replace(messages[0], metadata=metadata)
        return messages

    def _formatted(self, agent: str, row: JSON, name: str, external: Any = None) -> Any:
        """The result of an agent's formatter for a row; `external` replaces the row's prompt, for a
        formatter with a parameter `external_prompts`."""
        formatter = self._formatters[agent]
        more: dict[str, Any] = {}
        if external is not None and accepted_parameters(formatter, ("external_prompts",)):
            more["external_prompts"] = external
        try:
            return formatter(dict(row), **more)
        except DataError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise DataError(
                f"formatter of agent {agent!r}, task {name!r}: it raised {error!r}"
            ) from error


def _agent_names(agents: Sequence[str] | str | None, num_agents: int | None) -> tuple[str, ...]:
    if num_agents is not None:
        whole_number(1, num_agents=num_agents)
    several = [f"agent_{index}" for index in range(num_agents or 1)]
    usual = several if len(several) > 1 else ["agent"]
    return agent_names(usual if agents is None else agents, num_agents)


def _formatter(setting: Any) -> Formatter:
    """A formatter from a setting: a function, its `module:name`, or a template."""
    if isinstance(setting, str) and not REFERENCE.fullmatch(setting):
        return PromptTemplate(setting)
    function = user_function(setting, "formatters (row -> prompt)")
    if function is None:
        raise ConfigError("formatters: one of them is None; give a function row -> prompt")
    return function


PLUGIN = RewardEnvironment
