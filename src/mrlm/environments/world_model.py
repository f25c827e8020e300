"""World model: a language model plays the environment, and writes the agent's observations."""

import copy
import hashlib
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core import registry
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, DataError, EpisodeError
from mrlm.core.sampling import SamplingParams, takes_sampling
from mrlm.core.sync_async import in_thread
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task
from mrlm.data.tasks import OnBadRow, question_of, row_messages
from mrlm.environments.shared.reward_functions import JointSample, Scorers, user_function
from mrlm.environments.shared.rows import RowTable, RowTasks, agent_names, others, whole_number


class WorldModelEnvironment(RowTasks, Environment):
    """An environment simulated by a language model: after every message of the agent it writes the
    next observation, as a user turn in its chat template. Its input is identical, token for token,
    to the training input of `sft` in mode `world_model`. It is not trained here.

    An episode is done according to `done_text` or `done_func`, and is truncated after `max_turns`
    messages of the agent, or when the conversation exceeds the model's context.

    Args:
        model: a folder, a run folder or a hub id; `policy:<name>` for a frozen policy of the run,
            `stage:<name>` for the model of an earlier stage of a pipeline; a live model in Python.
        dataset: rows with a first observation (`prompt`, `question` or `problem`); anything
            `read_rows` accepts. Without it the model also writes the first observation.
        tokenizer: the tokenizer; that of the model when `None`.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        system_prompt: system prompt of every conversation, for a model trained with that of the
            agent; the agent also sees it.
        max_turns: messages of the agent after which an episode is truncated.
        done_text: text of an observation that ends the episode.
        done_func: `done_func(messages) -> bool`, called with the conversation after every
            observation, or `module:name`.
        reward_func: one function, a list whose values are added, or `module:name`, called after
            every turn as in the environment `reward`; columns are those of the row, and
            `observation`, the model's text, and `done`. Without it there is no reward.
        **sampling: fields of `SamplingParams`, for observations.
        dtype, device: dtype and device of a loaded model.
        seed: seed of the split into training and held-out rows.
        agents: name of the agent.
    """

    reward_range: tuple[float, float] | None = (0.0, 0.0)

    @takes_sampling
    def __init__(
        self,
        model: Any = None,
        dataset: Any = None,
        *,
        tokenizer: Any = None,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        system_prompt: str | None = None,
        max_turns: int = 8,
        done_text: str | None = None,
        done_func: Any = None,
        reward_func: Any = None,
        dtype: str = "float32",
        device: str = "auto",
        seed: int = 0,
        agents: str | Sequence[str] = "agent",
        **sampling: Any,
    ) -> None:
        _check_model(model)
        whole_number(1, max_turns=max_turns)
        self.agents: tuple[str, ...] = agent_names(agents, 1)
        self.max_turns: int | None = max_turns
        self.system_prompt = system_prompt
        if dataset is not None:
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            self._table = RowTable(dataset, *settings, convert=_asked)
        path = os.fspath(model) if isinstance(model, os.PathLike) else model
        engine = registry.load("engines", "world_model")
        self._model = engine(path, tokenizer, SamplingParams(**sampling), dtype, device)
        self._scorers = None if reward_func is None else Scorers(reward_func, self.agents)
        self._done_text = done_text
        self._done_func = user_function(done_func, "done_func")
        self._task = Task("none")
        self._seed, self._turn = 0, 0
        self._talk: Any = None

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is None:
            return Task(f"world-{split}-{seed}", self._system(), seed=seed, info={"split": split})
        index, row = self._table.row(seed, split)
        name = f"world-{split}-{index}"
        prompt = row_messages(question_of(row), name)
        prompt = prompt if prompt[0].role is Role.SYSTEM else [*self._system(), *prompt]
        return Task(name, prompt, row.get("answer"), seed, others(row))

    def spawn(self) -> "WorldModelEnvironment":
        clone = copy.copy(self)
        clone._talk = copy.deepcopy(self._talk)
        return clone

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task = task or self.task(seed or 0)
        self._seed, self._turn = task.seed if seed is None else seed, 0
        await self._model.load()
        self._talk = self._model.talk(list(task.prompt) or self._system())
        opened = bool(task.prompt) and task.prompt[-1].role is not Role.SYSTEM
        if not opened and await self._observed() is None:
            raise EpisodeError(
                f"task {task.id!r}: its prompt exceeds the context length of the world model"
            )
        return StepResult({self.agents[0]: Observation(list(self._talk.messages))})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        (agent,) = self.agents
        action = actions[agent]
        history = list(self._talk.messages)
        self._model.answer(self._talk, action)
        observed = await self._observed()
        self._turn += 1
        if observed is None:
            return StepResult({agent: Observation(done=True)}, truncated=True)
        done = await self._done(observed)
        rewards = await self._rewards(history, action, observed, done)
        cut = not done and self.max_turns is not None and self._turn >= self.max_turns
        seen = Observation([observed], done=done or cut)
        return StepResult({agent: seen}, rewards, done=done, truncated=cut)

    def state(self) -> str:
        return "\n".join(f"{message.role}: {message.content}" for message in self._talk.messages)

    def _system(self) -> list[Message]:
        return [Message(self.system_prompt, Role.SYSTEM)] if self.system_prompt else []

    async def _observed(self) -> Message | None:
        """The model's next observation, with random numbers determined by task, seed and turn."""
        seed_text = f"{self._task.id} {self._task.info.get('split')} {self._seed} {self._turn}"
        number = len(self._talk.messages)
        drawn = hashlib.blake2b(f"{seed_text} {number}".encode(), digest_size=8).digest()
        return await self._model.observe(
            self._talk, int.from_bytes(drawn, "little"), (self._task.id, self._seed, number)
        )

    async def _done(self, observed: Message) -> bool:
        if self._done_text is not None and self._done_text in observed.content:
            return True
        function = self._done_func
        if function is None:
            return False
        messages = list(self._talk.messages)
        result = await in_thread(lambda: function(messages))
        return bool(await result if inspect.isawaitable(result) else result)

    async def _rewards(
        self, history: list[Message], action: Message, observed: Message, done: bool
    ) -> dict[str, Reward]:
        if self._scorers is None:
            return {}
        (agent,) = self.agents
        row = {name: value for name, value in self._task.info.items() if name not in _QUESTIONS}
        columns = {**row, "observation": observed.content, "done": done}
        if self._task.answer is not None:
            columns["answer"] = self._task.answer
        plain = [{"role": str(message.role), "content": message.content} for message in history]
        texts = {agent: action.content}
        sample = JointSample(self._task.id, {agent: plain}, dict(texts), texts, columns)
        parts = await self._scorers.score(sample)
        reward = Reward(sum(parts.values()), dict(parts)) if parts else Reward(0.0, known=False)
        return {agent: reward}


_QUESTIONS = ("prompt", "question", "problem", "split")


def _asked(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A row, checked to have a first observation."""
    if question_of(row) is None:
        raise DataError(
            f"{where}: needs a prompt (or question, or problem), the first observation; it has "
            f"{', '.join(row)} (rename with columns)"
        )
    return dict(row)


def _check_model(model: Any) -> None:
    if model is None:
        raise ConfigError(
            "environment world_model: model is missing; set it to the folder of a model trained "
            "with sft.mode=world_model (or any chat model)"
        )
    if isinstance(model, Mapping):
        raise ConfigError(
            "environment world_model: model needs local weights, as a model behind an API cannot "
            "write a user turn"
        )


PLUGIN = WorldModelEnvironment
